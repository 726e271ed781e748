"""Changes of a network for its schedule: the common contract of rewriting, joins and micro-batching.

A transform is a frozen value of its options. It is applied to a network for a scheduler at given prices; the outcome
holds the changed network, whose source says how it was made, so that :mod:`iossim.transforms.replay` makes it again
from a saved schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule, Schedule, StreamSchedule
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions
from iossim.search.scheduler import StartProgress

#: Transforms are applied one after the other, or searched together (:mod:`iossim.transforms.joint`).
SearchOrder = Literal["in-turn", "joint"]
#: A schedule of either kind that is returned changed.
ScheduleT = TypeVar("ScheduleT", Schedule, StreamSchedule, AnySchedule)


class Outcome(Protocol):
    """A network as a transform leaves it, and what there is to say of it."""

    @property
    def name(self) -> str:
        """Name of the transform in machine-readable results."""
        ...

    @property
    def network(self) -> Network: ...

    @property
    def interrupted(self) -> bool:
        """Whether a KeyboardInterrupt ended the search; the network is the best that was found until then."""
        ...

    @property
    def alternatives(self) -> Mapping[str, Network]:
        """The networks that a comparison shows beside the given one, by their names in tables; ``network`` is last."""
        ...

    def sentence(self) -> str:
        """A sentence on what the transform did, with option names in backticks; empty where there was nothing to do."""
        ...

    def remarked(self, schedule: ScheduleT) -> ScheduleT:
        """The schedule of ``network``, with a remark that says what the transform did."""
        ...

    def to_json(self) -> dict[str, Any]: ...


class Transform(Protocol):
    """A change of a network for its schedule, with its options."""

    def check(self, prices: CostModel, scheduler: str) -> None:
        """Raise OptionError where it cannot be combined with such prices or with the scheduler."""
        ...

    def apply(
        self,
        network: Network,
        prices: CostModel,
        scheduler: str,
        options: SearchOptions,
        progress: StartProgress,
        memo: SearchMemo | None = None,
    ) -> Outcome:
        """The network that the scheduler makes the most of; ``memo`` holds what earlier searches at the prices found.
        Raises OptionError where the network cannot be changed.
        """
        ...


@dataclass(frozen=True, eq=False)
class Unchanged:
    """The outcome of a transform that was interrupted before it knew any network but the one it was given."""

    network: Network

    name = "unchanged"
    interrupted = True

    @property
    def alternatives(self) -> Mapping[str, Network]:
        return {}

    def sentence(self) -> str:
        return "The network is as it was: what was to change it was interrupted."

    def remarked(self, schedule: ScheduleT) -> ScheduleT:
        return schedule.model_copy(update={"remarks": [*schedule.remarks, self.sentence()]})

    def to_json(self) -> dict[str, Any]:
        return {"sentence": self.sentence()}


@dataclass(frozen=True, eq=False)
class Changed:
    """A network behind all transforms, with the outcome of each."""

    network: Network
    outcomes: tuple[Outcome, ...] = ()

    @property
    def interrupted(self) -> bool:
        return any(outcome.interrupted for outcome in self.outcomes)

    def remarked(self, schedule: ScheduleT) -> ScheduleT:
        """The schedule of ``network`` with the remark of each outcome."""
        for outcome in self.outcomes:
            schedule = outcome.remarked(schedule)
        return schedule


def change(
    network: Network,
    transforms: Sequence[Transform],
    prices: CostModel,
    scheduler: str,
    options: SearchOptions,
    progress: StartProgress,
    memo: SearchMemo | None = None,
) -> Changed:
    """Apply transforms one after the other, each to what the one before it leaves; none behind an interrupted one."""
    outcomes: list[Outcome] = []
    for transform in transforms:
        try:
            outcomes.append(transform.apply(network, prices, scheduler, options, progress, memo))
        except KeyboardInterrupt:
            outcomes.append(Unchanged(network))
        network = outcomes[-1].network
        if outcomes[-1].interrupted:
            break
    return Changed(network, tuple(outcomes))
