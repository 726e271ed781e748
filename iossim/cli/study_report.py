"""``iossim study report``: the page of a study's run again, its figures as pictures, or as tables of the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iossim.base.errors import OptionError, did_you_mean
from iossim.cli.outputs import tell_written, write_files

if TYPE_CHECKING:
    from iossim.report.figures.figure import Figure
    from iossim.report.figures.pictures import PictureFormat

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, which 'iossim study run' wrote.")]
Figures = Annotated[
    str | None,
    typer.Option("--figures", metavar="FORMAT", help="Write the figures as svg or png to DIR/figures instead."),
]
Tables = Annotated[bool, typer.Option("--table", help="Print the figures as tables instead.")]
Plots = Annotated[
    list[str] | None,
    typer.Option("--plot", metavar="NAME", help="With --figures or --table: this kind alone; may be repeated."),
]

_FORMATS = ("svg", "png")


def register_in(group: typer.Typer) -> None:
    group.command("report", help="Write a run's report again, its figures as pictures, or print them as tables.")(
        report
    )


def report(folder: Folder, figures: Figures = None, table: Tables = False, plot: Plots = None) -> None:
    """Report what a study found; without options DIR/report.html is written again."""
    if figures is not None and figures not in _FORMATS:
        raise OptionError(f"--figures {figures!r} is not known; {did_you_mean(figures, _FORMATS)}")
    if plot and not table and figures is None:
        raise OptionError("--plot needs --figures or --table; the report has all plots of its scenario")
    from iossim.study.run_directory import read_run

    run = read_run(folder)
    if figures is None and not table:
        from iossim.report.study import write_report

        path = folder / "report.html"
        write_report(run, path)
        tell_written([path])
        return
    from iossim.report.study.plots import figures as figures_of

    drawn = figures_of(run, plot)
    if not drawn:
        raise OptionError(f"{folder} holds no data for {', '.join(plot or []) or 'any plot'}; leave --plot out")
    if table:
        from rich.console import Console

        from iossim.report.study.terminal import print_figure

        console = Console()
        for figure in drawn:
            print_figure(console, figure)
    if figures is not None:
        _write_pictures(folder / "figures", drawn, "svg" if figures == "svg" else "png")


def _write_pictures(folder: Path, drawn: list[Figure], kind: PictureFormat) -> None:
    from iossim.report.figures.pictures import MOST_SLICES, picture_files

    files = picture_files(drawn, kind)
    write_files(folder, files)
    cut = [figure.name for figure in drawn if sum(1 for _ in figure.slices()) > MOST_SLICES]
    if cut:
        typer.echo(
            f"of {', '.join(cut)} only the first {MOST_SLICES} choices are drawn; the page of the report has all of them",
            err=True,
        )
