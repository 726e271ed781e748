"""Two schedules of one network, stage by stage: the units that run elsewhere, and the difference in time.

Both are paths through the same lattice of states; between the states that both visit are *passages*, and only these can
differ. Units are matched by name, so that schedules for two devices or batch sizes can be compared; each keeps the
prices that it was saved with.

The joins of branches of a model may be fused into products for one schedule, and apart for another. Where their units
differ, *parts* are matched: the ops that share a unit in both schedules; each unit of either is made of one or several.
A part has the name of the unit that it is in either schedule, or of its last op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Generic, TypeVar

from iossim.base.errors import ScheduleError
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.prediction.schedule_interval import schedule_errors
from iossim.schedule.batch import Strategy
from iossim.schedule.fit import fit
from iossim.schedule.schedule import AnySchedule, SavedSchedule, Schedule, Stage, StreamSchedule
from iossim.search.assemble import reprice
from iossim.tasks.explain import cost_us, schedule_facts
from iossim.tasks.own_prices import own_prices
from iossim.transforms.replay import in_setup, network_of

#: Parts of each unit of a schedule, in topological order.
Parts = Mapping[str, tuple[str, ...]]


def common_parts(first: AnySchedule, second: AnySchedule, model: str | None = None) -> tuple[Parts, Parts]:
    """The parts of two schedules; with the same units in both, each unit is one.

    Raises ScheduleError unless both hold the same ops, and the errors of loading where the units differ.
    """
    ours, theirs = (
        {unit for each in (one.stages if isinstance(one, Schedule) else one.launches) for unit in each.units}
        for one in (first, second)
    )
    if ours == theirs:
        alike = {unit: (unit,) for unit in ours}
        return alike, alike
    networks = [network_of(one, model) for one in (first, second)]
    ops = [node.name for node in networks[0].graph.nodes]
    if ops != [node.name for node in networks[1].graph.nodes]:
        unit = min(ours ^ theirs)
        reason = f"unit {unit!r} is in the {'first' if unit in ours else 'second'} one alone"
        remedy = "give two of the same model, with the same `rewrite` and `micro_batch`"
        raise ScheduleError(f"the schedules belong to different networks: {reason}; {remedy}")
    own, other = ({node: unit.name for unit in network.units for node in unit.nodes} for network in networks)
    last: dict[tuple[str, str], str] = {}
    for node, op in enumerate(ops):
        last.pop((own[node], other[node]), None)  # parts are in the order of their last ops
        last[own[node], other[node]] = op
    counts = [Counter(owners) for owners in zip(*last, strict=True)]
    found: tuple[dict[str, tuple[str, ...]], ...] = {}, {}
    for owners, op in last.items():
        whole = (owner for owner, count in zip(owners, counts, strict=True) if count[owner] == 1)
        name = next(whole, op)
        for parts, owner in zip(found, owners, strict=True):
            parts[owner] = (*parts.get(owner, ()), name)
    return found[0], found[1]


def shared_units(parts: Parts) -> list[tuple[str, ...]]:
    """The units of several parts, which the other schedule has in several units."""
    return [several for several in parts.values() if len(several) > 1]


def in_parts(schedule: Schedule, parts: Parts) -> list[Stage]:
    """The stages of a schedule, with the parts of each unit in its place."""

    def divided(group: list[str]) -> list[str]:
        return [part for unit in group for part in parts[unit]]

    return [stage.model_copy(update={"groups": list(map(divided, stage.groups))}) for stage in schedule.stages]


Either = TypeVar("Either", bound=AnySchedule)


class Change(StrEnum):
    """Change of the stages of a passage, from the first schedule to the second."""

    SAME = "same"
    MERGED = "merged"  # several convolutions became one
    UNMERGED = "unmerged"
    SPLIT = "split"
    JOINED = "joined"
    REARRANGED = "rearranged"
    UNITS = "other units"  # the same ops in the same stage, fused otherwise


@dataclass(frozen=True)
class Passage:
    """Stages of both schedules, by number, between two states that both visit.

    ``moved`` are the units of a rearranged passage in stages without a counterpart in the other schedule.
    """

    block: str
    change: Change
    first_stages: tuple[int, ...]
    second_stages: tuple[int, ...]
    first_us: float
    second_us: float
    moved: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        return self.change is Change.SAME


@dataclass(frozen=True)
class CrossPrices:
    """Both schedules at the prices of each: one made for the first setup, run on the second, and vice versa.

    ``first_at_second_us`` is the first schedule at the second's prices; ``ties`` say whether it and the second one
    differ by less than the noise there, and likewise the second at the first's prices.
    """

    first_at_second_us: float
    second_at_first_us: float
    tie_at_first: bool | None
    tie_at_second: bool | None


@dataclass(frozen=True)
class Difference(Generic[Either]):
    """Difference in time of two schedules of one network.

    ``tie`` says whether their difference is within the noise, if both have the same prices and these predict a device.
    ``cross`` is set if the prices differ, and both were simulated. ``unknown`` lists what cannot be determined.
    ``parts`` are those of the units of each: units are named by them wherever both are compared.
    """

    first: Either
    second: Either
    same_prices: bool
    tie: bool | None
    cross: CrossPrices | None
    unknown: tuple[str, ...]
    parts: tuple[Parts, Parts]

    @property
    def regrets(self) -> tuple[float, float] | None:
        """Loss of each schedule on the other's setup, as a fraction (negative: better there); None if unknown."""
        if self.same_prices:
            there_us = self.first.latency_us, self.second.latency_us
        elif self.cross is not None:
            there_us = self.cross.first_at_second_us, self.cross.second_at_first_us
        else:
            return None
        return self.second.excess(there_us[0]), self.first.excess(there_us[1])

    def to_json(self) -> dict[str, object]:
        return {
            "first": schedule_json(self.first),
            "second": schedule_json(self.second),
            "same_prices": self.same_prices,
            "tie": self.tie,
            "cross": self.cross and asdict(self.cross),
            "unknown": list(self.unknown),
            "regrets": None if self.regrets is None else list(self.regrets),
            "units_alone": list(map(shared_units, self.parts)),
        }


