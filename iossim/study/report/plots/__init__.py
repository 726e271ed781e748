"""The kinds of figures of a report, one module for each way of drawing, found by import; what they have in common, and
the commands that redraw them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from iossim.base.registry import Group, guest_modules, modules
from iossim.base.shipped_yaml import shipped
from iossim.base.tables import Column
from iossim.report.figures.figure import Figure, Panel, Spec
from iossim.study.axes import METRICS, name_of
from iossim.study.report.layout import Layout, Record, axis_columns
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


#: A specification, or a function that makes that of a panel from its records.
Picture = Spec | Callable[[Sequence[Record]], Spec]


def figure_of(
    name: str,
    laid: Layout,
    records: Sequence[Record],
    pictures: Mapping[str, Picture],
    told: Mapping[str, object] = MappingProxyType({}),
    **parts: Any,
) -> Figure:
    """A figure of records: title, caption, description and columns (after those of its axes) of its name in
    ``figures.yaml``, with ``told`` filled in.

    Each of the ``pictures`` (by title) is a panel, for each value of the panels' axis if there is one. ``parts`` are
    the other fields of the figure, and take precedence.
    """
    words = {} if "title" in parts else words_of(name, told) | {"columns": columns_of(name, *axis_columns(laid.axes))}
    panels = []
    for value in laid.values:
        where = {} if laid.panel is None else {laid.panel: value}
        named = [name_of(axis, value) for axis in where]
        own = [record for record in records if all(record.get(key) == each for key, each in where.items())]
        for what, picture in pictures.items():
            spec = picture(own) if callable(picture) else picture
            panels.append(Panel(": ".join([*named, *filter(None, [what])]), spec, where))
    made = {"panels": tuple(panels), "choices": laid.choices, **words, **parts}
    return Figure(name=name, records=tuple(records), **made)


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    words: dict[str, dict[str, Any]] = shipped(__name__, "figures.yaml")
    return words


def words_of(name: str, told: Mapping[str, object]) -> dict[str, str]:
    """Title, caption, description and, if any, title of the axis of a figure, with ``told`` filled in."""
    return {key: text.format(**told) for key, text in _shipped()[name].items() if key != "columns"}


def columns_of(name: str, *first: Column) -> tuple[Column, ...]:
    """Columns of a figure's data: after the ``first`` those that ``figures.yaml`` lists."""
    listed: dict[str, dict[str, Any] | None] = _shipped()[name]["columns"]
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
