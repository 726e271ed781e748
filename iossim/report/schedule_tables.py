"""Schedules as tables and sentences: of stages, where equal layers are folded, and of streams, with their waits and the
critical path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from iossim.base.display import counted
from iossim.base.tables import Cell, described_table
from iossim.report.search_words import INTERRUPTED, expectation, interval_words, optimality
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import (
    AnySchedule,
    BlockSchedule,
    SavedSchedule,
    Schedule,
    Stage,
    StreamLaunch,
    StreamSchedule,
)

if TYPE_CHECKING:
    from iossim.execution.execution import Execution
    from iossim.tasks.stream_explain import LaunchExplanation, StreamExplanation

_NUMBER = re.compile(r"\d+")
#: Most blocks of a layer that is looked for, and fewest repeats that are folded.
_LONGEST_LAYER, _FEWEST_REPEATS = 6, 2


def schedule_table(schedule: AnySchedule) -> Table:
    """A schedule stage by stage: what runs concurrently (one line per group), and its cost; repeats in one row. One of
    streams has a row for each: its launches in order, each with the events that it waits for in brackets.
    """
    if isinstance(schedule, StreamSchedule):
        return described_table(__package__, "streams", heading(schedule), _stream_rows(schedule))
    rows: list[dict[str, Cell]] = []
    blocks = [(block.name, index == 0) for block in schedule.blocks for index in range(len(block.stages))]
    folds = {fold.first: fold for fold in repeats(schedule)}
    number, stages = 0, schedule.stages
    while number < len(stages):
        fold = folds.get(number)
        shown = stages[number : number + (fold.count if fold else 1)]
        rows.append(
            {
                "stage": number if fold is None else f"{number}-{number + fold.count - 1}",
                "block": fold.blocks if fold else blocks[number][0] if blocks[number][1] else "",
                "boundary_us": sum(stage.boundary_us for stage in shown),
                "latency_us": sum(stage.latency_us for stage in shown),
                "groups": fold.words if fold else stage_words(shown[0], between="\n"),
            }
        )
        number += len(shown)
    return described_table(__package__, "stages", heading(schedule), rows)


def stage_words(stage: Stage, block: str = "", between: str = " | ") -> str:
    """A stage in words: ``a > b | c``: ``>`` in order, ``|`` side by side; ``merge: a + b``. Units' names omit the
    block.
    """
    merge, link = ("merge: ", " + ") if stage.strategy is Strategy.MERGE else ("", " > ")
    own = f"{block}." if block else ""
    groups = [link.join(unit.removeprefix(own) for unit in group) for group in stage.groups]
    return between.join(merge + group for group in groups)


@dataclass(frozen=True, slots=True)
class Repeat:
    """Equal layers, one after another: ``count`` stages from number ``first`` repeat the ``period`` before them."""

    first: int
    count: int
    period: int
    blocks: str

    @property
    def words(self) -> str:
        before = self.first - self.period
        if self.period == 1:
            return f"1 stage each, equal to stage {before}"
        return f"{self.period} stages each, equal to stages {before}-{self.first - 1}"


def repeats(schedule: Schedule) -> list[Repeat]:
    """Layers whose stages equal those of the layer before them but for numbers in names, at least two in a row."""
    keys = [_layer_key(block) for block in schedule.blocks]
    counts = [len(block.stages) for block in schedule.blocks]
    found: list[Repeat] = []
    block = 0
    while block < len(keys):
        ends = {period: _repeated_until(keys, block, period) for period in range(1, _LONGEST_LAYER + 1)}
        period = max(ends, key=lambda one: (ends[one] - one, -one))
        begin, end = block + period, ends[period]
        if end - begin >= _FEWEST_REPEATS * period and any(counts[block:begin]):
            first, last = schedule.blocks[begin].name, schedule.blocks[end - period].name
            of_layer = sum(counts[block:begin])
            found.append(Repeat(sum(counts[:begin]), sum(counts[begin:end]), of_layer, _span_words(first, last)))
            block = end
        else:
            block += 1
    return found


def _layer_key(block: BlockSchedule) -> tuple[object, ...]:
    stages = [
        (stage.strategy, _NUMBER.sub("#", str(stage.groups)), f"{stage.latency_us:.3f} {stage.boundary_us:.3f}")
        for stage in block.stages
    ]
    return _NUMBER.sub("#", block.name), *stages


def _repeated_until(keys: Sequence[object], begin: int, period: int) -> int:
    """End of the whole repeats of the ``period`` blocks at ``begin``."""
    end = begin + period
    while end + period <= len(keys) and keys[end : end + period] == keys[begin : begin + period]:
        end += period
    return end


def _span_words(first: str, last: str) -> str:
    """``layer1-11`` for ``layer1.attention`` and ``layer11.attention``."""
    numbers = zip(_NUMBER.finditer(first), _NUMBER.finditer(last), strict=False)
    one, other = next(((one, other) for one, other in numbers if one[0] != other[0]), (None, None))
    return f"{first} to {last}" if one is None or other is None else f"{first[: one.end()]}-{other[0]}"


def summary(found: AnySchedule) -> str:
    """A schedule in a few words: latency, stages or streams, gap to the bound, and notes."""
    lines = _of_stages(found) if isinstance(found, Schedule) else _of_streams(found)
    lines += [*expectation_lines(found), *(f"note: {note}" for note in found.notes)]
    claim = optimality(found) if isinstance(found, Schedule) else None if found.complete else INTERRUPTED
    return "\n".join([*lines, claim] if claim else lines)


def said(found: AnySchedule) -> list[str]:
    """The lines of :func:`summary`, and the remarks."""
    return [*summary(found).split("\n"), *(f"note: {remark}" for remark in found.remarks)]


def _of_stages(found: Schedule) -> list[str]:
    merged = sum(stage.strategy is Strategy.MERGE for stage in found.stages)
    several = sum(stage.concurrent for stage in found.stages)
    lines = [
        f"{found.latency_us / 1e3:.3f} ms in {counted(len(found.stages), 'stage')}: {several} with concurrent groups "
        f"(at most {found.streams}), {merged} with merged convolutions"
    ]
    if found.proven and found.relaxed_bound_us is not None:
        bound = f"Lower bound of any schedule: {found.relaxed_bound_us / 1e3:.3f} ms"
        lines.append(f"{bound} (critical paths, or the work of one resource)")
    elif found.lower_bound_us is not None and found.gap is not None:
        bound = f"Lower bound: {found.lower_bound_us / 1e3:.3f} ms"
        lines.append(f"{bound}; this one is {100 * found.gap:.1f}% above it")
    return [*lines, *_measured_summary(found)]


def _of_streams(found: StreamSchedule) -> list[str]:
    waits = sum(len(launch.after) for launch in found.launches)
    waited = "1 wait for an event" if waits == 1 else f"{waits} waits for events"
    several = f"{len(found.streams)} streams; {waited} of other streams, and no barriers"
    lines = [f"{found.latency_us / 1e3:.3f} ms in {several if len(found.streams) > 1 else 'one stream'}"]
    if found.relaxed_bound_us:
        gap = found.latency_us / found.relaxed_bound_us - 1
        bound = f"Lower bound of all streams: {found.relaxed_bound_us / 1e3:.3f} ms"
        lines.append(f"{bound}; this schedule is {gap:.1%} above it")
    return lines


def _measured_summary(found: Schedule) -> list[str]:
    options = found.options
    if "measurements" not in options:
        return []
    estimated_us = options["estimated_us"]
    if options["everything_measured"]:
        end = "every stage of the search space"
    elif options["settled"]:
        end = "until no other schedule was likely to be faster"
    else:
        end = f"until the budget of {options['budget']} was spent" if found.complete else "until interrupted"
    return [
        f"{counted(options['measurements'], 'stage')} measured, {end}; {options['estimate']['name']} of "
        f"{options['estimate']['device']} predicts {estimated_us / 1e3:.3f} ms for this schedule "
        f"({found.excess(estimated_us):+.1%})"
    ]


def _stream_rows(schedule: StreamSchedule) -> list[dict[str, Cell]]:
    return [
        {
            "stream": number,
            "launches": len(own),
            "waits": sum(len(launch.after) for launch in own),
            "order": " > ".join(map(_launch, own)),
        }
        for number, own in enumerate(schedule.streams)
    ]


def _launch(launch: StreamLaunch) -> str:
    waits = f"[{', '.join(launch.after)}] " if launch.after else ""
    return waits + " + ".join(launch.units)


def path_lines(found: StreamExplanation | None) -> Iterator[str]:
    """The critical path and its parts; none of stages, which have no explanation as streams."""
    if found is not None and found.critical:
        yield f"Critical path: {path_words(found)}"


def path_words(found: StreamExplanation) -> str:
    """Number of launches on a critical path, and its parts."""
    divided = ", ".join(f"{name} {us / found.latency_us:.0%}" for name, us in found.path_us.items())
    return f"{len(found.critical)} of {len(found.launches)} launches; {divided}"


def wait_words(one: LaunchExplanation) -> list[str]:
    """A launch's last wait, its slack, and the time that it lost to others."""
    waited = f"{one.cause}, {one.behind}" if one.behind else str(one.cause)
    slack = "on the critical path" if one.is_critical else f"slack {one.slack_us:.1f} us"
    lost = f"; {one.sharing_us:.1f} us lost to concurrent launches" if one.sharing_us >= 0.05 else ""
    return [f"starts at {one.start_us:.1f} us, {slack}{lost}", f"waited last for: {waited}"]


