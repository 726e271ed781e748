"""A recorded run and its simulation over one time axis: lanes of both, and the page of the schedule with both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from iossim.cli.outputs import PAGE, Writer, pictures, text_file, wants_plot
from iossim.cost.capabilities import DeviceCostModel
from iossim.execution.execution import Span
from iossim.ir.network import Network
from iossim.profiles.profile_report import ProfileReport
from iossim.report.figures.schedule_timeline import beside_figure
from iossim.report.schedule_page.page import Recording, schedule_page
from iossim.schedule.schedule import AnySchedule, StreamSchedule
from iossim.tasks.explain import Explanation, explain
from iossim.tasks.stream_explain import StreamExplanation, explain_streams


def recording(network: Network, report: ProfileReport, begin_us: float) -> Recording:
    """The last run of a profile from ``begin_us`` on, each layer in the first lane that is free.

    Where a profile has no starts, layers follow one another in its order.
    """
    layers = report.times.layers
    spans_us = [layer.span_us for layer in layers if layer.span_us is not None]
    if len(spans_us) < len(layers):
        spans_us = list(pairwise(accumulate((layer.duration_us for layer in layers), initial=0.0)))
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
    where = f"{network.name} on {schedule.device}, batch {network.source.batch}, {network.precision}"
    title = f"{where}, simulated and recorded"
    finding = f"simulated: {max((span.end_us for span in spans), default=0.0) / 1e3:.3f} ms\n{recorded.title}"
    figure = beside_figure(network, title, finding, {"simulated": spans, "recorded": recorded.spans})
    drawn = pictures(figure) if wants_plot(None) else {}
    return {PAGE: text_file(page), **drawn}
