"""Output for schedules of streams: of a found one, and of a saved one that is explained or simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.cli.options import with_flags
from iossim.cli.outputs import (
    PAGE,
    ExitCode,
    Part,
    ScheduleOutputs,
    Writer,
    kept_schedule,
    pictures,
    present,
    text_file,
    wrapped,
)

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.execution.execution import Execution
    from iossim.ir.network import Network
    from iossim.schedule.schedule import StreamSchedule
    from iossim.tasks.stream_explain import StreamExplanation

#: Number of launches shown, the critical path first, unless all are asked for.
_FEW = 20


def show_streams(
    network: Network, found: StreamSchedule, prices: CostModel, outputs: ScheduleOutputs, as_json: bool
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
        files=lambda: stream_files(network, explained(), prices, outputs, said=said.split("\n")),
        kept=kept_schedule(found),
    )


def stream_files(
    network: Network,
    found: StreamExplanation,
    prices: CostModel,
    outputs: ScheduleOutputs,
    execution: Execution | None = None,
    said: Sequence[str] = (),
) -> dict[str, Writer]:
    """The files of streams: schedule.json, graph.dot, graph.svg, index.html, trace.json and the picture of the run that
    was explained; ``execution`` is that run, if it was event by event.
    """
    from iossim.report.schedule_formats import dot
    from iossim.report.traces import stream_trace
    from iossim.tasks.stream_explain import in_sequence

    files: dict[str, Writer] = {
        "schedule.json": found.schedule.save,
        "graph.dot": text_file(dot(network, found.schedule)),
    }
    if outputs.trace is not False:
        files["trace.json"] = text_file(stream_trace(network, found, execution))
    if outputs.plot is not False:
        from iossim.report.figures.graph import graph_svg
        from iossim.report.schedule_page import schedule_page

        files["graph.svg"] = text_file(graph_svg(network, found.schedule))
        sequential_us = in_sequence(network, prices, found.schedule).latency_us
        page = schedule_page(network, found.schedule, found.spans, said, found, sequential_us)
        files[PAGE] = text_file(page)
    if outputs.draws:
        from iossim.report.figures.stream_timeline import stream_figure

        files |= pictures(stream_figure(network, found))
    return files


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
