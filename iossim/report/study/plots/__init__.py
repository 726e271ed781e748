"""The kinds of figures that a report may have, a file each, found by looking."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from iossim.base.registry import Group, modules
from iossim.report.figures.figure import Figure
from iossim.report.study.plot import Plot, figure_command
from iossim.study.study_run import StudyRun


@cache
def plots() -> dict[str, Plot]:
    """All kinds by name, in their order on the page."""
    found: list[Plot] = [plot for module in modules(__name__) for plot in getattr(module, "PLOTS", ())]
    return {plot.name: plot for plot in sorted(found, key=lambda plot: (plot.order, plot.name))}


PLOTS: Group[Plot] = Group("plot {!r} is not known", plots, lambda name: plots().get(name))


def figures(run: StudyRun, names: list[str] | None = None) -> list[Figure]:
    """The figures of a study: those named, or those that the scenario names, or those that fit its axes.

    Raises OptionError for a name that is not known.
    """
    chosen = names or run.results.scenario.plots
    if chosen is None:
        kinds = [plot for plot in plots().values() if plot.fits(run)]
    else:
        kinds = [plot_named(name) for name in chosen]
    drawn = [figure for plot in kinds if (figure := plot.draw(run)) is not None]
    return [replace(figure, command=figure.command or figure_command(run, figure.name)) for figure in drawn]


def plot_named(name: str) -> Plot:
    """A kind by its name; raises OptionError for one that is not known."""
    return PLOTS.find(name)
