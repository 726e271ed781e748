"""Files of a schedule: itself, its graph, trace, picture and page; what is printed of streams; reading one again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError
from iossim.cli.options import with_flags
from iossim.cli.outputs import (
    PAGE,
    SCHEDULE,
    ExitCode,
    Part,
    TimelineOutputs,
    Writer,
    kept_schedule,
    pictures,
    present,
    text_file,
    wrapped,
)

if TYPE_CHECKING:
    from iossim.cli.option_groups import ReadingOptions
    from iossim.cost.model import CostModel
    from iossim.execution.execution import Execution, Span
    from iossim.ir.network import Network
    from iossim.schedule.schedule import AnySchedule, Schedule, StreamSchedule
    from iossim.tasks.comparison import Comparison
    from iossim.tasks.explain import Explanation
    from iossim.tasks.stream_explain import StreamExplanation

#: Number of launches shown, the critical path first, unless all are asked for.
_FEW = 20


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

        sequential_us = in_sequence(network, prices, found.schedule).latency_us
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


def show_streams(
    network: Network, found: StreamSchedule, prices: CostModel, outputs: TimelineOutputs, as_json: bool
) -> None:
    """Show streams, latency, and critical path; with --out write their files, with a page."""
    from iossim.report.schedule_tables import path_lines, stream_summary, stream_table
    from iossim.tasks.stream_explain import explain_streams

    explained = cache(partial(explain_streams, found, network, prices))
    said = with_flags(stream_summary(found))

    def parts() -> Iterator[Part]:
        yield stream_table(found)
        yield wrapped(said)
        yield from path_lines(explained())

    present(
        lambda: found.model_dump_json(indent=1),
        parts(),
        as_json,
        out=outputs.out,
        files=lambda: stream_files(outputs, network, explained(), prices, said=said.split("\n")),
        kept=kept_schedule(found),
    )


def tell_streams(
    found: StreamExplanation,
    all_launches: bool,
    as_json: bool,
    out: Path | None,
    files: Callable[[Sequence[str]], Mapping[str, Writer]],
    code: ExitCode,
) -> None:
    """Explain a schedule: the critical path, and launches with their last waits and their slack. ``files`` are those of
    what was said.
    """
    from iossim.report.schedule_tables import launches_table, path_lines, stream_summary

    shown = list(found.launches) if all_launches else found.critical[:_FEW]
    said = with_flags(stream_summary(found.schedule))
    parts: list[Part] = [wrapped(said), *path_lines(found), launches_table(shown)]
    if len(shown) < len(found.launches):
        parts.append(f"{len(found.launches) - len(shown)} more launches (--all shows them)")
    present(found.to_json(), parts, as_json, out=out, files=lambda: files(said.split("\n")), code=code)
