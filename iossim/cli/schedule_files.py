"""Files of a schedule: itself, its graph, its trace, its picture and its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from iossim.cli.outputs import PAGE, SCHEDULE, TimelineOutputs, Writer, pictures, text_file

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.execution.execution import Execution, Span
    from iossim.ir.network import Network
    from iossim.schedule.schedule import Schedule
    from iossim.tasks.comparison import Comparison
    from iossim.tasks.explain import Explanation


def schedule_files(
    outputs: TimelineOutputs,
    network: Network,
    schedule: Schedule,
    cost_model: CostModel,
    *,
    sequential_us: float | None = None,
    execution: Execution | None = None,
    said: Sequence[str] | None = None,
    comparison: Comparison | None = None,
    explanation: Explanation | None = None,
) -> dict[str, Writer]:
    """schedule.json, graph.dot, graph.svg, and, where the cost model knows a timeline, trace.json and its picture.

    Trace and picture show ``execution``, where it is given, in place of the cost model's own timeline. With the
    sentences that the terminal ``said``, a page is added: index.html, with the table of the ``comparison`` of which
    it is the best. An ``explanation`` of all stages, if there is one already, is not found anew.
    """
    from iossim.cost.capabilities import DeviceCostModel
    from iossim.report.schedule_formats import dot

    files: dict[str, Writer] = {SCHEDULE: schedule.save, "graph.dot": text_file(dot(network, schedule))}
    if outputs.plot is not False:
        from iossim.report.figures.graph import graph_svg

        files["graph.svg"] = text_file(graph_svg(network, schedule))
    if not isinstance(cost_model, DeviceCostModel):
        return files
    spans: Sequence[Span] = cost_model.timeline(network, schedule) if execution is None else execution.spans
    if outputs.trace is not False:
        from iossim.report.traces import perfetto_trace

        files["trace.json"] = text_file(perfetto_trace(network, schedule, spans, execution))
    if said is not None and outputs.plot is not False:
        from iossim.report.schedule_page import schedule_page
        from iossim.tasks.explain import explain

        explanation = explanation or explain(schedule, network, cost_model)
        sequential_us = sequential_us or explanation.sequential_us
        files[PAGE] = text_file(schedule_page(network, schedule, spans, said, explanation, sequential_us, comparison))
    if outputs.draws:
        from iossim.report.figures.schedule_timeline import timeline_figure

        files |= pictures(timeline_figure(network, schedule, spans, sequential_us, execution))
    return files
