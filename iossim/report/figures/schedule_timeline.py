"""The timeline of one schedule: time runs to the right and, for a long schedule, continues in the next row, like text,
so that kernels stay visible. All rows have the same scale.

Of stages each row has whole ones. Of streams there is a lane for each, with launches as bars and waits between lanes as
lines; a launch that crosses a row's end is drawn in both, and those on the critical path have an outline. The timelines
of several runs, such as a simulated and a recorded one, have the same form, without waits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import NamedTuple

from iossim.base.tables import Cell, number_of
from iossim.execution.engine import Engine
from iossim.execution.execution import Execution, Span
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.network import Network
from iossim.ir.shown_names import shown_names
from iossim.report.colours import kind_colour, text_on
from iossim.report.figures import timeline
from iossim.report.figures.figure import Figure, LegendEntry, Panel, Record
from iossim.report.figures.graph import NAME_PARTS, WAIT, short_name, unit_names
from iossim.report.schedule_tables import headline, path_words, schedule_facts, setup_words, summary
from iossim.report.search_words import whose
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Schedule
from iossim.tasks.stream_explain import StreamExplanation

#: The width; rows are added until each has at most about this many stages, and kernels.
_WIDTH_PIXELS, _STAGES_PER_ROW, _KERNELS_PER_ROW, _MAXIMUM_ROWS = 1100, 18, 80, 12
#: Names of blocks that would need more lines, or end beyond the right margin, are shortened.
_MOST_LINES = 3


def timeline_figure(
    network: Network,
    schedule: Schedule,
    spans: Sequence[Span],
    sequential_us: float | None = None,
    execution: Execution | None = None,
) -> Figure:
    """A schedule alone; ``sequential_us``, if known, is the baseline latency of its speed-up.

    ``execution``, if given, is the run that produced the spans: its active warps and latency are shown too.
    """
    network, schedule, spans = shown_names(network)((network, schedule, tuple(spans)))
    extents = timeline.stage_extents(schedule, spans)
    wanted = max(math.ceil(len(extents) / _STAGES_PER_ROW), math.ceil(len(spans) / _KERNELS_PER_ROW))
    rows = _rows(extents, wanted)
    ends_ms = [(row[0].start_us / 1e3, row[-1].end_us / 1e3) for row in rows]
    row_ms = max((end_ms - start_ms for start_ms, end_ms in ends_ms), default=1.0) * 1.005
    row_of = {extent.number: number for number, row in enumerate(rows) for extent in row}
    above = {extent.number: up for row in rows for extent, up in zip(row, _numbers_above(row, row_ms), strict=True)}
    records: list[dict[str, Cell]] = []
    for record in timeline.timeline_records(network, schedule, spans, execution):
        if record["strip"]:
            for number, (first_ms, last_ms) in enumerate(ends_ms):
                start_ms = max(number_of(record["start_ms"]), first_ms)
                end_ms = min(number_of(record["end_ms"]), last_ms)
                if start_ms < end_ms:
                    records.append({**record, "start_ms": start_ms, "end_ms": end_ms, "row": number})
        else:
            stage = int(record["stage"] or 0)
            merged = schedule.stages[stage].strategy is Strategy.MERGE
            records.append({**record, "row": row_of[stage], "merged": merged, "above": above[stage]})
    names = [unit_names(network, apart) for apart in NAME_PARTS]
    for number, row in enumerate(rows):
        own = [record for record in records if record["row"] == number and record["what"] == "kernel"]
        labels = _labels(schedule, own, names, _WIDTH_PIXELS / row_ms)
        for extra in (*_gaps(row), *_blocks(row, row_ms), *labels):
            records.append({"strip": False, "row": number, **extra})
    colours = timeline.colours_by_time(records)
    panels: list[Panel] = []
    for number, (start_ms, _) in enumerate(ends_ms):
        domain_ms = (start_ms, start_ms + row_ms)
        panels.append(Panel("", timeline.lanes(colours, domain_ms), {"row": number, "strip": False}))
        if execution is not None:
            panels.append(Panel("", timeline.occupancy(domain_ms, execution.of_cores), {"row": number, "strip": True}))
    finding, legend = _facts(schedule, sequential_us, execution), _legend(colours, schedule, execution)
    return _drawn(f"{schedule.network} on {schedule.device}", finding, records, panels, legend)


def _drawn(
    title: str, finding: str, records: Sequence[Record], panels: Sequence[Panel], legend: Sequence[LegendEntry]
) -> Figure:
    return Figure(
        name="timeline",
        title=title,
        finding=finding,
        records=tuple(records),
        panels=tuple(panels),
        legend=tuple(legend),
        stacked=True,
        panel_pixels=_WIDTH_PIXELS,
    )


#: The stages drawn in one row.
_Row = list[timeline.StageExtent]


def _rows(extents: Sequence[timeline.StageExtent], wanted: int) -> list[_Row]:
    """Stages dealt to about ``wanted`` rows of about equal time, each of whole stages."""
    if not extents:
        return []
    start_us, end_us = extents[0].start_us, extents[-1].end_us
    count = min(_MAXIMUM_ROWS, wanted)
    target_us = (end_us - start_us) / count
    rows: list[_Row] = []
    for extent in extents:
        middle_us = (extent.start_us + extent.end_us) / 2
        if not rows or (middle_us - start_us > target_us * len(rows) and len(rows) < count):
            rows.append([])
        rows[-1].append(extent)
    return rows


def _gaps(row: _Row) -> list[dict[str, Cell]]:
    """Gaps between the stages of a row: launches and synchronisation."""
    return [{"what": "gap", **timeline.from_to_ms(left.end_us, right.start_us)} for left, right in pairwise(row)]


def _numbers_above(row: _Row, row_ms: float) -> list[float]:
    """Height above the lanes, in pixels, of the number of each stage of a row."""
    size = timeline.NUMBER_PIXELS
    ends = []
    for extent in row:
        middle = (extent.start_us + extent.end_us) / 2e3 * _WIDTH_PIXELS / row_ms
        half = timeline.text_pixels(str(extent.number), size) / 2 + 1
        ends.append((middle - half, middle + half))
    return [2 + timeline.LINE_PIXELS * size * line for line in timeline.staggered(ends)]


def _blocks(row: _Row, row_ms: float) -> list[dict[str, Cell]]:
    """Start of each block of a row, and the height of its name above the lanes, in pixels: above all numbers."""
    starts_ms = {block: next(iter(group)).start_us / 1e3 for block, group in groupby(row, key=lambda one: one.block)}
    lefts = [start_ms * _WIDTH_PIXELS / row_ms for start_ms in starts_ms.values()]

    def end(left: float, text: str) -> float:
        return left + timeline.text_pixels(text, timeline.BLOCK_PIXELS * 1.05) + 8

    margin = lefts[0] + _WIDTH_PIXELS
    short = [short_name(name) for name in starts_ms]
    for names in (starts_ms, short):
        every = zip(lefts, names, short, strict=True)
        texts = [name if end(left, name) <= margin else shorter for left, name, shorter in every]
        lines = timeline.staggered([(left, end(left, text)) for left, text in zip(lefts, texts, strict=True)])
        if max(lines) <= _MOST_LINES:
            break
    lowest = max(_numbers_above(row, row_ms)) + timeline.LINE_PIXELS * timeline.NUMBER_PIXELS
    return [
        {
            "what": "block",
            "text": text,
            "start_ms": start_ms,
            "above": lowest + timeline.LINE_PIXELS * timeline.BLOCK_PIXELS * line,
        }
        for text, start_ms, line in zip(texts, starts_ms.values(), lines, strict=True)
    ]


def _labels(
    schedule: Schedule, kernels: Sequence[Mapping[str, Cell]], names: Sequence[Mapping[str, str]], pixels_per_ms: float
) -> list[dict[str, Cell]]:
    """Name of each unit, once, in its longest kernel if it fits there."""

    def group_of(record: Mapping[str, Cell]) -> tuple[int, int, str]:
        return int(record["stream"] or 0), int(record["stage"] or 0), str(record["unit"])

    found: list[dict[str, Cell]] = []
    ordered = sorted(kernels, key=lambda record: (int(record["stream"] or 0), number_of(record["start_ms"])))
    for (stream, stage, unit), group in groupby(ordered, key=group_of):
        longest = max(group, key=lambda record: number_of(record["time_ms"]))
        start_ms, end_ms = number_of(longest["start_ms"]), number_of(longest["end_ms"])
        units = schedule.stages[stage].units if longest["merged"] else [unit]
        text = timeline.fitting_label(unit_labels(units, names), (end_ms - start_ms) * pixels_per_ms - 2)
        if text:
            colour = text_on(kind_colour(str(longest["kind"])))
            label: dict[str, Cell] = {"what": "label", "stream": stream, "text": text, "colour": colour}
            found.append({**label, "start_ms": (start_ms + end_ms) / 2})
    return found


def unit_labels(units: Sequence[str], names: Sequence[Mapping[str, str]]) -> list[str]:
    """Possible labels of units, the longest first: the names of one; of several, their count."""
    return [f"{len(units)} merged", str(len(units))] if len(units) > 1 else [short[units[0]] for short in names]


def _facts(schedule: Schedule, sequential_us: float | None, execution: Execution | None) -> str:
    told = [headline(schedule, sequential_us)]
    if schedule.proven:
        told.append(f"proven optimal{whose(schedule)}")
    elif schedule.lower_bound_us and schedule.gap is not None:
        told.append(f"lower bound {schedule.lower_bound_us / 1000:.3f} ms (gap {schedule.gap:.1%})")
    if execution is not None:
        told.append(f"drawn as the event-driven simulator runs it: {execution.latency_us / 1000:.3f} ms")
    return f"{', '.join(told)}\n{schedule_facts(schedule)}"


def _legend(colours: Mapping[str, str], schedule: Schedule, execution: Execution | None) -> tuple[LegendEntry, ...]:
    entries = timeline.kind_entries(colours)
    if any(stage.strategy is Strategy.MERGE for stage in schedule.stages):
        entries.append(LegendEntry("merged stage", timeline.MERGED, "outline"))
    between = Engine.named(schedule.engine or Engine.GRAPH).facts.between
    entries += [LegendEntry("stage", timeline.BAND), LegendEntry(between, timeline.GAP)]
    return (*entries, *(timeline.occupancy_legend(execution.of_cores) if execution is not None else ()))


#: Rows are added until the fullest lane has at most about this many launches in each.
_LAUNCHES_PER_ROW, _MOST_STREAM_ROWS = 24, 8


def stream_figure(network: Network, found: StreamExplanation) -> Figure:
    """A schedule of streams as the run that explains it: launches over time, waits, and the critical path."""
    network, found = shown_names(network)((network, found))
    kinds = {unit.name: main_kind(network, unit) for unit in network.units}
    bars = [
        _Bar(one.stream, one.start_us, one.end_us, one.unit, units, kinds[units[0]], one.is_critical)
        for one in found.launches
        for units in (found.units_of[one.unit],)
    ]
    said = summary(found.schedule).splitlines()[0]
    if not math.isclose(found.latency_us, found.schedule.latency_us, rel_tol=1e-6):
        said += f"; drawn as another run: {found.latency_us / 1e3:.3f} ms"
    title = f"{found.schedule.network} on {found.schedule.device}, {', '.join(setup_words(found.schedule))}"
    marks = LegendEntry("critical path", timeline.MERGED, "outline"), LegendEntry("wait", WAIT, "line")
    finding = f"{said}\ncritical path: {path_words(found)}"
    drawn = _figure(network, title, finding, {"": bars}, (found.latency_us or 1.0) / 1e3, partial(_waits, found))
    return replace(drawn, legend=(*drawn.legend, *marks))


def _figure(
    network: Network,
    title: str,
    finding: str,
    runs: Mapping[str, Sequence[_Bar]],
    end_ms: float,
    waits: Callable[[float, float], list[dict[str, Cell]]] | None = None,
) -> Figure:
    """The bars of runs by name, row by row, the lanes of one below those of another, all on one scale; a run alone has
    no name. ``waits`` are the records of those in the time of a row.
    """
    fullest = max(Counter((run, one.stream) for run, own in runs.items() for one in own).values(), default=1)
    rows = min(_MOST_STREAM_ROWS, math.ceil(fullest / _LAUNCHES_PER_ROW))
    row_ms = end_ms / rows
    names = [unit_names(network, apart) for apart in NAME_PARTS]
    places: list[tuple[int, dict[str, Cell], str]] = [
        (row, {"row": row, **({"run": run} if run else {})}, run) for row in range(rows) for run in runs
    ]
    records: list[dict[str, Cell]] = [
        {**where, **record}
        for row, where, run in places
        for part_ms in ((row * row_ms, (row + 1) * row_ms),)
        for record in _bars_within(runs[run], names, *part_ms) + (waits(*part_ms) if waits else [])
    ]
    colours = timeline.colours_by_time(records)
    lanes = partial(timeline.lanes, colours, has_waits=waits is not None)
    panels = [
        Panel("", lanes((row * row_ms, (row + 1.005) * row_ms), run or "stream"), where) for row, where, run in places
    ]
    return _drawn(title, finding, records, panels, timeline.kind_entries(colours))


class _Bar(NamedTuple):
    """A launch on a stream: its name, its units and the kind of their op, and whether it has an outline."""

    stream: int
    start_us: float
    end_us: float
    name: str
    units: Sequence[str]
    kind: str
    outlined: bool = False


def _bars_within(
    bars: Sequence[_Bar], names: Sequence[Mapping[str, str]], begin_ms: float, end_ms: float
) -> list[dict[str, Cell]]:
    """The part of each bar within a row, with the longest of its ``names`` that fits."""
    records: list[dict[str, Cell]] = []
    for one in bars:
        start, end = max(one.start_us / 1e3, begin_ms), min(one.end_us / 1e3, end_ms)
        if start >= end:
            continue
        own: dict[str, Cell] = {"stream": one.stream, "start_ms": start, "end_ms": end}
        facts: dict[str, Cell] = {"unit": one.name, "kind": one.kind, "time_ms": (one.end_us - one.start_us) / 1e3}
        records.append({"what": "kernel", **own, **facts, "merged": one.outlined})
        pixels = (end - start) / (end_ms - begin_ms) * _WIDTH_PIXELS - 2
        if one.units and (text := timeline.fitting_label(unit_labels(one.units, names), pixels)):
            middle: dict[str, Cell] = {"start_ms": (start + end) / 2, "text": text}
            records.append({"what": "label", "stream": one.stream, **middle, "colour": text_on(kind_colour(one.kind))})
    return records


def beside_figure(network: Network, title: str, finding: str, runs: Mapping[str, Sequence[Span]]) -> Figure:
    """The lanes of several runs of a network above each other, row by row, on one scale. A span is of the unit whose
    name it has or begins with.
    """
    kinds = {unit.name: main_kind(network, unit) for unit in network.units}

    def bar(one: Span) -> _Bar:
        found = max((name for name in kinds if one.unit.startswith(name)), key=len, default="")
        several = one.unit.split("+") if one.unit not in kinds else []  # units that are merged
        units = several if len(several) > 1 else [found] * bool(found)
        return _Bar(one.stream, one.start_us, one.end_us, one.name, units, kinds[found] if found else "of no unit")

    bars = {run: list(map(bar, spans)) for run, spans in runs.items()}
    end_ms = max((one.end_us for own in bars.values() for one in own), default=1.0) / 1e3
    return _figure(network, title, finding, bars, end_ms)


def _waits(found: StreamExplanation, begin_ms: float, end_ms: float) -> list[dict[str, Cell]]:
    """The waits of launches that start within a row: from the end of what they wait for in another lane."""
    return [
        {
            "what": "wait",
            "stream": source.stream,
            "to": one.stream,
            "start_ms": max(begin_ms, source.end_us / 1e3),
            "end_ms": one.start_us / 1e3,
        }
        for source, one in found.waits
        if begin_ms <= one.start_us / 1e3 < end_ms
    ]
