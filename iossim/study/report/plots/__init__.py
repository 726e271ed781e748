"""The kinds of figures of a report, one module each, found by import; and the commands that redraw them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

from iossim.base.registry import Group, guest_modules, modules
from iossim.base.shipped_yaml import shipped
from iossim.base.tables import Column
from iossim.report.figures.figure import Figure
from iossim.study.axes import METRICS
from iossim.study.study_run import StudyRun


@dataclass(frozen=True, slots=True)
class Plot:
    """A kind of figure, of ``PLOTS`` of a module of ``iossim.study.report.plots`` or a guest's ``NAME_plots``."""

    name: str
    #: Position on the page.
    order: int
    #: True where a report has it although the scenario names no plots; None where it has whatever there is data for.
    fits: Callable[[StudyRun], bool] | None
    #: The figure, None where the study holds no data for it.
    draw: Callable[[StudyRun], Figure | None]


@cache
def _words() -> dict[str, dict[str, Any]]:
    words: dict[str, dict[str, Any]] = shipped(__name__, "figures.yaml")
    return words


def words_of(name: str, **told: object) -> dict[str, Any]:
    """Name, title, caption and description of a figure, as ``figures.yaml`` has them, with ``told`` filled in."""
    return {"name": name} | {key: text.format(**told) for key, text in _words()[name].items() if key != "columns"}


def columns_of(name: str, *first: Column) -> tuple[Column, ...]:
    """Columns of a figure's data: after the ``first`` those that ``figures.yaml`` lists."""
    listed: dict[str, dict[str, Any] | None] = _words()[name]["columns"]
    metrics = {key: METRICS[key].column for key, options in listed.items() if options is None and key in METRICS}
    return (*first, *(metrics.get(key) or Column(key, **(options or {})) for key, options in listed.items()))


def study_command(run: StudyRun) -> str:
    """The command that ran the study, as recorded in its environment, or one that runs it again."""
    attempts = run.environment.get("attempts") or [{}]
    said = attempts[0].get("command") or run.environment.get("command")
    if isinstance(said, list) and said:
        return shlex.join(map(str, said))
    return f"iossim study run scenario.yaml --out {shlex.quote(run.folder.name)}"


def figure_command(run: StudyRun, plot: str) -> str:
    """The command that draws one figure of a run directory as a picture."""
    return f"iossim study report {shlex.quote(run.folder.name)} --plot {plot} --figures svg"


def in_folder(run: StudyRun, file: str) -> str:
    """A file of the run directory, as a command takes it."""
    return shlex.quote(f"{run.folder.name}/{file}")


@cache
def plots() -> dict[str, Plot]:
    """All kinds by name, in their order on the page."""
    found = [*modules(__name__), *map(import_module, guest_modules("plots").values())]
    all_plots: list[Plot] = [plot for module in found for plot in getattr(module, "PLOTS", ())]
    return {plot.name: plot for plot in sorted(all_plots, key=lambda plot: (plot.order, plot.name))}


PLOTS: Group[Plot] = Group("plot {!r} is not known", plots, lambda name: plots().get(name))


def figures(run: StudyRun, names: list[str] | None = None) -> list[Figure]:
    """The figures named, those of the scenario, or those that fit its axes; raises OptionError for an unknown name."""
    chosen = names or run.results.scenario.plots
    if chosen is None:
        kinds = [plot for plot in plots().values() if plot.fits is None or plot.fits(run)]
    else:
        kinds = [PLOTS.find(name) for name in chosen]
    drawn = [figure for plot in kinds if (figure := plot.draw(run)) is not None]
    return [replace(figure, command=figure.command or figure_command(run, figure.name)) for figure in drawn]