@dataclass(frozen=True)
class ScheduleDiff(Difference[Schedule]):
    """Difference of two schedules of stages."""

    passages: tuple[Passage, ...]

    @property
    def changed(self) -> list[Passage]:
        return [passage for passage in self.passages if not passage.is_same]

    @property
    def decided_otherwise(self) -> tuple[int, int]:
        changed = self.changed
        return sum(len(each.first_stages) for each in changed), sum(len(each.second_stages) for each in changed)

    @property
    def moved(self) -> list[str]:
        return [unit for passage in self.passages for unit in passage.moved]

    def to_json(self) -> dict[str, object]:
        return {
            **super().to_json(),
            "decided_otherwise": list(self.decided_otherwise),
            "changed_passages": len(self.changed),
            "moved_units": self.moved,
            "passages": [asdict(passage) for passage in self.passages],
        }


def diff(first: Schedule, second: Schedule, model: str | None = None) -> ScheduleDiff:
    """Compare two schedules of one network; ``model`` is its current path, if its file has moved.

    Raises ScheduleError if they hold different ops, and the errors of loading where the noise needs the network.
    """
    parts = common_parts(first, second, model)
    passages = _passages(first, second, parts)
    same_prices = have_same_prices(first, second)
    at_first, at_second = own_prices(first), own_prices(second)
    if at_first is None or at_second is None:
        unknown = ["the noise, which is known for simulated latencies only"]
        unknown += [] if same_prices else ["what each schedule would take on the other's setup"]
        return ScheduleDiff(first, second, same_prices, None, None, tuple(unknown), parts, passages)
    if same_prices:
        tie = _tie(first, second, network_of(second, model), at_first, model)
        return ScheduleDiff(first, second, True, tie, None, (), parts, passages)
    here, tie_here = _there(second, first, at_first, model)
    there, tie_there = _there(first, second, at_second, model)
    cross = CrossPrices(there, here, tie_here, tie_there)
    return ScheduleDiff(first, second, False, None, cross, (), parts, passages)


