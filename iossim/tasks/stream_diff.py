"""Two schedules of one network, at least one of streams, as the plans that run them: which units run in another stream
or beside others, what each takes on the setup of either, and their critical paths.

Stages are taken with their barriers, a stream a group. Streams have no names: those of the second schedule are paired
with those of the first, the two that have most units in common before all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from iossim.execution.engine import Engine
from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.tasks.schedule_diff import CrossPrices, check_same_units, have_same_prices, prices_of, schedule_json
from iossim.tasks.stream_explain import LaunchExplanation, StreamExplanation, explain_plan
from iossim.transforms.replay import network_of

#: Kernels that share less time than this, us, are one after the other.
_ROUNDING_US = 1e-6


@dataclass(frozen=True)
class Setup:
    """Both schedules as they run where one of them was priced."""

    first: StreamExplanation
    second: StreamExplanation


@dataclass(frozen=True)
class UnitChange:
    """A unit in both schedules: ``second_stream`` by its own number, ``moved`` where that is not paired with the first;
    starts are those of its launch. ``beside_first_alone`` are units that it shares time with in the first schedule,
    and in the second not.
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
class StreamDiff:
    """What differs between two schedules as plans. With the same prices there is one setup, that of the first; a setup
    that runs no streams is None. ``unknown`` says what cannot be told.
    """

    first: AnySchedule
    second: AnySchedule
    same_prices: bool
    at_first: Setup | None
    at_second: Setup | None
    unknown: tuple[str, ...]

    @property
    def shown(self) -> Setup:
        """Where units and critical paths are compared: on the setup of the first, where that runs streams."""
        setup = self.at_first or self.at_second
        assert setup is not None  # as one of the schedules has streams
        return setup

    @cached_property
    def pairs(self) -> tuple[frozenset[frozenset[str]], frozenset[frozenset[str]]]:
        """The pairs of units that share time, in the first and in the second."""
        return _side_by_side(self.shown.first), _side_by_side(self.shown.second)

    @cached_property
    def units(self) -> tuple[UnitChange, ...]:
        """All units, in the order in which the first schedule starts them."""
        own, other = map(_launch_of, self._runs)
        paired = _paired(own, other)
        lost, gained = (_neighbours(pairs - rest) for pairs, rest in (self.pairs, self.pairs[::-1]))
        return tuple(
            UnitChange(
                unit,
                was.stream,
                other[unit].stream,
                paired.get(was.stream) != other[unit].stream,
                was.start_us,
                other[unit].start_us,
                tuple(one for one in own if one in lost.get(unit, ())),
                tuple(one for one in own if one in gained.get(unit, ())),
            )
            for unit, was in own.items()
        )

    @property
    def moved(self) -> list[str]:
        return [one.unit for one in self.units if one.moved]

    @property
    def merged(self) -> tuple[list[str], list[str]]:
        """The stacked convolutions of the first that the second has not, and the other way round."""
        return _alone(*([name for name, units in run.units_of.items() if len(units) > 1] for run in self._runs))

    @property
    def critical_alone(self) -> tuple[list[str], list[str]]:
        """The units on the critical path of the first alone, and of the second alone."""
        return _alone(*([unit for one in run.critical for unit in run.units_of[one.unit]] for run in self._runs))

    @property
    def _runs(self) -> tuple[StreamExplanation, StreamExplanation]:
        return self.shown.first, self.shown.second

    @property
    def cross(self) -> CrossPrices | None:
        """As plans; whether the two tie is not known."""
        if self.at_first is None or self.at_second is None:
            return None
        return CrossPrices(self.at_second.first.latency_us, self.at_first.second.latency_us, None, None)

    @property
    def regrets(self) -> tuple[float, float] | None:
        """What each plan loses on the other's setup, as a fraction (negative: better there); None if unknown."""
        here, there = self.at_first, self.at_first if self.same_prices else self.at_second
        if here is None or there is None:
            return None
        return _loss(there.first, there.second), _loss(here.second, here.first)

    def to_json(self) -> dict[str, Any]:
        """The keys that two schedules of stages have, where they apply; units, and both plans on each setup."""
        setups = {"first": self.at_first, "second": self.at_second}
        first, second = self.pairs
        return {
            "first": schedule_json(self.first),
            "second": schedule_json(self.second),
            "same_prices": self.same_prices,
            "tie": None,
            "cross": self.cross and asdict(self.cross),
            "unknown": list(self.unknown),
            "regrets": None if self.regrets is None else list(self.regrets),
            "moved_units": self.moved,
            "merged_alone": list(self.merged),
            "side_by_side": {"first": len(first), "second": len(second), "both": len(first & second)},
            "critical_alone": list(self.critical_alone),
            "units": [asdict(one) for one in self.units],
            "plans": {
                at: setup and {"first": _plan_json(setup.first), "second": _plan_json(setup.second)}
                for at, setup in setups.items()
            },
        }


