"""Files of a schedule: itself, its graph, trace, picture and page; what is printed of streams; reading one again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError
from iossim.cli.options import ReadingOptions, with_flags
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
)

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.execution.execution import Execution, Span
    from iossim.ir.network import Network
    from iossim.report.figures.figure import Figure
    from iossim.schedule.schedule import AnySchedule
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

    if _is_schedule(Path(target)):
        if reading != type(reading)():
            raise OptionError(
                f"{target} is a saved schedule, whose model is read as it was; give no options of reading"
            )
        return api.read_any_schedule(target, model, batch)
    if model is not None:
        raise OptionError(f"--model is for a schedule, and {target!r} is none; leave it out")
    return None, reading.network_of_batch(target, batch)


def _is_schedule(path: Path) -> bool:
    """True for a file with a saved schedule, valid or not, as opposed to a model; a JSON file that is missing or
    unreadable counts as one.
    """
    from iossim.schedule.schedule import has_field

    try:
        return has_field(path.read_bytes(), "graph_hash", path.suffix.lower() == ".json")
    except OSError:
        return path.suffix.lower() == ".json"


def schedule_files(
    outputs: TimelineOutputs,
    network: Network,
    schedule: AnySchedule,
    prices: CostModel,
    *,
    execution: Execution | None = None,
    said: Sequence[str] | None = None,
    comparison: Comparison | None = None,
    explanation: Explanation | StreamExplanation | None = None,
) -> dict[str, Writer]:
    """schedule.json, graph.svg, and, where the cost model knows a timeline, trace.json and its picture.

    Trace and picture show ``execution``, where it is given, in place of the cost model's own timeline. With the
    sentences that the terminal ``said``, a page is added: index.html, with the table of the ``comparison`` of which
    it is the best. An ``explanation`` of the whole schedule, of that run, is not found anew.
    """
    from iossim.cost.capabilities import DeviceCostModel
    from iossim.report.figures.graph import graph_svg
    from iossim.report.figures.schedule_timeline import stream_figure, timeline_figure
    from iossim.report.schedule_page import schedule_page
    from iossim.report.traces import perfetto_trace, stream_trace
    from iossim.schedule.schedule import StreamSchedule
    from iossim.tasks.explain import Explanation, explain
    from iossim.tasks.stream_explain import StreamExplanation, explain_streams, in_sequence

    files: dict[str, Writer] = {SCHEDULE: schedule.save}
    if outputs.plot is not False:
        files["graph.svg"] = text_file(graph_svg(network, schedule))
    if not isinstance(prices, DeviceCostModel):
        return files
    has_page, ran = said is not None and outputs.plot is not False, None if execution is None else execution.spans
    sequential_us = None if comparison is None else comparison.baseline_us
    trace: Callable[[], str]
    figure: Callable[[], Figure]
    if isinstance(schedule, StreamSchedule):
        if not isinstance(explanation, StreamExplanation):
            explanation = explain_streams(schedule, network, prices, ran)
        spans: Sequence[Span] = explanation.spans
        sequential_us = in_sequence(network.given or network, prices, schedule).latency_us if has_page else None
        trace = partial(stream_trace, network, explanation, execution)
        figure = partial(stream_figure, network, explanation)
    else:
        spans = prices.timeline(network, schedule) if ran is None else ran
        if has_page and not isinstance(explanation, Explanation):
            explanation = explain(schedule, network, prices)
        if has_page and isinstance(explanation, Explanation):
            sequential_us = sequential_us or explanation.sequential_us
        trace = partial(perfetto_trace, network, schedule, spans, execution)
        figure = partial(timeline_figure, network, schedule, spans, sequential_us, execution)
    if outputs.trace is not False:
        files["trace.json"] = text_file(trace())
    if has_page:
        page = schedule_page(network, schedule, spans, said or (), explanation, sequential_us, comparison)
        files[PAGE] = text_file(page)
    return files | (pictures(figure()) if outputs.draws else {})


def show_schedule(
    network: Network, found: AnySchedule, prices: CostModel, outputs: TimelineOutputs, as_json: bool
) -> None:
    """Show stages, or streams with their critical path, and what is said of them; with --out write their files, with a
    page.
    """
    from iossim.ir.shown_names import shown_names
    from iossim.report.schedule_tables import path_lines, said
    from iossim.schedule.schedule import StreamSchedule
    from iossim.tasks.stream_explain import explain_streams

    explained = cache(lambda: explain_streams(found, network, prices) if isinstance(found, StreamSchedule) else None)

    def parts() -> Iterator[Part]:
        shown = shown_names(network)
        yield from schedule_parts(shown(found))
        yield from path_lines(shown(explained()))

    def files() -> Mapping[str, Writer]:
        told = list(map(with_flags, said(found)))
        return schedule_files(outputs, network, found, prices, said=told, explanation=explained())

    document, kept = lambda: found.model_dump_json(indent=1), kept_schedule(found)
    present(document, parts(), as_json, out=outputs.out, files=files, kept=kept)
