"""Blocks in micro-batches, chosen with the schedule: each block in as many as make its optimal schedule fastest.

Also how a saved schedule says that its network is in micro-batches (:class:`Division`), of blocks or of units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from iossim.base.display import counted
from iossim.base.errors import GraphError, OptionError, ScheduleError, ignore, is_count
from iossim.base.user_files import read_json
from iossim.cost.model import CostModel
from iossim.ir.network import Block, Network
from iossim.microbatching.divided_blocks import (
    JOINED,
    divide_blocks,
    divide_units,
    divided_units,
    estimated_transitions,
)
from iossim.microbatching.divisible import divisible
from iossim.models.options import common_batch
from iossim.models.passes.blocks import narrow_blocks, split_blocks
from iossim.schedule.problem import ScheduleProblem
from iossim.search.memo import SearchMemo
from iossim.transforms.choices import BySchedule, Choices, GraphCost, refuse_measuring
from iossim.transforms.transform import Outcome, Setting, with_option

AUTO = "auto"
#: Numbers of micro-batches that ``auto`` tries for each block.
TRIED = (2, 4)
#: ``auto`` leaves a block whole if its micro-batches have more than about this many transitions (which take seconds).
MOST_TRANSITIONS = 1_000_000
#: The same under a limit on workspace, where a stage is priced in many ways.
MOST_LIMITED_TRANSITIONS = 20_000
#: Under such a limit, neighbouring blocks are joined up to this many transitions.
JOINED_LIMITED = 1_000
#: Factor by which views of other blocks may raise the transitions of a block.
WITH_VIEWS = 4
#: Option of a source that says which blocks run in micro-batches.
OPTION = "micro_batches"


@dataclass(frozen=True)
class Division:
    """Division of a network: the arguments of
    :func:`~iossim.microbatching.divided_blocks.divide_blocks`, or of its ``divide_units``. Blocks are first split at
    ``max_block`` units.
    """

    parts: Mapping[str, int] = field(default_factory=dict)
    joined: int = JOINED
    units: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    max_block: int | None = None

    def of(self, network: Network) -> Network:
        if self.units:
            return divide_units(network, self.units)
        return divide_blocks(split_blocks(network, self.max_block), self.parts, self.joined) if self.parts else network

    def to_json(self) -> dict[str, object]:
        if self.units:
            return {"units": dict(self.units)}
        found: dict[str, object] = {"blocks": dict(self.parts), "joined": self.joined}
        return found if self.max_block is None else found | {"max_block": self.max_block}

    @staticmethod
    def of_json(saved: Any) -> Division:
        """Inverse of :meth:`to_json`; raises TypeError, ValueError, KeyError or AttributeError for anything else."""
        if "units" in saved:
            return Division(units={str(name): tuple(map(int, sizes)) for name, sizes in saved["units"].items()})
        parts = {str(name): int(count) for name, count in saved["blocks"].items()}
        return Division(parts, int(saved["joined"]), max_block=saved.get("max_block"))


@dataclass(frozen=True, eq=False)
class MicroBatched(Outcome):
    """``network`` runs the blocks in ``parts`` (by name) in so many micro-batches, and says so in its source; or
    none, where none gain.

    ``before_us`` and ``after_us``: by the scheduler that it was divided for, None where it was told how; ``seen``
    counts the ways that were tried, and ``wide`` the blocks that were tried in fewer micro-batches than they allow.
    """

    network: Network
    parts: Mapping[str, int]
    units: Mapping[str, int]
    before_us: float | None = None
    after_us: float | None = None
    seen: int = 0
    wide: int = 0
    interrupted: bool = False

    name = "micro_batches"

    @property
    def alternatives(self) -> Mapping[str, Network]:
        return {"in micro-batches": self.network} if self.parts else {}

    def figures(self) -> dict[str, object]:
        times_us = {"before_us": self.before_us, "after_us": self.after_us}
        return {"blocks": dict(self.parts), **times_us, "seen": self.seen}

    def sentence(self) -> str:
        """The outcome, in words."""
        tried = f"; {self.seen} ways tried" if self.seen else ""
        if self.wide:
            tried += f"; {counted(self.wide, 'block')} too wide for some (a smaller `max_block` cuts blocks)"
        if not self.parts:
            return f"Micro-batches gain nothing: the batch is undivided{tried}."
        gain = (
            ""
            if self.before_us is None or self.after_us is None
            else f", {self.before_us / 1e3:.3f} ms -> {self.after_us / 1e3:.3f} ms"
        )
        listed = ", ".join(f"{name} in {count}" for name, count in self.parts.items())
        return f"Micro-batches: {listed}{gain}{tried}."

    def noted(self) -> dict[str, object]:
        return {OPTION: dict(self.units)}


@dataclass(frozen=True)
class MicroBatch:
    """The network in micro-batches: ``policy`` says into how many each block is divided that can be, or ``auto``.

    ``auto`` takes for each block the number (1, 2 or 4) with which the whole schedule is the fastest, block after
    block until none gains, from each of several beginnings; never slower by the scheduler than undivided. Under a
    limit on workspace all are scheduled under it. Raises OptionError for a policy that is not known.
    """

    policy: str | int

    def __post_init__(self) -> None:
        number = int(self.policy) if isinstance(self.policy, str) and self.policy.isdecimal() else self.policy
        if self.policy != AUTO and not is_count(number):
            raise OptionError(
                f"`micro_batch` {self.policy!r} is not known; give {AUTO}, or how many micro-batches, as 2"
            )

    @property
    def count(self) -> int | None:
        """Number of micro-batches; None for ``auto``."""
        return None if self.policy == AUTO else int(self.policy)

    def check(self, prices: CostModel, scheduler: str) -> None:
        """Raise OptionError for ``auto`` with a cost model that measures."""
        if self.count is None:
            refuse_measuring(prices, "`micro_batch` auto", "give simulator, or say how many")

    def apply(self, network: Network, setting: Setting) -> MicroBatched:
        """The divided network; raises OptionError where the batch or no block can be divided into equal parts."""
        batch = common_batch(network.graph)
        if batch is None:
            raise OptionError(
                f"`micro_batch`: the inputs of {network.name!r} have no batch in common; leave it out, or load "
                "one that has"
            )
        narrow, limit = narrow_blocks(network), setting.options.workspace_limit_bytes
        if self.count is None:
            self.check(setting.prices, setting.scheduler)
            found = _chosen(narrow, setting)
        else:
            found = _in_equal_parts(narrow, self.count, batch, JOINED if limit is None else JOINED_LIMITED)
        # An undivided network stays as it was, with blocks of any number of units.
        return found if found.parts or found.units else replace(found, network=network)


def _chosen(network: Network, setting: Setting) -> MicroBatched:
    """The blocks in as many micro-batches as is fastest. While blocks are too wide for some, they are halved and the
    search begins anew.
    """
    limited = setting.limited(network)
    found = _searched(network, setting, limited, None)
    wide, size = found.wide, max(len(block.units) for block in network.blocks)
    while wide and not found.interrupted and size > 2:
        size = -(-size // 2)
        try:
            other = _searched(split_blocks(network, size), setting, limited, size)
        except KeyboardInterrupt:
            return replace(found, interrupted=True)
        wide, before_us, seen = other.wide, found.before_us, found.seen + other.seen
        best = min(found, other, key=lambda each: each.after_us or inf)
        found = replace(best, before_us=before_us, seen=seen, interrupted=other.interrupted)
    return found


def _searched(network: Network, setting: Setting, limited: Setting, max_block: int | None) -> MicroBatched:
    """The best numbers for blocks that were split at ``max_block`` units; after an interrupt, of those tried."""
    cost = BySchedule(limited.prices, setting.scheduler, limited.options, SearchMemo(limited.prices))
    bar, has_limit = setting.progress("micro-batches (ways)"), setting.options.workspace_limit_bytes is not None
    choices = DivisionChoices(cost, setting.scheduler, has_limit, lambda seen: bar(seen, seen), max_block)
    choices.way_us(network, choices.given(network))
    try:
        choices.search(network)
    except KeyboardInterrupt:
        return choices.outcome(network, interrupted=True)
    return choices.outcome(network)


def _in_equal_parts(network: Network, count: int, batch: int, joined: int) -> MicroBatched:
    if batch % count:
        fitting = [str(size) for size in range(2, min(batch, 64) + 1) if batch % size == 0]
        remedy = f"give {AUTO} or one of {', '.join(fitting)}" if fitting else "load a larger `batch`"
        raise OptionError(f"`micro_batch` {count}: a batch of {batch} has no {count} equal parts; {remedy}")
    parts = {block.name: count for block in network.blocks if count > 1 and divisible(network, block, count)}
    if count > 1 and not parts:
        raise OptionError(
            f"`micro_batch` {count}: no block of {network.name!r} can be divided: its operators combine images, "
            "or blocks have too many units; give less, or a smaller `max_block`"
        )
    division = Division(parts, joined)
    return MicroBatched(with_micro_batches(network, division), parts, divided_units(network, parts))


#: Number of micro-batches of each block.
Counts = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Divisions to try of each block of a network, and its approximate number of transitions undivided."""

    choices: tuple[Counts, ...]
    undivided: Mapping[str, float]
    wide: int

    def most(self, count: int) -> Counts:
        """Each block in as many as may be tried, up to a number."""
        return tuple(max(own for own in choices if own <= count) for choices in self.choices)