def launches_table(launches: Sequence[LaunchExplanation], title: str = "") -> Table:
    """One row per launch: when it ran, its last wait, the delay by others, and its slack."""
    rows: list[dict[str, Cell]] = [
        {
            "unit": one.unit,
            "stream": one.stream,
            "start_us": one.start_us,
            "takes_us": one.end_us - one.start_us,
            "sharing_us": one.sharing_us,
            "slack_us": one.slack_us,
            "critical": "*" if one.is_critical else "",
            "waited_for": f"{one.cause}: {one.behind}" if one.behind else str(one.cause),
        }
        for one in launches
    ]
    return described_table(__package__, "launches", title, rows)


def heading(schedule: AnySchedule) -> str:
    """Network, setup, scheduler and latency of a schedule."""
    where = f"{schedule.network} on {schedule.device or schedule.cost_model.get('name', '')}"
    setup = ", ".join(setup_words(schedule))
    return f"{where}, {setup}: {schedule.latency_us / 1e3:.3f} ms"


def setup_words(schedule: SavedSchedule) -> list[str]:
    engine = [f"{schedule.engine} engine"] if schedule.engine else []
    return [f"batch {schedule.source.batch}", schedule.precision, *engine, schedule.scheduler]


def headline(found: AnySchedule, sequential_us: float | None = None) -> str:
    """Latency, its origin, the expected interval and, if known, the speed-up."""
    name = found.cost_model.get("name")
    told = [f"{found.latency_us / 1e3:.3f} ms {'simulated' if name == 'simulator' else f'priced by {name}'}"]
    if found.interval_us is not None:
        told.append(f"{interval_words(found.interval_us)} expected on hardware (90% interval)")
    return ", ".join(told) + speedup_words(found, sequential_us)


