"""What commands print, the files that they write, and the exit codes that they end with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from iossim.base.errors import OptionError
from iossim.cli import options
from iossim.cli.options import OptionGroup, with_flags

if TYPE_CHECKING:
    from rich.console import RenderableType

    from iossim.cost.model import CostModel
    from iossim.execution.execution import Execution, Span
    from iossim.ir.network import Network
    from iossim.report.figures.figure import Figure
    from iossim.schedule.schedule import AnySchedule, Schedule
    from iossim.tasks.comparison import Comparison


class ExitCode(IntEnum):
    """Anything else is a defect of iossim."""

    DONE = 0
    DOES_NOT_HOLD = 1  #: what ``iossim check``, ``dataflow run`` or ``study diff`` was asked to check
    MISTAKE = 2  #: in the input: one line on standard error says which, nothing was written
    INCOMPLETE = 3  #: the search was interrupted; what was printed and written is the best schedule so far
    INTERRUPTED = 130  #: before there was a schedule, or twice (128 + SIGINT, as shells have it)
    NO_READER = 141  #: who read the output went away: a pager, head (128 + SIGPIPE)


#: A schedule, and its page.
_SCHEDULE, PAGE = "schedule.json", "index.html"
Writer = Callable[[Path], None]
#: A line that does not wrap, or a table or sentence that the console lays out.
Part: TypeAlias = "str | RenderableType"
#: What draws pictures: the module, and the package that has it.
_DRAWING = {"altair": "altair", "vl_convert": "vl-convert-python"}


@dataclass(frozen=True)
class TimelineOutputs(OptionGroup):
    """What is written of something that runs, and where to: a trace and a picture of it among others."""

    out: options.Out = None
    trace: options.Trace = None
    plot: options.Plot = None

    def check_files(self) -> None:
        """Refuse what cannot be written before the work starts."""
        from iossim.base.user_files import check_writable

        if self.out is not None:
            check_writable(self.out)
        if self.plot:
            check_drawing()

    @property
    def draws(self) -> bool:
        return wants_plot(self.plot)


@dataclass(frozen=True)
class ScheduleOutputs(TimelineOutputs):
    """What is written of a schedule, and where to."""

    def check(self, cost_model: CostModel) -> None:
        """Refuse what cannot be written or drawn before the search starts."""
        from iossim.cost.capabilities import DeviceCostModel

        self.check_files()
        if (self.trace or self.plot) and not isinstance(cost_model, DeviceCostModel):
            remedy = "use the simulator, or leave out --trace and --plot"
            raise OptionError(f"cost model {cost_model.identity.name!r} has no timeline to draw; {remedy}")

    def files(
        self,
        network: Network,
        schedule: Schedule,
        cost_model: CostModel,
        sequential_us: float | None = None,
        execution: Execution | None = None,
        said: Sequence[str] | None = None,
        comparison: Comparison | None = None,
    ) -> dict[str, Writer]:
        """schedule.json, graph.dot, graph.svg, and, where the cost model knows a timeline, trace.json and its picture.

        Trace and picture show ``execution``, where it is given, in place of the cost model's own timeline. With what
        the terminal ``said`` of the schedule it has a page, too: index.html, with the table of the ``comparison`` that
        it is the best of.
        """
        from iossim.cost.capabilities import DeviceCostModel
        from iossim.report.schedule_formats import dot

        files: dict[str, Writer] = {_SCHEDULE: schedule.save, "graph.dot": text_file(dot(network, schedule))}
        if self.plot is not False:
            from iossim.report.figures.graph import graph_svg

            files["graph.svg"] = text_file(graph_svg(network, schedule))
        if not isinstance(cost_model, DeviceCostModel):
            return files
        spans: Sequence[Span] = cost_model.timeline(network, schedule) if execution is None else execution.spans
        if self.trace is not False:
            from iossim.report.traces import perfetto_trace

            files["trace.json"] = text_file(perfetto_trace(network, schedule, spans, execution))
        if said is not None and self.plot is not False:
            from iossim.report.schedule_page import schedule_page
            from iossim.tasks.explain import explain

            explanation = explain(schedule, network, cost_model)
            files[PAGE] = text_file(
                schedule_page(network, schedule, spans, said, explanation, sequential_us, comparison)
            )
        if self.draws:
            from iossim.report.figures.schedule_timeline import timeline_figure

            files |= pictures(timeline_figure(network, schedule, spans, sequential_us, execution))
        return files


def check_drawing() -> None:
    """Raise OptionError where a library that draws pictures is missing."""
    for name, package in _DRAWING.items():
        if find_spec(name) is None:
            raise OptionError(f"--plot needs {package}, which is not installed; pip install 'iossim[report]'")


def wants_plot(plot: bool | None) -> bool:
    """Pictures are drawn unless refused, where what draws them is installed."""
    return all(find_spec(name) is not None for name in _DRAWING) if plot is None else plot


def pictures(*figures: Figure) -> dict[str, Writer]:
    """Each figure as SVG and as PNG, under its name."""
    from iossim.report.figures.pictures import picture_files

    return picture_files(figures, "svg", "png", titled=True)


def text_file(text: str) -> Writer:
    """Writes a file of that text."""
    from iossim.base.user_files import write_atomically

    return lambda path: write_atomically(path, text)


def write_files(folder: Path, files: Mapping[str, Writer]) -> None:
    """Write files by name into a folder, all or none, and say so on standard error."""
    from iossim.base.user_files import write_all

    tell_written(write_all(folder, files))


#: More files than these are told by their folder.
_FILES_NAMED = 6


def tell_written(paths: Iterable[Path]) -> None:
    """Say on standard error which files were written; of many in one folder how many there are."""
    written = list(paths)
    folders = {path.parent for path in written}
    many = len(written) > _FILES_NAMED and len(folders) == 1
    what = f"{len(written)} files to {folders.pop()}" if many else ", ".join(map(str, written))
    typer.echo(f"wrote {what}", err=True)


def present(
    document: Any,
    parts: Iterable[Part],
    as_json: bool,
    *,
    out: Path | None = None,
    files: Callable[[], Mapping[str, Writer]] = dict,
    kept: Mapping[str, Writer] | None = None,
    code: ExitCode = ExitCode.DONE,
) -> None:
    """Show a result: as JSON, or as tables and sentences; write its files to ``out``; and end with an exit code.

    The ``document`` is a value, or a function that makes it, or text that is JSON already. Of the ``parts`` strings
    are printed as lines that do not wrap, and others as the console lays them out. Parts are made only where they are
    printed. Files that are ``kept`` are written even if an interrupt ends this.
    """
    try:
        _print(document, parts, as_json)
        if out is not None:
            write_files(out, files())
    except KeyboardInterrupt:
        if out is None or kept is None:
            raise
        write_files(out, kept)
        code = ExitCode.INCOMPLETE
    if code:
        raise typer.Exit(code)


def _print(document: Any, parts: Iterable[Part], as_json: bool) -> None:
    if as_json:
        made = document() if callable(document) else document
        typer.echo(made if isinstance(made, str) else json_text(made))
    else:
        from rich.console import Console

        # Text is printed as it is: brackets are no markup, and numbers have no colour.
        console = Console(highlight=False, markup=False)
        for part in parts:
            if isinstance(part, str):
                typer.echo(part)
            else:
                console.print(part)


def wrapped(text: str, style: str = "") -> RenderableType:
    """A sentence or a title that wraps at the width of the terminal, and not at that of a table below it."""
    from rich.text import Text

    return Text(text, style=style)


def notes(texts: Iterable[str]) -> Iterator[Part]:
    """Remarks on what was found, dimmed."""
    yield from (wrapped(f"note: {with_flags(text)}", "dim") for text in texts)


def kept_schedule(found: AnySchedule) -> dict[str, Writer] | None:
    """The file to keep if an interrupt ends a schedule's presentation; None if its search was interrupted already."""
    return {_SCHEDULE: found.save} if found.complete else None


def schedule_parts(found: Schedule) -> Iterator[Part]:
    """A schedule's stages, what it takes and what is proved of it, and what is to be noted."""
    from iossim.report.schedule_words import schedule_table, summary

    yield schedule_table(found)
    yield wrapped(summary(found))
    yield from notes(found.remarks)


def table(title: str, rows: Sequence[Mapping[str, Any]], **columns: Any) -> Iterator[Part]:
    """A table with a column for each key of the first row, as :func:`iossim.base.tables.keyed_table` makes it."""
    from iossim.base.tables import keyed_table

    yield keyed_table(title, rows, **columns)


def json_text(document: Any) -> str:
    """JSON as commands print it."""
    return json.dumps(document, indent=1)


def json_file(document: Any) -> Writer:
    """Writes a file of what :func:`present` prints as JSON."""
    return text_file(json_text(document) + "\n")
