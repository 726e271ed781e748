"""The stages that a search may form, with the pruning of the thesis, and the other options of a search."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from iossim.base.errors import OptionError, check_types, did_you_mean, is_count
from iossim.schedule.problem import ScheduleProblem, bits

StageDefinition = Literal["general", "paper"]


@dataclass(frozen=True, slots=True)
class StageSpace:
    """The stages that a search may form.

    ``general``: any ending of the state, its groups being the connected components, as Algorithm 1 says. ``paper``:
    every group is one root together with all its descendants in the state, as the published table counts. The general
    space holds every stage of the paper's.

    ``max_group_size`` (r) and ``max_groups`` (s) prune as in section 3.4; None does not prune. Unless ``concurrent`` a
    stage is a single unit; with ``merge`` it may also be several as one stacked convolution.
    """

    definition: StageDefinition = "general"
    max_group_size: int | None = None
    max_groups: int | None = None
    concurrent: bool = True
    merge: bool = True

    def __post_init__(self) -> None:
        if self.definition not in get_args(StageDefinition):
            raise OptionError(
                f"`stages` {self.definition!r} is not a definition of stages; "
                f"{did_you_mean(self.definition, get_args(StageDefinition))}"
            )
        for name, value in (("max_group_size", self.max_group_size), ("max_groups", self.max_groups)):
            if value is not None and not is_count(value):
                raise OptionError(f"`{name}` {value!r} allows no stage; give 1 or more, or leave it out")

    @property
    def single_root(self) -> bool:
        return self.definition == "paper"

    def pruned(self, group_size: int, groups: int) -> StageSpace:
        """The part of the space whose groups have at most so many units, and whose stages so many groups."""
        return replace(
            self,
            max_group_size=min(group_size, self.max_group_size or group_size),
            max_groups=min(groups, self.max_groups or groups),
        )

    def ordered(self, problem: ScheduleProblem) -> ScheduleProblem:
        """The problem as it is searched: without an order of interchangeable units where groups have one root."""
        return replace(problem, not_before=None) if self.single_root and problem.not_before is not None else problem

    def limits(self, units: int) -> tuple[int, int]:
        """r and s in a problem of that many units, which are their maximum and their default."""
        return min(self.max_group_size or units, units), min(self.max_groups or units, units)

    def holds(self, problem: ScheduleProblem, mask: int) -> bool:
        """True if a concurrent stage of these units is in the space, provided that it can run at all."""
        groups = problem.groups(mask)
        most_units, most_groups = self.limits(len(problem))
        if len(groups) > most_groups or any(group.bit_count() > most_units for group in groups):
            return False
        predecessors = problem.predecessors.tolist()
        roots = (sum(not predecessors[unit] & group for unit in bits(group)) for group in groups)
        return not self.single_root or all(count == 1 for count in roots)

    def walk_limits(self, units: int) -> tuple[int, int, bool]:
        """r, s and whether groups have a single root, in a problem of that many units."""
        return (*self.limits(units), self.single_root) if self.concurrent else (1, 1, True)

    def to_json(self) -> dict[str, object]:
        return {"stages": self.definition, "max_group_size": self.max_group_size, "max_groups": self.max_groups}


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Maximum states and transitions of a block that is solved as a whole."""

    max_states: int = 400_000
    max_transitions: int = 60_000_000

    def __post_init__(self) -> None:
        if not is_count(self.max_states, 2):
            raise OptionError(f"max_states {self.max_states!r} allows no block; give 2 or more, those of one unit")

    def least(self, other: SearchLimits) -> SearchLimits:
        """Intersection of both limits."""
        return SearchLimits(min(self.max_states, other.max_states), min(self.max_transitions, other.max_transitions))


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of all schedulers; each uses those that concern it."""

    space: StageSpace = field(default_factory=StageSpace)
    limits: SearchLimits = field(default_factory=SearchLimits)
    #: Limit on the total workspace of concurrent kernels, in bytes; None: no limit.
    workspace_limit_bytes: int | None = None
    #: Choose the kernels of units for their stage, instead of those that are fastest alone.
    company: bool = False
    #: Time limit of a search with its bounds and event-driven runs; half of it is for the stages that streams begin
    #: from. None: no limit, or, for streams, a number of schedules that grows with the network and is the same on any
    #: machine.
    seconds: float | None = None
    #: Seed of all random choices of a search.
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(type(self), self.__annotations__, {name: getattr(self, name) for name in self.__annotations__})
        if self.seconds is not None and not self.seconds > 0:
            raise OptionError(f"`seconds` {self.seconds:g} leaves no time to search; give more than 0, or leave it out")
        if self.seed < 0:
            raise OptionError(f"`stream_seed` {self.seed} is not possible; give 0 or more")
        limit = self.workspace_limit_bytes
        if limit is not None and limit < 0:
            raise OptionError(f"`workspace_limit` {limit} is negative; give 0 bytes or more, or leave it out")
        if self.company and limit is not None:
            raise OptionError("`company` chooses kernels without a `workspace_limit`; leave one of them out")

    def to_json(self) -> dict[str, object]:
        """The options that a schedule records: the stages, the workspace limit if any, and ``company`` if set."""
        company = {"company": True} if self.company else {}
        limit = {} if self.workspace_limit_bytes is None else {"workspace_limit_bytes": self.workspace_limit_bytes}
        return self.space.to_json() | limit | company
