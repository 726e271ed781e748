"""Layout of the axes of a study in a figure: groups of bars, panels, and choices of the reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from iossim.base.tables import Cell, Column, number_of
from iossim.report.figures.figure import choice_words, title_of
from iossim.study.axes import AXES, KINDS, METRICS, Quantity, name_of
from iossim.study.study_run import Row, StudyRun
from iossim.study.table import best_of as best_by
from iossim.study.table import context, grouped, varied_axes

Record = dict[str, Cell]
#: A reader chooses from the values of a longer axis, instead of seeing all beside each other.
MOST_GROUPS, MOST_PANELS = 16, 4
#: Most networks without enough memory that are named.
_LISTED = 3
#: Stands for all axes together, if they do not form a grid.
POINT = "point_label"


@dataclass(frozen=True, slots=True)
class Layout:
    """The axes of a figure's data, those that a reader chooses from, and that of its panels with its values."""

    axes: Sequence[str]
    choices: tuple[Column, ...]
    panel: str | None = None
    values: Sequence[Cell] = (None,)


def values_of(rows: Sequence[Row], axis: str) -> list[Cell]:
    """Distinct values on an axis in order of appearance, which is the scenario's."""
    return list(dict.fromkeys(getattr(row, axis) for row in rows))


def varying(rows: Sequence[Row]) -> list[str]:
    """Axes of points that have several values."""
    return [axis for axis in varied_axes(rows) if axis in AXES]


def fixed(rows: Sequence[Row]) -> list[str]:
    """Values that all rows share, in words. Axes of other kinds of studies are left out."""
    asked = {kind.axis.name: any(getattr(row, kind.axis.name) != kind.axis.usual for row in rows) for kind in KINDS}
    return [
        choice_words(axis, values[0])
        for axis in AXES
        if len(values := values_of(rows, axis)) == 1
        and asked.get(axis, AXES[axis].of_all_kinds or not any(asked.values()))
    ]


def fixed_in_words(rows: Sequence[Row]) -> str:
    """What all rows share, in a sentence; empty without any."""
    told = ", ".join(fixed(rows))
    return f"All rows have {told}." if told else ""


def remarks_in_words(rows: Sequence[Row]) -> str:
    """Sentences on models with fitted published figures (in-sample, so that their latencies are no predictions), on the
    baseline of speed-ups where joins were chosen, and on want of memory; empty without any.
    """
    models = dict.fromkeys(row.model for row in rows if row.in_sample)
    in_sample = (
        f"The sequential latencies of {', '.join(models)} are in-sample where a figure is published: the device's "
        "parameters were fitted to these. iossim compare shows the latency by a fit without the network."
    )
    chosen = dict.fromkeys(row.model for row in rows if row.scheduler == "sequential" and row.speedup not in (None, 1))
    joins = (
        f"Sums of branches of {', '.join(chosen)} are fused into convolutions, or apart, as is faster; speed-ups are "
        "over the model's units one by one. 'units: model' leaves the units so."
    )
    lacking = dict.fromkeys(row.remark for row in rows if row.remark)
    few = "; ".join([*list(lacking)[:_LISTED], *([f"{len(lacking) - _LISTED} more"] if len(lacking) > _LISTED else [])])
    memory = f"Want of memory: {few}."
    return " ".join(said for said, names in ((in_sample, models), (joins, chosen), (memory, lacking)) if names)


def coordinates(row: Row, axes: Sequence[str]) -> Record:
    """A row's values on some axes, as cells of a record."""
    return {axis: getattr(row, axis) for axis in axes}


def point_label(row: Row, axes: Sequence[str]) -> str:
    """A point in a few words: its values on the axes that vary, or its model where none does."""
    return ", ".join(name_of(axis, getattr(row, axis)) for axis in axes or ["model"])


def group_of(rows: Sequence[Row]) -> str:
    """The axis of groups of bars, or ``POINT``: the longest axis that can be stacked; among equals, the one that makes
    the best groups.
    """
    axes = _by_preference(rows)
    sizes = {axis: len(values_of(rows, axis)) for axis in axes}
    points = len({context(row, axes) for row in rows})
    if points < prod(sizes.values()) and points <= MOST_GROUPS:
        return POINT
    return max(axes, key=lambda axis: sizes[axis] if sizes[axis] <= MOST_GROUPS else 0, default="model")


def _by_preference(rows: Sequence[Row]) -> list[str]:
    return sorted(varying(rows), key=lambda axis: AXES[axis].group_rank)


def layout(rows: Sequence[Row], drawn: Sequence[str], axes: Sequence[str], *choices: Column) -> Layout:
    """Deal the varying axes, except those that a panel draws itself, to panels and choices, after other ``choices``."""
    left = [axis for axis in _by_preference(rows) if axis not in drawn]
    panel = next((axis for axis in left if len(values_of(rows, axis)) <= MOST_PANELS), None)
    others = axis_columns(axis for axis in left if axis != panel)
    return Layout(axes, (*choices, *others), panel, (None,) if panel is None else values_of(rows, panel))


def place_of(record: Mapping[str, Cell], axes: Iterable[str]) -> str:
    """Place of a record on some axes: ``t4, batch 8``."""
    return ", ".join(name_of(axis, record[axis]) for axis in axes)


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


def most(records: Sequence[Record], key: str, least: bool = False) -> Record:
    """The record with the largest number in a cell, or the least; the first where no record has one."""
    known = [record for record in records if record[key] is not None]
    return (min if least else max)(known, key=lambda record: number_of(record[key]), default=records[0])


def axis_columns(axes: Iterable[str]) -> tuple[Column, ...]:
    """Columns of a figure's data for axes."""
    return tuple(Column(axis, title_of(axis)) for axis in axes)
