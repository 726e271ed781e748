"""Changes of a network for its schedule: the common contract of rewriting, joins and micro-batching.

A transform is a frozen value of its options. It is applied to a network for a scheduler at given prices; the outcome
holds the changed network, whose source says how it was made, so that :mod:`iossim.transforms.replay` makes it again
from a saved schedule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol, TypeVar

from iossim.base.errors import StartProgress, silent
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule, Schedule, StreamSchedule
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions

#: Transforms are applied one after the other, or searched together (:mod:`iossim.transforms.joint`).
SearchOrder = Literal["in-turn", "joint"]
#: A schedule of either kind that is returned changed.
ScheduleT = TypeVar("ScheduleT", Schedule, StreamSchedule, AnySchedule)


@dataclass(frozen=True, eq=False)
class Setting:
    """The purpose of a change: a scheduler at given prices. ``memo`` has what earlier searches at them found."""

    prices: CostModel
    scheduler: str
    options: SearchOptions
    progress: StartProgress = silent
    memo: SearchMemo | None = None

    def limited(self, network: Network) -> Setting:
        """The setting with any workspace limit of its options moved into the prices of a network."""
        if (limit := self.options.workspace_limit_bytes) is None:
            return self
        from iossim.cost.workspace_limit import workspace_limited  # most settings have no limit

        options = replace(self.options, workspace_limit_bytes=None)
        return replace(self, prices=workspace_limited(self.prices, network, limit), options=options)


class Outcome:
    """A network as a transform leaves it, and a report of the change.

    ``name`` is that of the transform in machine-readable results. ``interrupted``: a KeyboardInterrupt ended the
    search, and the network is the best that was found until then.
    """

    name: ClassVar[str]
    network: Network
    interrupted: bool

    @property
    def alternatives(self) -> Mapping[str, Network]:
        """The networks that a comparison shows beside the given one, by their names in tables; ``network`` is last."""
        return {}

    def sentence(self) -> str:
        """A sentence on what the transform did, with option names in backticks; empty where there was nothing to do."""
        raise NotImplementedError

    def remark(self) -> str:
        """Remark in a schedule of ``network``; empty for none."""
        return self.sentence()

    def figures(self) -> dict[str, object]:
        """Entries of machine-readable results besides the sentence."""
        return {}

    def noted(self) -> dict[str, object]:
        """Options of a schedule of ``network`` that say what was done."""
        return {}

    def remarked(self, schedule: ScheduleT) -> ScheduleT:
        """The schedule of ``network``, with a remark that says what the transform did."""
        remarks = [*schedule.remarks, *filter(None, [self.remark()])]
        return schedule.model_copy(update={"remarks": remarks, "options": {**schedule.options, **self.noted()}})

    def to_json(self) -> dict[str, object]:
        return {**self.figures(), "sentence": self.sentence()}


def with_option(network: Network, name: str, value: object) -> Network:
    """The network with an option in its source that says, as JSON, how a transform made it."""
    option = (name, json.dumps(value, separators=(",", ":")))
    return replace(network, source=replace(network.source, options=(*network.source.options, option)))


class Transform(Protocol):
    """A change of a network for its schedule, with its options."""

    def check(self, prices: CostModel, scheduler: str) -> None:
        """Raise OptionError where it cannot be combined with such prices or with the scheduler; by default all can."""
        return

    def apply(self, network: Network, setting: Setting) -> Outcome:
        """Change the network for the scheduler; raises OptionError if that is impossible."""
        ...


@dataclass(frozen=True, eq=False)
class Unchanged(Outcome):
    """The outcome of a transform that was interrupted before it knew any network but the one it was given."""

    network: Network
    interrupted: bool = True

    name = "unchanged"

    def sentence(self) -> str:
        return "The network is as it was: what was to change it was interrupted."


@dataclass(frozen=True, eq=False)
class Changed:
    """A network after all transforms, with the outcome of each."""

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


def change(network: Network, transforms: Sequence[Transform], setting: Setting) -> Changed:
    """Apply transforms one after the other, each to what the one before it leaves; none after an interrupted one."""
    outcomes: list[Outcome] = []
    before = network
    for transform in transforms:
        try:
            outcomes.append(transform.apply(network, setting))
        except KeyboardInterrupt:
            outcomes.append(Unchanged(network))
        network = outcomes[-1].network
        if outcomes[-1].interrupted:
            break
    return Changed(changed_from(before, network), tuple(outcomes))


def changed_from(before: Network, network: Network) -> Network:
    """``network`` with what it was made of as ``given``, to which its speed-up is relative."""
    return network if network is before else replace(network, given=before.given or before)
