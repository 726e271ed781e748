"""``iossim study``: list, show, write and run studies, and report on them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from iossim.base.display import counted
from iossim.base.errors import IossimError, OptionError, did_you_mean, first_line, warn_once
from iossim.cli.options import command
from iossim.cli.outputs import ExitCode, present, table, tell_written, wrapped, write_files
from iossim.cli.progress import progress_bars

if TYPE_CHECKING:
    from iossim.study.scenario import Scenario


@command
def list_scenarios(as_json: bool = False) -> None:
    """List the scenarios that ship, with their points."""
    from iossim.study.points import work_of
    from iossim.study.scenario_file import read_scenario, scenario_names

    rows: list[dict[str, object]] = []
    for name in scenario_names():
        scenario = read_scenario(name)
        work = work_of(scenario)
        rows.append({"name": name, "title": scenario.title, **{key: work[key] for key in ("points", "schedules")}})
    present(rows, table("Scenarios", rows, wraps=("title",)), as_json)


@command
def show_scenario(name: str, as_json: bool = False) -> None:
    """Show the work of a scenario: its points, schedulers and questions, and their number."""
    from iossim.study.points import work_of
    from iossim.study.scenario_file import read_scenario

    scenario = read_scenario(name)
    work = work_of(scenario)
    document = {"scenario": scenario.model_dump(mode="json"), "work": work}
    worked = f"work: {counted(work['points'], 'point')}, {counted(work['schedules'], 'schedule')}"
    crossed = f"  {work['cross_prices']:,} prices of schedules at other points" if work["cross_prices"] else ""
    told = [
        f"{scenario.name}: {scenario.title or 'no title'}",
        scenario.description,
        *_contents(scenario),
        worked,
        crossed,
    ]
    present(
        document,
        [*filter(None, map(str.rstrip, told)), f"run it: iossim study run {name} --out {scenario.name}"],
        as_json,
    )


def _contents(scenario: Scenario) -> Iterator[str]:
    from iossim.study.points import labels_of
    from iossim.study.question import in_words

    yield f"points: {'all combinations of' if scenario.points is None else 'listed one by one'}"
    for axis, labels in labels_of(scenario).items():
        if len(labels) > 1 or axis in ("model", "device", "scheduler"):
            yield f"  {axis}: {'; '.join(map(str, labels))}"
    for title, texts in (
        ("asks", list(map(in_words, scenario.questions))),
        ("prices schedules across", scenario.cross_evaluate),
        ("measures besides", scenario.measures),
        ("published", [f"{each.says} ({each.source})" for each in scenario.published]),
    ):
        yield from (f"{title}:" * bool(texts), *(f"  {text}" for text in texts))


@command
def new_study(name: str, out: Path | None = None, force: bool = False) -> None:
    """Write a scenario with a comment on each field."""
    from iossim.study.scenario_file import write_new_scenario

    path = out or Path(f"{name}.yaml")
    if path.exists() and not force:
        raise OptionError(f"{path} is there already; choose another --out, or give --force to replace it")
    write_new_scenario(path, name)
    seen, run = f"iossim study show {path}", f"iossim study run {path} --out {name}"
    typer.echo(f"wrote {path}; see what it will do: {seen}; run it: {run}")


_PICTURE_FORMATS = ("svg", "png")


@command
def report(folder: Path, figures: str | None = None, plot: list[str] | None = None) -> None:
    """Report what a study found; without options DIR/report.html is written again."""
    if figures is not None and figures not in _PICTURE_FORMATS:
        raise OptionError(f"--figures {figures!r} is not known; {did_you_mean(figures, _PICTURE_FORMATS)}")
    if plot and figures is None:
        raise OptionError("--plot needs --figures; the report has all plots of its scenario")
    from iossim.study.run_directory import REPORT, read_run

    run = read_run(folder)
    if figures is None:
        from iossim.study.report.report import write_report

        write_report(run, folder / REPORT)
        tell_written([folder / REPORT])
        return

    from iossim.report.figures.vega import MOST_SLICES, picture_files
    from iossim.study.report.layout import fixed
    from iossim.study.report.plots import figures as figures_of

    drawn = figures_of(run, plot)
    if not drawn:
        raise OptionError(f"{folder} holds no data for {', '.join(plot or []) or 'any plot'}; leave --plot out")
    # A picture is seen without the page: what all its points have in common stands above it.
    same = ", ".join(fixed(run.results.rows))
    alone = [replace(figure, setup=same) for figure in drawn]
    write_files(folder / "figures", picture_files(alone, "svg" if figures == "svg" else "png", titled=True))
    if cut := [figure.name for figure in drawn if sum(1 for _ in figure.slices()) > MOST_SLICES]:
        drawn_alone = f"only the first {MOST_SLICES} choices are drawn"
        typer.echo(f"of {', '.join(cut)} {drawn_alone}; the page of the report has all of them", err=True)


@command
def run(
    scenario: str,
    *,
    out: Path,
    resume: bool = False,
    workers: int | None = None,
    report: bool = True,
    as_json: bool = False,
) -> None:
    """Run a study; prints its answers, then a table."""
    from rich.table import Table

    from iossim.study.report.report import printed, write_report
    from iossim.study.run_directory import FILES, REPORT
    from iossim.study.scenario_file import read_scenario
    from iossim.study.sweep import run_study

    read = read_scenario(scenario)
    try:
        with progress_bars(quiet=as_json, unit="points", tells_rest=True) as start:
            found = run_study(
                read, out, workers=workers, resume=resume, command=["iossim", *sys.argv[1:]], progress=start("study")
            )
    except KeyboardInterrupt:
        typer.echo(f"interrupted: what is done is kept in {out}; go on with --resume", err=True)
        raise typer.Exit(ExitCode.INCOMPLETE) from None
    try:
        if report:  # a failure does not spoil the run: 'iossim study report' makes it later
            write_report(found, found.folder / REPORT)
    except (ImportError, IossimError) as error:
        warn_once(f"no {REPORT} was written: {first_line(error)}")
    written = [name for name in FILES if (found.folder / name).exists()]
    rows = found.results.rows
    document = {
        "study": found.results.scenario.name,
        "folder": str(found.folder),
        "rows": len(rows),
        "failed": [row.model_dump(include={"point", "scheduler", "reason"}) for row in rows if row.status == "failed"],
        "answers": [answer.model_dump(mode="json") for answer in found.results.answers],
        "files": written,
    }
    parts = (part if isinstance(part, Table) else wrapped(part, style) for part, style in printed(found))
    present(document, parts, as_json)
    if not as_json:
        typer.echo(f"wrote {', '.join(written)} to {found.folder}", err=True)