class DivisionChoices(Choices[int]):
    """Cost of a network with the best number of micro-batches for each block, by a scheduler. The search begins
    undivided, and with as many as possible. Blocks of the network are split at ``max_block`` units.
    """

    def __init__(
        self,
        inner: GraphCost,
        scheduler: str,
        limited: bool = False,
        tell: Callable[[int], None] = ignore,
        max_block: int | None = None,
    ) -> None:
        super().__init__(inner, tell)
        self.max_block = max_block
        self.most_transitions = MOST_LIMITED_TRANSITIONS if limited else MOST_TRANSITIONS
        self.joined = JOINED_LIMITED if limited else JOINED
        self.searches = scheduler != "sequential"
        self._blocks: dict[Network, _Blocks] = {}
        #: By key of a problem, whether it is searched; and about how many transitions it has in so many micro-batches.
        self._searchable: dict[str, bool] = {}
        self._transitions: dict[tuple[str, int], float] = {}

    @staticmethod
    def fits(network: Network) -> bool:
        """True if there is anything to choose."""
        return narrow_blocks(network) is network and (common_batch(network.graph) or 1) > 1

    def blocks(self, network: Network) -> _Blocks:
        if network not in self._blocks:
            choices: list[Counts] = []
            undivided: dict[str, float] = {}
            wide = 0
            tried = () if common_batch(network.graph) is None else TRIED
            for block in network.blocks:
                problem = ScheduleProblem.of_block(network, block)
                undivided[block.name] = self._transitions_of(problem, 1)
                counts = [count for count in tried if divisible(network, block, count)]
                narrow = [count for count in counts if self._is_narrow(problem, count)]
                choices.append((1, *narrow))
                wide += len(narrow) < len(counts)
            self._blocks[network] = _Blocks(tuple(choices), undivided, wide)
        return self._blocks[network]

    def _is_narrow(self, problem: ScheduleProblem, count: int) -> bool:
        return not self.searches or self._transitions_of(problem, count) <= self.most_transitions

    def _transitions_of(self, problem: ScheduleProblem, count: int) -> float:
        key = problem.key, count
        if key not in self._transitions:
            self._transitions[key] = estimated_transitions(problem, count)
        return self._transitions[key]

    def keys(self, network: Network) -> list[tuple[str, ...]]:
        nodes, units = network.graph.nodes, network.units
        return [
            tuple(nodes[node].name for unit in block.units for node in units[unit].nodes) for block in network.blocks
        ]

    def options(self, network: Network) -> tuple[Counts, ...]:
        return self.blocks(network).choices

    def given(self, network: Network) -> Counts:
        return (1,) * len(network.blocks)  # known without looking at the blocks, which takes time

    def starts(self, network: Network) -> Iterator[Counts]:
        blocks = self.blocks(network)
        yield from (blocks.most(count) for count in TRIED)

    def moved(self, way: Counts, like: Network, network: Network) -> Counts:
        counts = {name: count for nodes, count in zip(self.keys(like), way, strict=True) for name in nodes}
        moved = []
        for nodes, choices in zip(self.keys(network), self.options(network), strict=True):
            count = next((counts[name] for name in nodes if name in counts), 1)
            moved.append(count if count in choices else 1)
        return tuple(moved)

    def made(self, network: Network, way: Counts) -> Network | None:
        try:
            made = self.division(network, way).of(network)
        except GraphError:  # views of other blocks take one beyond a problem's size
            return None
        searchable = not self.searches or all(self._is_searchable(network, made, block) for block in made.blocks)
        return made if searchable else None

    def _is_searchable(self, network: Network, made: Network, block: Block) -> bool:
        """True if a block, with views of other blocks, has about as few transitions as requested."""
        problem = ScheduleProblem.of_block(made, block).in_order()
        if problem.key not in self._searchable:
            own = self.blocks(network).undivided.get(block.name, 0.0)
            most = WITH_VIEWS * max(self.most_transitions, self.joined, own)
            found = estimated_transitions(problem, 1)
            self._searchable[problem.key] = found <= most and (found < inf or own == inf)
        return self._searchable[problem.key]

    def division(self, network: Network, way: Counts) -> Division:
        parts = {block.name: count for block, count in zip(network.blocks, way, strict=True) if count > 1}
        return Division(parts, self.joined, max_block=self.max_block)

    def applied(self, network: Network, to: Network) -> tuple[Network, Mapping[str, int]]:
        division = self.division(network, self.best(network))
        return with_micro_batches(to, division), divided_units(to, division.parts)

    def outcome(self, network: Network, interrupted: bool = False) -> MicroBatched:
        """The network in the best of the ways that were tried."""
        division, tried = self.division(network, self.best(network)), self.tried(network)
        made, units = self.applied(network, network)
        return MicroBatched(
            made,
            division.parts,
            units,
            tried[self.given(network)][0],
            tried[self.best(network)][0],
            self.seen,
            self._blocks[network].wide if network in self._blocks else 0,  # not looked at before an interrupt
            interrupted,
        )


def with_micro_batches(network: Network, division: Division) -> Network:
    """The divided network, whose source says how. Raises OptionError for a network that was divided before."""
    if not division.parts and not division.units:
        return network
    if OPTION in dict(network.source.options):
        raise OptionError(f"network {network.name!r} is in micro-batches already; divide the model that it was made of")
    return with_option(replace(division.of(network), source=network.source), OPTION, division.to_json())


def again(network: Network, text: str) -> Network:
    """The network divided as the text of its source says; raises ScheduleError for an invalid text."""
    try:
        division = Division.of_json(read_json(text))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ScheduleError(
            f"option {OPTION!r} of the schedule's source names no micro-batches of blocks or units; write it anew"
        ) from None
    return with_micro_batches(network, division)