def speedup_words(found: SavedSchedule, sequential_us: float | None) -> str:
    """The speed-up over sequential, behind a comma; empty where that is unknown, or the schedule itself."""
    if not (sequential_us and found.latency_us):
        return ""
    speedup = f"{found.speedup(sequential_us):.2f}x"
    if (found.scheduler, speedup) == ("sequential", "1.00x"):
        return ""
    return f", speed-up {speedup} over sequential{', within the noise' if 'sequential' in found.ties else ''}"


def schedule_facts(found: AnySchedule) -> str:
    """Setup of a schedule, and its numbers of stages, or of launches and waits, and of streams."""
    if isinstance(found, Schedule):
        counts, streams, several = [counted(len(found.stages), "stage")], found.streams, "at most "
    else:
        waits = sum(len(launch.after) for launch in found.launches)
        launches = f"{counted(len(found.launches), 'launch')}, {counted(waits, 'wait')}"
        counts, streams, several = [launches], len(found.streams), ""
    return " · ".join([*setup_words(found), *counts, f"{several}{streams} streams" if streams > 1 else "1 stream"])


def number_words(numbers: Sequence[int]) -> str:
    """Numbers as ranges: ``3-5`` for ``3, 4, 5``."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))


def expectation_lines(found: SavedSchedule) -> list[str]:
    """The interval, and a tie with the units one by one."""
    tie = "Tied with sequential: the difference is within the noise" if "sequential" in found.ties else None
    return [line for line in (expectation(found.interval_us), tie) if line]


def run_words(run: Execution, analytic_us: float | None = None) -> str:
    """Time and use of resources of an event-driven run, beside the analytic latency if that is known."""
    off = f" ({run.latency_us / analytic_us - 1:+.1%})" if analytic_us else ""
    active = (
        f"busy cores: {run.mean_active_warps:.1f}" if run.of_cores else f"active warps: {run.mean_active_warps:,.0f}"
    )
    return (
        f"Event-driven simulator: {run.latency_us / 1e3:.3f} ms{off}. Mean {active}. "
        f"Mean utilisation: issue {run.mean_issue:.0%}, L2 {run.mean_l2:.0%}, DRAM {run.mean_dram:.0%}, "
        f"power {run.mean_power:.0%}"
    )
