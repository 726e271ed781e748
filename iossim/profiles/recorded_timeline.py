"""A recorded run and its simulation over one time axis: lanes of both, and the page of the schedule with both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from iossim.base.tables import Cell
from iossim.cli.outputs import PAGE, Writer, pictures, text_file, wants_plot
from iossim.cost.capabilities import DeviceCostModel
from iossim.execution.execution import Span
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.network import Network
from iossim.profiles.profile_report import ProfileReport
from iossim.report.figures import timeline
from iossim.report.figures.figure import Figure, Panel
from iossim.report.figures.graph import unit_names
from iossim.report.figures.stream_timeline import MAXIMUM_ROWS, WIDTH_PIXELS, Bar, bars_within
from iossim.report.schedule_page import Recording, schedule_page
from iossim.schedule.schedule import AnySchedule, StreamSchedule
from iossim.tasks.explain import Explanation, explain
from iossim.tasks.stream_explain import StreamExplanation, explain_streams

_BARS_PER_ROW = 24
#: Kind of what belongs to no unit.
_UNMATCHED = "of no unit"


def recording(network: Network, report: ProfileReport, begin_us: float) -> Recording:
    """The last run of a profile from ``begin_us`` on, each layer in the first lane that is free.

    Where a profile has no starts, layers follow one another in its order.
    """
    layers = report.times.layers
    spans_us = [layer.span_us for layer in layers if layer.span_us is not None]
    if len(spans_us) < len(layers):
        ends_us = [sum(layer.duration_us for layer in layers[: place + 1]) for place in range(len(layers))]
        spans_us = [(end_us - layer.duration_us, end_us) for layer, end_us in zip(layers, ends_us, strict=True)]
    shift_us = begin_us - min((start_us for start_us, _ in spans_us), default=0.0)
    free_us: list[float] = []
    spans = []
    for layer, number, (start_us, end_us) in sorted(
        zip(layers, report.unit_of_layer, spans_us, strict=True), key=lambda each: each[2]
    ):
        lane = next((lane for lane, until_us in enumerate(free_us) if until_us <= start_us), len(free_us))
        free_us[lane : lane + 1] = [end_us]
        unit = "" if number is None else network.units[number].name
        spans.append(Span(layer.name, unit, -1, lane, start_us + shift_us, end_us + shift_us))
    took_us = max(free_us, default=0.0) + shift_us - begin_us
    which = f"last of {report.times.runs} runs" if report.times.runs > 1 else "one run"
    order = "" if report.times.wall_us is not None else "; starts are not recorded, layers follow one another"
    return Recording(f"recorded by {report.times.source}, {which}: {took_us / 1e3:.3f} ms{order}", tuple(spans))


def recorded_files(
    network: Network, prices: DeviceCostModel, schedule: AnySchedule, report: ProfileReport, said: Sequence[str]
) -> dict[str, Writer]:
    """The page of a schedule, priced by ``prices``, with the recorded run in it, and the picture of both timelines."""
    explanation: Explanation | StreamExplanation
    if isinstance(schedule, StreamSchedule):
        explanation = explain_streams(schedule, network, prices)
        spans: Sequence[Span] = explanation.spans
    else:
        explanation, spans = explain(schedule, network, prices), prices.timeline(network, schedule)
    recorded = recording(network, report, min((span.start_us for span in spans), default=0.0))
    page = schedule_page(network, schedule, spans, said, explanation, recorded=recorded)
    drawn = pictures(beside_figure(network, schedule.device, spans, recorded)) if wants_plot(None) else {}
    return {PAGE: text_file(page), **drawn}


def beside_figure(network: Network, device: str, simulated: Sequence[Span], recorded: Recording) -> Figure:
    """The simulated lanes above the recorded ones, row by row, on one scale."""
    kinds = {unit.name: main_kind(network, unit) for unit in network.units}

    def bar(one: Span) -> Bar:
        units = [one.unit] if one.unit in kinds else one.unit.split("+") if one.unit else []
        kind = kinds[units[0]] if units else _UNMATCHED
        return Bar(one.stream, one.start_us, one.end_us, one.name, units, kind)

    bars = {"simulated": list(map(bar, simulated)), "recorded": list(map(bar, recorded.spans))}
    ends_us = {title: max((one.end_us for one in own), default=0.0) for title, own in bars.items()}
    fullest = max(Counter(one.stream for one in own).most_common(1)[0][1] if own else 1 for own in bars.values())
    rows = min(MAXIMUM_ROWS, math.ceil(fullest / _BARS_PER_ROW))
    row_ms = (max(ends_us.values()) or 1.0) / 1e3 / rows
    names = unit_names(network)
    records: list[dict[str, Cell]] = []
    for row in range(rows):
        for title, own in bars.items():
            drawn = bars_within(own, names, row * row_ms, (row + 1) * row_ms)
            records += [{"row": row, "of": title, **record} for record in drawn]
    colours = timeline.colours_by_time(records)
    return Figure(
        name="timeline",
        title=f"{network.name} on {device}, simulated and recorded",
        finding=f"simulated: {ends_us['simulated'] / 1e3:.3f} ms\n{recorded.title}",
        records=tuple(records),
        panels=tuple(
            Panel("", timeline.lanes(colours, (row * row_ms, (row + 1.005) * row_ms), title), {"row": row, "of": title})
            for row in range(rows)
            for title in bars
        ),
        legend=tuple(timeline.kind_entries(colours)),
        stacked=True,
        panel_pixels=WIDTH_PIXELS,
    )