def _passages(first: Schedule, second: Schedule, parts: tuple[Parts, Parts]) -> tuple[Passage, ...]:
    own, other = in_parts(first, parts[0]), in_parts(second, parts[1])
    shared = [frozenset(part for unit in shared_units(each) for part in unit) for each in parts]
    blocks = [block for block, _ in first.named_stages]
    found: list[Passage] = []
    left = right = 0
    while left < len(own):
        from_left, from_right = left, right
        left, right = left + 1, right + 1
        done, others = set(own[from_left].units), set(other[from_right].units)
        while done != others:
            # The side that has done less advances; among equals the first.
            if len(done) <= len(others):
                done.update(own[left].units)
                left += 1
            else:
                others.update(other[right].units)
                right += 1
        passage = _passage(blocks[from_left], own, other, range(from_left, left), range(from_right, right))
        if passage.is_same and not done.isdisjoint(shared[0] | shared[1]):
            passage = replace(passage, change=Change.UNITS)
        found.append(passage)
    return tuple(found)


def _passage(block: str, own: Sequence[Stage], other: Sequence[Stage], left: range, right: range) -> Passage:
    was, now = [own[index] for index in left], [other[index] for index in right]
    merged_before = any(stage.strategy is Strategy.MERGE for stage in was)
    merged_now = any(stage.strategy is Strategy.MERGE for stage in now)
    moved: tuple[str, ...] = ()
    if len(was) == len(now) == 1 and was[0].strategy == now[0].strategy:
        change = Change.SAME
    elif len(now) == 1 and merged_now:
        change = Change.MERGED
    elif len(was) == 1 and merged_before:
        change = Change.UNMERGED
    elif len(was) == 1:
        change = Change.SPLIT
    elif len(now) == 1:
        change = Change.JOINED
    else:
        change = Change.REARRANGED
        moved = _moved(was, now)
    return Passage(block, change, tuple(left), tuple(right), cost_us(was), cost_us(now), moved)


def _moved(was: Sequence[Stage], now: Sequence[Stage]) -> tuple[str, ...]:
    """Units outside the corresponding stages: pairs in the same order, with the most units in common."""
    common = [[len(set(one.units) & set(other.units)) for other in now] for one in was]
    best = [[0] * (len(now) + 1) for _ in range(len(was) + 1)]
    for i in reversed(range(len(was))):
        for j in reversed(range(len(now))):
            best[i][j] = max(common[i][j] + best[i + 1][j + 1], best[i + 1][j], best[i][j + 1])
    stays: set[str] = set()
    i = j = 0
    while i < len(was) and j < len(now):
        if best[i][j] == common[i][j] + best[i + 1][j + 1]:
            stays |= set(was[i].units) & set(now[j].units)
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return tuple(unit for stage in was for unit in stage.units if unit not in stays)


def have_same_prices(first: SavedSchedule, second: SavedSchedule) -> bool:
    return first.cost_model == second.cost_model and first.graph_hash == second.graph_hash


def _there(moved: Schedule, at: Schedule, prices: CostModel, model: str | None) -> tuple[float, bool | None]:
    """Latency of one schedule's stages at the prices of another, and whether they tie with that one's own there."""
    moved, network = in_setup(moved, at.source.to_source(model), model)
    priced = reprice(moved, network, prices)
    return priced.latency_us, _tie(at, priced, network, prices, model)


def _tie(known: Schedule, other: Schedule, network: Network, prices: CostModel, model: str | None) -> bool | None:
    """True where a schedule differs from another one, of ``network``, within the noise; None where that is unknown."""
    try:
        fit(known, network)
        own = network
    except ScheduleError:  # its units are others
        own = network_of(known, model)
    if (errors := schedule_errors(own, prices)) is None:
        return None
    errors.include(network, [other])
    return errors.is_tie(known, other)


def schedule_json(schedule: AnySchedule) -> dict[str, object]:
    """Facts of a schedule, and its stages or streams."""
    if isinstance(schedule, StreamSchedule):
        return schedule_facts(schedule) | schedule.model_dump(include={"streams"})
    stages = [stage.model_dump(exclude={"variants"}) for stage in schedule.stages]
    return schedule_facts(schedule) | {"stages": stages}
