"""Files of a schedule: itself, its graph, trace, picture and page; what is printed of streams; reading one again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError
from iossim.cli.options import with_flags
from iossim.cli.outputs import (
    PAGE,
    SCHEDULE,
    Part,
    TimelineOutputs,
    Writer,
    kept_schedule,
    pictures,
    present,
    schedule_parts,
    text_file,
    wrapped,
)

if TYPE_CHECKING:
    from iossim.cli.option_groups import ReadingOptions
    from iossim.cost.model import CostModel
    from iossim.execution.execution import Execution, Span
    from iossim.ir.network import Network
    from iossim.schedule.schedule import AnySchedule, Schedule
    from iossim.tasks.comparison import Comparison
    from iossim.tasks.explain import Explanation
    from iossim.tasks.stream_explain import StreamExplanation


def schedule_or_network(
    target: str, model: str | None, reading: ReadingOptions, batch: int | None = None
) -> tuple[AnySchedule | None, Network]:
    """Saved schedule and its network, at another ``batch`` if given; for a model, None and its network. Raises
    OptionError for options that do not apply.
    """
    from iossim import api
    from iossim.schedule.schedule_file import is_schedule

    if is_schedule(Path(target)):
        if reading != type(reading)():
            raise OptionError(
                f"{target} is a saved schedule, whose model is read as it was; give no options of reading"
            )
        return api.read_any_schedule(target, model, batch)
    if model is not None:
        raise OptionError(f"--model is for a schedule, and {target!r} is none; leave it out")
    return None, reading.network_of_batch(target, batch)


def schedule_files(
    outputs: TimelineOutputs,
    network: Network,
    schedule: Schedule,
    cost_model: CostModel,
    *,
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

    files = _of_any(outputs, network, schedule)
    if not isinstance(cost_model, DeviceCostModel):
        return files
    spans: Sequence[Span] = cost_model.timeline(network, schedule) if execution is None else execution.spans
    sequential_us = None if comparison is None else comparison.baseline_us
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


def stream_files(
    outputs: TimelineOutputs,
    network: Network,
    found: StreamExplanation,
    prices: CostModel,
    *,
    execution: Execution | None = None,
    said: Sequence[str] = (),
) -> dict[str, Writer]:
    """The same files of streams, of the run that was explained; ``execution`` is that run, if it was event by event."""
    from iossim.tasks.stream_explain import in_sequence

    files = _of_any(outputs, network, found.schedule)
    if outputs.trace is not False:
        from iossim.report.traces import stream_trace

        files["trace.json"] = text_file(stream_trace(network, found, execution))
    if outputs.plot is not False:
        from iossim.report.schedule_page import schedule_page

        sequential_us = in_sequence(network.given or network, prices, found.schedule).latency_us
        files[PAGE] = text_file(schedule_page(network, found.schedule, found.spans, said, found, sequential_us))
    if outputs.draws:
        from iossim.report.figures.stream_timeline import stream_figure

        files |= pictures(stream_figure(network, found))
    return files


def _of_any(outputs: TimelineOutputs, network: Network, schedule: AnySchedule) -> dict[str, Writer]:
    from iossim.report.schedule_formats import dot

    files: dict[str, Writer] = {SCHEDULE: schedule.save, "graph.dot": text_file(dot(network, schedule))}
    if outputs.plot is not False:
        from iossim.report.figures.graph import graph_svg

        files["graph.svg"] = text_file(graph_svg(network, schedule))
    return files


def show_schedule(
    network: Network, found: AnySchedule, prices: CostModel, outputs: TimelineOutputs, as_json: bool
) -> None:
    """Show stages, or streams with their critical path, and what is said of them; with --out write their files, with a
    page.
    """
    from iossim.report.schedule_tables import path_lines, stream_summary, stream_table, summary
    from iossim.schedule.schedule import StreamSchedule
    from iossim.tasks.stream_explain import explain_streams

    if isinstance(found, StreamSchedule):
        streams, explained = found, cache(partial(explain_streams, found, network, prices))
        said = with_flags(stream_summary(found)).split("\n")

        def parts() -> Iterator[Part]:
            yield from (stream_table(streams), wrapped("\n".join(said)))
            yield from path_lines(explained())

        def files() -> Mapping[str, Writer]:
            return stream_files(outputs, network, explained(), prices, said=said)
    else:
        said = [with_flags(line) for line in (*summary(found).split("\n"), *(f"note: {one}" for one in found.remarks))]
        parts = partial(schedule_parts, found)
        files = partial(schedule_files, outputs, network, found, prices, said=said)
    document, kept = lambda: found.model_dump_json(indent=1), kept_schedule(found)
    present(document, parts(), as_json, out=outputs.out, files=files, kept=kept)
