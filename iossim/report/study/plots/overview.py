"""All points of a large study at a glance: what the best schedule of each is worth, as a heat map over two axes."""

from __future__ import annotations

from collections.abc import Mapping

from iossim.base.tables import Cell, Column, number_of
from iossim.report.figures.figure import Figure, Panel, title_of
from iossim.report.figures.heat_map import heat_map
from iossim.report.study.layout import axis_columns, best_of, coordinates, panel_title, points, values_of, varying
from iossim.report.study.plots import Plot
from iossim.report.study.plots.bars import baseline_of
from iossim.study.axes import AXES, name_of
from iossim.study.study_run import StudyRun

_FEW_POINTS = 12
_NAME = "overview"


def fits(run: StudyRun) -> bool:
    """A few points are seen better as bars."""
    rows = run.results.rows
    return len(varying(rows)) > 1 and len(points(run)) > _FEW_POINTS and len({row.scheduler for row in rows}) > 1


def draw(run: StudyRun) -> Figure | None:
    rows = run.results.rows
    axes = varying(rows)
    if len(axes) < 2:
        return None
    # The axis of the shortest names stands along the top.
    x = min(axes, key=lambda axis: AXES[axis].column_rank)
    y = max((axis for axis in axes if axis != x), key=lambda axis: len(values_of(rows, axis)))
    choices = tuple(Column(axis, title_of(axis)) for axis in axes if axis not in (x, y))
    records = []
    for number, members in points(run).items():
        best = best_of(members)
        record: dict[str, Cell] = {
            "point": number,
            **coordinates(members[0], axes),
            "x": panel_title(x, getattr(members[0], x)).removeprefix("batch "),
            "y": panel_title(y, getattr(members[0], y)),
            "scheduler": None if best is None else best.scheduler,
            "speedup_x": None if best is None else best.speedup,
            "latency_ms": None if best is None else best.latency_ms,
            "text": "failed" if best is None or best.speedup is None else f"{best.speedup:.2f}",
            "latency": "failed" if best is None else f"{best.latency_ms:.4g} ms",
        }
        records.append(record)
    speedups = [float(record["speedup_x"]) for record in records if isinstance(record["speedup_x"], float)]
    if not speedups:
        return None
    baseline = baseline_of(run)
    titles = {
        "x": title_of(x),
        "y": title_of(y),
        "speedup_x": f"speed-up over {baseline} (×)",
        "text": "speed-up (×)",
        "scheduler": "best scheduler",
    }
    spec = heat_map(
        "x", "y", "speedup_x", "text", titles=titles, x_values=_ordered(records, "x"), y_values=_ordered(records, "y"),
        least=1.0, most=max(1.1, *speedups), tooltips=("text", "scheduler", "latency"),
    )  # fmt: skip
    top = max(records, key=lambda record: number_of(record["speedup_x"]))
    return Figure(
        name=_NAME,
        title="All points at a glance",
        finding=(
            f"Scheduling is worth most at {_place(top, axes)}: {float(top['speedup_x'] or 0.0):.2f} times as fast as "
            f"{baseline}, by {top['scheduler']}."
        ),
        caption=f"Speed-up (×) of the fastest schedule of each point over {baseline}: number and colour say the same.",
        alt="Matrix of the speed-up of the best schedule of each point.",
        columns=(
            *axis_columns(axes),
            Column("scheduler", "best scheduler"),
            Column("speedup_x", "speed-up"),
            Column("latency_ms", digits=3),
        ),
        records=tuple(records),
        panels=(Panel("", spec),),
        choices=choices,
    )


def _ordered(records: list[dict[str, Cell]], key: str) -> list[Cell]:
    return list(dict.fromkeys(record[key] for record in records))


def _place(record: Mapping[str, Cell], axes: list[str]) -> str:
    return ", ".join(name_of(axis, record[axis]) for axis in axes)


PLOTS = (Plot(_NAME, 5, fits, draw),)
