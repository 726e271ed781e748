"""The timeline of a schedule of streams: a lane for each, its launches as bars, and the waits between lanes as lines.
The timelines of several runs, such as a simulated and a recorded one, have the same form, without waits.

Time continues in the next row, as in the timeline of stages; there are no stages, and a launch that crosses a row's end
is drawn in both. Launches on the critical path have an outline.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from iossim.base.tables import Cell
from iossim.execution.execution import Span
from iossim.hardware.lowering.unit_summary import main_kind
from iossim.ir.network import Network
from iossim.report.colours import kind_colour, text_on
from iossim.report.figures import timeline
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.graph import NAME_PARTS, WAIT, unit_names
from iossim.report.figures.schedule_timeline import unit_labels
from iossim.report.schedule_tables import path_words, summary
from iossim.tasks.stream_explain import StreamExplanation

#: The width; rows are added until the fullest lane has at most about this many launches in each.
_WIDTH_PIXELS, _LAUNCHES_PER_ROW, _MAXIMUM_ROWS = 1100, 24, 8


def stream_figure(network: Network, found: StreamExplanation) -> Figure:
    """A schedule of streams as the run that explains it: launches over time, waits, and the critical path."""
    kinds = {unit.name: main_kind(network, unit) for unit in network.units}
    bars = [
        _Bar(one.stream, one.start_us, one.end_us, one.unit, units, kinds[units[0]], one.is_critical)
        for one in found.launches
        for units in (found.units_of[one.unit],)
    ]
    said = summary(found.schedule).splitlines()[0]
    if not math.isclose(found.latency_us, found.schedule.latency_us, rel_tol=1e-6):
        said += f"; drawn as another run: {found.latency_us / 1e3:.3f} ms"
    title = f"{found.schedule.network} on {found.schedule.device}"
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
    rows = min(_MAXIMUM_ROWS, math.ceil(fullest / _LAUNCHES_PER_ROW))
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
    return Figure(
        name="timeline",
        title=title,
        finding=finding,
        records=tuple(records),
        panels=tuple(panels),
        legend=tuple(timeline.kind_entries(colours)),
        stacked=True,
        panel_pixels=_WIDTH_PIXELS,
    )


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
