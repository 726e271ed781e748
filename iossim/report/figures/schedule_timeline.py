"""The timeline of one schedule: time runs to the right and, for a long schedule, continues in the next row, like text,
so that kernels stay visible. All rows have the same scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise

from iossim.base.tables import Cell, number_of
from iossim.execution.engine import Engine
from iossim.execution.execution import Execution, Span
from iossim.ir.network import Network
from iossim.report.colours import kind_colour, text_on
from iossim.report.figures import timeline
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.graph import NAME_PARTS, short_name, unit_names
from iossim.report.schedule_words import headline, schedule_facts
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Schedule

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
            panels.append(Panel("", timeline.occupancy(domain_ms), {"row": number, "strip": True}))
    return Figure(
        name="timeline",
        title=f"{schedule.network} on {schedule.device}",
        finding=_facts(schedule, sequential_us, execution),
        records=tuple(records),
        panels=tuple(panels),
        legend=_legend(colours, schedule, execution is not None),
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
        told.append("proven optimal")
    elif schedule.lower_bound_us and schedule.gap is not None:
        told.append(f"lower bound {schedule.lower_bound_us / 1000:.3f} ms (gap {schedule.gap:.1%})")
    if execution is not None:
        told.append(f"drawn as the event-driven simulator runs it: {execution.latency_us / 1000:.3f} ms")
    return f"{', '.join(told)}\n{schedule_facts(schedule)}"


def _legend(colours: Mapping[str, str], schedule: Schedule, has_occupancy: bool) -> tuple[LegendEntry, ...]:
    entries = timeline.kind_entries(colours)
    if any(stage.strategy is Strategy.MERGE for stage in schedule.stages):
        entries.append(LegendEntry("merged stage", timeline.MERGED, "outline"))
    between = Engine.named(schedule.engine or Engine.GRAPH).facts.between
    entries += [LegendEntry("stage", timeline.BAND), LegendEntry(between, timeline.GAP)]
    return (*entries, *(timeline.occupancy_legend() if has_occupancy else ()))
