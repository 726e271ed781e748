"""Layout of the axes of a study in a figure: groups of bars, panels, and choices of the reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from iossim.base.tables import Cell, Column, number_of
from iossim.report.figures.figure import Panel, title_of
from iossim.study.axes import AXES, KINDS, METRICS, Quantity, name_of
from iossim.study.row_comparison import axis_value, grouped, varied_axes
from iossim.study.row_comparison import best_of as best_by
from iossim.study.study_run import Row, StudyRun

#: A reader chooses from the values of a longer axis, instead of seeing all beside each other.
MOST_GROUPS, MOST_PANELS = 16, 4
#: Stands for all axes together, if they do not form a grid.
POINT = "point_label"


@dataclass(frozen=True, slots=True)
class Layout:
    """The axis (or ``point_label``) of a figure's groups, that of its panels, and those to choose from."""

    group: str
    panel: str | None
    choices: tuple[Column, ...]


def values_of(rows: Sequence[Row], axis: str) -> list[Cell]:
    """Distinct values on an axis in order of appearance, which is the scenario's."""
    return list(dict.fromkeys(axis_value(row, axis) for row in rows))


def varying(rows: Sequence[Row]) -> list[str]:
    """Axes of points that have several values."""
    return [axis for axis in varied_axes(rows) if axis in AXES]


def fixed(rows: Sequence[Row]) -> dict[str, Cell]:
    """Axes that have one value, and that value."""
    found = {axis: values[0] for axis in AXES if len(values := values_of(rows, axis)) == 1}
    asked = {kind.axis.name: any(axis_value(row, kind.axis.name) != kind.axis.usual for row in rows) for kind in KINDS}
    return {
        axis: value
        for axis, value in found.items()
        if asked.get(axis, AXES[axis].of_all_kinds or not any(asked.values()))
    }


def fixed_in_words(rows: Sequence[Row]) -> str:
    """Values that all rows share, in a sentence; empty without any."""
    told = ", ".join(f"{title_of(axis)} {value}" for axis, value in fixed(rows).items())
    return f"All rows have {told}." if told else ""


def in_sample_in_words(rows: Sequence[Row]) -> str:
    """Models with fitted published figures (in-sample, so that their latencies are no predictions), in a sentence."""
    models = dict.fromkeys(row.model for row in rows if row.in_sample)
    if not models:
        return ""
    return (
        f"The sequential latencies of {', '.join(models)} are in-sample where a figure is published: the device's "
        "parameters were fitted to these. iossim compare shows the latency by a fit without the network."
    )


def coordinates(row: Row, axes: Sequence[str]) -> dict[str, Cell]:
    """A row's values on some axes, as cells of a record."""
    return {axis: axis_value(row, axis) for axis in axes}


def point_label(row: Row, axes: Sequence[str]) -> str:
    """A point in a few words: its values on the axes that vary, or its model where none does."""
    shown = [axis for axis in axes if axis in AXES] or ["model"]
    return place_of(coordinates(row, shown), shown)


def layout(rows: Sequence[Row], group: str | None = None) -> Layout:
    """Deal the varying axes to groups, panels and choices; ``group``, if given, is the axis of the groups, however
    long.
    """
    axes = _by_preference(rows)
    if not axes:
        return Layout("model", None, ())
    sizes = {axis: len(values_of(rows, axis)) for axis in axes}
    points = len({tuple(coordinates(row, axes).values()) for row in rows})
    if group is None and points < prod(sizes.values()) and points <= MOST_GROUPS:
        return Layout(POINT, None, ())
    # This is the longest axis that can be stacked; among equals, the one that makes the best groups.
    group = group or max(axes, key=lambda axis: (sizes[axis] if sizes[axis] <= MOST_GROUPS else 0, -axes.index(axis)))
    return Layout(group, *panels_and_choices(rows, [group]))


def _by_preference(rows: Sequence[Row]) -> list[str]:
    return sorted(varying(rows), key=lambda axis: AXES[axis].group_rank)


def panels_and_choices(rows: Sequence[Row], drawn: Sequence[str]) -> tuple[str | None, tuple[Column, ...]]:
    """The axis of the panels, and those to choose from: the varying ones, except those that a panel draws itself."""
    axes = [axis for axis in _by_preference(rows) if axis not in drawn]
    panel = next((axis for axis in axes if len(values_of(rows, axis)) <= MOST_PANELS), None)
    return panel, axis_columns(axis for axis in axes if axis != panel)


def place_of(record: Mapping[str, Cell], axes: Iterable[str]) -> str:
    """Place of a record on some axes: ``t4, batch 8``."""
    return ", ".join(name_of(axis, record[axis]) for axis in axes)


def sides(rows: Sequence[Row], axis: str | None) -> list[tuple[str, dict[str, Cell]]]:
    """The start of a title, and the cells of its records, for each value of the panels' axis."""
    if axis is None:
        return [("", {})]
    return [(f"{name_of(axis, value)}: ", {axis: value}) for value in values_of(rows, axis)]


def panels(rows: Sequence[Row], axis: str | None, spec: Mapping[str, Any]) -> tuple[Panel, ...]:
    """One panel per value of an axis, or a single one; all are drawn alike."""
    return tuple(Panel(title.removesuffix(": "), spec, where) for title, where in sides(rows, axis))


def points(run: StudyRun) -> dict[int, list[Row]]:
    """Rows of each point, including failed schedulers."""
    return {int(number): rows for (number,), rows in grouped(run.results.rows, ("point",)).items()}


def best_of(rows: Sequence[Row]) -> Row | None:
    """The fastest row of a point; among equals the last, which searched the larger space; None where all failed."""
    return best_by(rows, Quantity(), is_low=True)


def best_finding(run: StudyRun, metric: str) -> str:
    """The best figure of a metric and its row, in a sentence; empty where no row has one."""
    rows, direction = run.results.rows, METRICS[metric].better
    best = best_by(rows, Quantity(metric), is_low=direction == "lowest")
    if best is None:
        return ""
    told = f"{METRICS[metric].words}: {Quantity(metric).told(best)}"
    return f"{direction.capitalize()} {told} ({point_label(best, varying(rows))}, {best.scheduler})."


def most(records: Iterable[Mapping[str, Cell]], key: str, least: bool = False) -> Mapping[str, Cell] | None:
    """The record with the largest number in a cell, or the least; None where no record has one."""
    known = [record for record in records if record[key] is not None]
    return (min if least else max)(known, key=lambda record: number_of(record[key]), default=None)


def axis_columns(axes: Iterable[str]) -> tuple[Column, ...]:
    """Columns of a figure's data for axes."""
    return tuple(Column(axis, title_of(axis)) for axis in axes)