def diff_streams(first: AnySchedule, second: AnySchedule, model: str | None = None) -> StreamDiff:
    """Compare two schedules of one network, one of which at least has streams; ``model`` is where it is now.

    Raises ScheduleError if they hold different units, or one does not fit where the other was priced.
    """
    own, other = (one.stages if isinstance(one, Schedule) else one.launches for one in (first, second))
    check_same_units(own, other)
    same_prices = have_same_prices(first, second)
    unknown = ["the noise, which is known for schedules of stages only"]
    setups: dict[str, Setup] = {}
    for name, at in {"A": first, "B": second}.items():
        if reason := _runs_no_streams(at):
            unknown.append(f"what streams take on the setup of {name}: {reason}")
        elif name == "A" or not same_prices:
            setups[name] = Setup(_explained(first, at, model), _explained(second, at, model))
    return StreamDiff(first, second, same_prices, setups.get("A"), setups.get("B"), tuple(unknown))


def _runs_no_streams(at: AnySchedule) -> str:
    """Why streams have no price where a schedule was priced; nothing where they have."""
    name = at.cost_model.get("name", "")
    if not name.startswith("simulator"):
        return f"it was priced by {name!r}, which prices stages alone"
    divides = at.engine and Engine.named(at.engine).facts.divides_sms
    return f"engine {at.engine} divides stages, and streams have none" if divides else ""


def _explained(one: AnySchedule, at: AnySchedule, model: str | None) -> StreamExplanation:
    """The plan of a schedule on the setup of another; of the same graph it keeps its own blocks."""
    network = network_of(one if one.graph_hash == at.graph_hash else at, model)
    moved = one.model_copy(update={"graph_hash": network.graph.hash})
    return explain_plan(moved, network, prices_of(at, network))


def _launch_of(run: StreamExplanation) -> dict[str, LaunchExplanation]:
    return {unit: one for one in run.launches for unit in run.units_of[one.unit]}


def _paired(own: Mapping[str, LaunchExplanation], other: Mapping[str, LaunchExplanation]) -> dict[int, int]:
    """The stream of the second schedule that each of the first is taken to be."""
    common: dict[tuple[int, int], int] = {}
    for unit, one in own.items():
        both = one.stream, other[unit].stream
        common[both] = common.get(both, 0) + 1
    found: dict[int, int] = {}
    for was, now in sorted(common, key=lambda both: (-common[both], both)):
        if was not in found and now not in found.values():
            found[was] = now
    return found


def _side_by_side(run: StreamExplanation) -> frozenset[frozenset[str]]:
    """Pairs of units of different launches that share time."""
    pairs: set[frozenset[str]] = set()
    running: list[LaunchExplanation] = []
    for launch in run.launches:  # in the order of their starts
        running = [one for one in running if one.end_us > launch.start_us + _ROUNDING_US]
        if launch.end_us > launch.start_us + _ROUNDING_US:
            near = [unit for one in running for unit in run.units_of[one.unit]]
            pairs |= {frozenset((unit, one)) for unit in run.units_of[launch.unit] for one in near}
            running.append(launch)
    return frozenset(pairs)


def _neighbours(pairs: Iterable[frozenset[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for pair in pairs:
        for unit in pair:
            found.setdefault(unit, set()).update(pair - {unit})
    return found


def _alone(first: list[str], second: list[str]) -> tuple[list[str], list[str]]:
    return [one for one in first if one not in second], [one for one in second if one not in first]


def _loss(one: StreamExplanation, other: StreamExplanation) -> float:
    return one.latency_us / other.latency_us - 1.0 if other.latency_us else 0.0


def _plan_json(run: StreamExplanation) -> dict[str, Any]:
    told = run.to_json()
    return {name: told[name] for name in ("latency_us", "critical_path", "critical_path_us")}
