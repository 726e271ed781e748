"""Two schedules of one network, at least one of streams, as the plans that run them: units that run in another stream
or beside others, each one's latency on the setup of either, and their critical paths.

Stages keep their barriers, one stream per group. Streams have no names: those of the second schedule are paired with
those of the first, starting with the two that have most units in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from iossim.base.errors import OptionError
from iossim.cost.capabilities import StreamCostModel
from iossim.cost.model import CostModel
from iossim.execution.engine import Engine
from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.tasks.own_prices import own_prices
from iossim.tasks.schedule_diff import CrossPrices, Difference, ScheduleDiff, common_parts, diff, have_same_prices
from iossim.tasks.stream_explain import LaunchExplanation, StreamExplanation, explain_plan
from iossim.transforms.replay import in_setup

Pairs = frozenset[frozenset[str]]

#: Kernels that overlap for less than this, us, run one after the other.
_ROUNDING_US = 1e-6


@dataclass(frozen=True)
class UnitChange:
    """A unit in both schedules: ``second_stream`` by its own number, ``moved`` where that is not paired with the first;
    starts are those of its launch. ``beside_first_alone`` are units that it overlaps in the first schedule only.
    """

    unit: str
    first_stream: int
    second_stream: int
    moved: bool
    first_start_us: float
    second_start_us: float
    beside_first_alone: tuple[str, ...]
    beside_second_alone: tuple[str, ...]

    @property
    def changed(self) -> bool:
        return self.moved or bool(self.beside_first_alone or self.beside_second_alone)


@dataclass(frozen=True)
class StreamDiff(Difference[AnySchedule]):
    """Difference of two schedules as plans, whose latencies here are those of ``first`` and ``second``.

    ``runs`` are both on the setup of the first, or of the second if that of the first runs no streams.
    """

    runs: tuple[StreamExplanation, StreamExplanation]

    @cached_property
    def _units_of(self) -> list[dict[str, list[str]]]:
        """Units of each launch by its name, in the first and in the second, named by their parts."""
        return [
            {name: [part for unit in units for part in parts[unit]] for name, units in run.units_of.items()}
            for run, parts in zip(self.runs, self.parts, strict=True)
        ]

    @cached_property
    def pairs(self) -> tuple[Pairs, Pairs]:
        """Pairs of units that overlap in time, in the first and in the second."""
        first, second = map(_side_by_side, self.runs, self._units_of)
        return first, second

    @cached_property
    def units(self) -> tuple[UnitChange, ...]:
        """All units, in the order in which the first schedule starts them."""
        own, other = (
            {unit: one for one in run.launches for unit in units_of[one.unit]}
            for run, units_of in zip(self.runs, self._units_of, strict=True)
        )
        paired = _paired(own, other)
        alone = self.pairs[0] - self.pairs[1], self.pairs[1] - self.pairs[0]
        found = []
        for unit, was in own.items():
            now = other[unit]
            lost, gained = (tuple(one for one in own if frozenset((unit, one)) in pairs) for pairs in alone)
            moved = paired.get(was.stream) != now.stream
            found.append(UnitChange(unit, was.stream, now.stream, moved, was.start_us, now.start_us, lost, gained))
        return tuple(found)

    @property
    def moved(self) -> list[str]:
        return [one.unit for one in self.units if one.moved]

    @property
    def merged_alone(self) -> tuple[list[str], list[str]]:
        """Stacked convolutions that only the first has, and those that only the second has."""
        return _alone(*([name for name, units in run.units_of.items() if len(units) > 1] for run in self.runs))

    @property
    def critical_alone(self) -> tuple[list[str], list[str]]:
        """Units on the critical path of the first only, and of the second only."""
        runs = zip(self.runs, self._units_of, strict=True)
        return _alone(*([unit for one in run.critical for unit in units_of[one.unit]] for run, units_of in runs))

    def to_json(self) -> dict[str, object]:
        """Keys shared with the comparison of two schedules of stages, where they apply, and those of plans."""
        first, second = self.pairs
        told = ("latency_us", "critical_path", "critical_path_us")
        return {
            **super().to_json(),
            "moved_units": self.moved,
            "merged_alone": list(self.merged_alone),
            "critical_alone": list(self.critical_alone),
            "pairs_side_by_side": {"first": len(first), "second": len(second), "both": len(first & second)},
            "plans": [{name: run.to_json()[name] for name in told} for run in self.runs],
            "units": [asdict(one) for one in self.units],
        }


def diff_any(first: AnySchedule, second: AnySchedule, model: str | None = None) -> ScheduleDiff | StreamDiff:
    """Compare two schedules of stages, or two of which one is of streams, by their plans."""
    if isinstance(first, Schedule) and isinstance(second, Schedule):
        return diff(first, second, model)
    return diff_streams(first, second, model)


def diff_streams(first: AnySchedule, second: AnySchedule, model: str | None = None) -> StreamDiff:
    """Compare two schedules of one network, at least one of streams; ``model`` is its current path.

    Raises ScheduleError if they hold different ops, or one does not fit where the other was priced.
    """
    parts = common_parts(first, second, model)
    same_prices = have_same_prices(first, second)
    unknown = ["the noise, which is known for schedules of stages only"]
    runs: dict[str, tuple[StreamExplanation, StreamExplanation]] = {}
    for name, at in {"A": first, "B": second}.items():
        prices = own_prices(at)
        if reason := _runs_no_streams(at, prices):
            unknown.append(
                f"what plans take on the setup of {name}: {reason}; the latency of {name} is as it was saved"
            )
        elif name == "B" and same_prices:
            runs[name] = runs["A"]
        else:
            assert prices is not None
            runs[name] = _explained(first, at, prices, model), _explained(second, at, prices, model)
    if not runs:
        raise OptionError(f"not known is {unknown[1]}; price one of the schedules by a cost model of streams")
    cross = None
    if len(runs) == 2 and not same_prices:
        cross = CrossPrices(runs["B"][0].latency_us, runs["A"][1].latency_us, None, None)
    if "A" in runs:
        first = first.model_copy(update={"latency_us": runs["A"][0].latency_us})
    if "B" in runs:
        second = second.model_copy(update={"latency_us": runs["B"][1].latency_us})
    return StreamDiff(first, second, same_prices, None, cross, tuple(unknown), parts, next(iter(runs.values())))


def _runs_no_streams(at: AnySchedule, prices: CostModel | None) -> str:
    """Reason why streams have no price where a schedule was priced; empty if they have one."""
    if not isinstance(prices, StreamCostModel):
        return f"it was priced by {at.cost_model.get('name', '')!r}, which prices stages alone"
    divides = at.engine and Engine.named(at.engine).facts.divides_sms
    return f"engine {at.engine} divides stages, and streams have none" if divides else ""


def _explained(one: AnySchedule, at: AnySchedule, prices: CostModel, model: str | None) -> StreamExplanation:
    """Plan of a schedule on the setup of another."""
    return explain_plan(*in_setup(one, at.source.to_source(model), model), prices)


def _paired(own: Mapping[str, LaunchExplanation], other: Mapping[str, LaunchExplanation]) -> dict[int, int]:
    """Stream of the second schedule paired with each of the first."""
    common: dict[tuple[int, int], int] = {}
    for unit, one in own.items():
        both = one.stream, other[unit].stream
        common[both] = common.get(both, 0) + 1
    found: dict[int, int] = {}
    for was, now in sorted(common, key=lambda both: (-common[both], both)):
        if was not in found and now not in found.values():
            found[was] = now
    return found


def _side_by_side(run: StreamExplanation, units_of: Mapping[str, Sequence[str]]) -> Pairs:
    """Pairs of units of different launches that overlap in time."""
    pairs: set[frozenset[str]] = set()
    running: list[LaunchExplanation] = []
    for launch in run.launches:  # in the order of their starts
        running = [one for one in running if one.end_us > launch.start_us + _ROUNDING_US]
        if launch.end_us > launch.start_us + _ROUNDING_US:
            near = [unit for one in running for unit in units_of[one.unit]]
            pairs |= {frozenset((unit, one)) for unit in units_of[launch.unit] for one in near}
            running.append(launch)
    return frozenset(pairs)


def _alone(first: list[str], second: list[str]) -> tuple[list[str], list[str]]:
    return [one for one in first if one not in second], [one for one in second if one not in first]
