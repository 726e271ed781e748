"""Output of commands: what they print, the files that they write, and their exit codes."""

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
from iossim.cli.options import OptionGroup, with_flags

if TYPE_CHECKING:
    from rich.console import RenderableType

    from iossim.cost.model import CostModel
    from iossim.report.figures.figure import Figure
    from iossim.schedule.schedule import AnySchedule


class ExitCode(IntEnum):
    """Exit codes of commands; any other is a defect of iossim."""

    DONE = 0
    DOES_NOT_HOLD = 1  # the outcome of ``iossim check`` or ``dataflow run``
    MISTAKE = 2  #: in the input: one line on standard error says which, nothing was written
    INCOMPLETE = 3  #: the search was interrupted; what was printed and written is the best schedule so far
    INTERRUPTED = 130  # interrupted before there was a schedule, or twice (128 + SIGINT, as in shells)
    NO_READER = 141  # the reader of the output went away: a pager, head (128 + SIGPIPE)


#: Files of a schedule, and of its page.
SCHEDULE, PAGE = "schedule.json", "index.html"
Writer = Callable[[Path], None]
#: A line that does not wrap, or a table or sentence that the console lays out.
Part: TypeAlias = "str | RenderableType"
#: Libraries that draw pictures: the module, and its package.
_DRAWING = {"altair": "altair", "vl_convert": "vl-convert-python"}


@dataclass(frozen=True)
class TimelineOutputs(OptionGroup):
    """Output files of something that runs over time: a trace and a picture of it among others."""

    out: Path | None = None
    trace: bool | None = None
    plot: bool | None = None

    def check_files(self) -> None:
        """Refuse impossible outputs before the work starts."""
        if self.out is not None:
            from iossim.base.user_files import check_writable

            check_writable(self.out)
        if self.plot:
            check_drawing()

    @property
    def draws(self) -> bool:
        return wants_plot(self.plot)

    def check(self, cost_model: CostModel) -> None:
        """Refuse what cannot be written or drawn before the search starts."""
        from iossim.cost.capabilities import DeviceCostModel

        self.check_files()
        if (self.trace or self.plot) and not isinstance(cost_model, DeviceCostModel):
            remedy = "use the simulator, or leave out --trace and --plot"
            raise OptionError(f"cost model {cost_model.identity.name!r} has no timeline to draw; {remedy}")


def check_drawing() -> None:
    """Raise OptionError if a library that draws pictures is missing."""
    for name, package in _DRAWING.items():
        if find_spec(name) is None:
            raise OptionError(f"--plot needs {package}, which is not installed; pip install 'iossim[report]'")


def wants_plot(plot: bool | None) -> bool:
    """True where pictures are drawn: unless refused, if the libraries for it are installed."""
    return all(find_spec(name) is not None for name in _DRAWING) if plot is None else plot


def pictures(*figures: Figure) -> dict[str, Writer]:
    """Each figure as SVG and as PNG, under its name."""
    from iossim.report.figures.vega import picture_files

    return picture_files(figures, "svg", "png", titled=True)


def text_file(text: str) -> Writer:
    """Writer of a text file."""
    from iossim.base.user_files import write_atomically

    return lambda path: write_atomically(path, text)


def write_files(folder: Path, files: Mapping[str, Writer]) -> None:
    """Write files by name into a folder, all or none, and report it on standard error."""
    from iossim.base.user_files import write_all

    tell_written(write_all(folder, files))


#: More files than this are reported by their folder.
_FILES_NAMED = 5


def tell_written(paths: Iterable[Path]) -> None:
    """Report written files on standard error; for many in one folder, their number."""
    written = list(paths)
    folders = {path.parent for path in written}
    many = len(written) > _FILES_NAMED and len(folders) == 1
    what = f"{len(written)} files to {folders.pop()}" if many else ", ".join(map(str, written))
    typer.echo(f"wrote {what}", err=True)


def present(
    document: object,
    parts: Iterable[Part],
    as_json: bool,
    *,
    out: Path | None = None,
    files: Callable[[], Mapping[str, Writer]] = dict,
    kept: Mapping[str, Writer] | None = None,
    complete: bool = True,
    code: ExitCode = ExitCode.DONE,
) -> None:
    """Show a result: as JSON, or as tables and sentences; write its files to ``out``; and end with an exit code: that
    of an interrupted search if it is not ``complete``.

    The ``document`` is a value, or a function that makes it, or text that is JSON already. Strings among ``parts`` are
    printed as lines that do not wrap, and others as the console lays them out. Parts are made only where they are
    printed. ``kept`` files are written even if an interrupt ends this.
    """
    try:
        _print(document, parts, as_json)
        if out is not None:
            write_files(out, files())
    except KeyboardInterrupt:
        if out is None or kept is None:
            raise
        write_files(out, kept)
        complete = False
    if code or not complete:
        raise typer.Exit(code if complete else ExitCode.INCOMPLETE)


def _print(document: object, parts: Iterable[Part], as_json: bool) -> None:
    if as_json:
        made = document() if callable(document) else document
        typer.echo(made if isinstance(made, str) else json_text(made))
    else:
        from rich.console import Console

        # Text is printed literally: brackets are no markup, and numbers have no colour.
        console = Console(highlight=False, markup=False)
        for part in parts:
            if isinstance(part, str):
                typer.echo(part)
            else:
                console.print(part)


def wrapped(text: str, style: str = "") -> RenderableType:
    """A sentence or a title that wraps at the width of the terminal, not at that of a table below it."""
    from rich.text import Text

    return Text(text, style=style)


def notes(texts: Iterable[str]) -> Iterator[Part]:
    """Remarks on what was found, dimmed."""
    yield from (wrapped(f"note: {with_flags(text)}", "dim") for text in texts)


def kept_schedule(found: AnySchedule) -> dict[str, Writer] | None:
    """File to keep if an interrupt ends a schedule's presentation; None if its search was interrupted already."""
    return {SCHEDULE: found.save} if found.complete else None


def schedule_parts(found: AnySchedule) -> Iterator[Part]:
    """A schedule's stages or streams, its latency with its proof, and notes."""
    from iossim.report.schedule_tables import schedule_table, summary

    yield schedule_table(found)
    yield wrapped(with_flags(summary(found)))
    yield from notes(found.remarks)


def table(title: str, rows: Sequence[Mapping[str, Any]], **columns: Any) -> Iterator[Part]:
    """A table with one column per key of the first row, by :func:`iossim.base.tables.keyed_table`."""
    from iossim.base.tables import keyed_table

    yield keyed_table(title, rows, **columns)


def json_text(document: object) -> str:
    """JSON as commands print it."""
    return json.dumps(document, indent=1)


def json_file(document: object) -> Writer:
    """Writer of a file with the JSON that :func:`present` prints."""
    return text_file(json_text(document) + "\n")
