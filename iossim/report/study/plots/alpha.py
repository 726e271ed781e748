"""Alpha against cost: the gain if graphs of up to alpha times the best cost are expanded (MetaFlow, figure 10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iossim.base.tables import Cell, Column, number_of
from iossim.report.colours import scheduler_marks
from iossim.report.figures.figure import Figure, title_of
from iossim.report.figures.vega import layer, need_altair, scheduler_legend, scheduler_scale, shape_scale, specification
from iossim.report.study.layout import axis_columns, coordinates, panels, panels_and_choices, values_of, varying
from iossim.report.study.plots import Plot
from iossim.study.axes import Rewrite
from iossim.study.study_run import Row, StudyRun

_HEIGHT_PIXELS = 250
_NAME = "alpha"


def draw(run: StudyRun) -> Figure | None:
    rewrites = _rewrites(run)
    rows = [row for row in run.results.rows if row.rewrite in rewrites and row.latency_ms is not None]
    axes = [axis for axis in varying(run.results.rows) if axis != "rewrite"]
    as_given = {
        _place(row, axes): row.latency_ms
        for row in run.results.rows
        if row.rewrite not in rewrites and row.latency_ms is not None
    }
    rows = [row for row in rows if as_given.get(_place(row, axes))]
    if not rows:
        return None
    records = [_record(row, rewrites[row.rewrite], as_given[_place(row, axes)], axes) for row in rows]
    models = [str(model) for model in values_of(rows, "model")]
    schedulers = values_of(rows, "scheduler")
    # The scheduler that searched most comes first: it is shown before a reader chooses.
    records.sort(key=lambda record: (-schedulers.index(record["scheduler"]), number_of(record["alpha"])))
    panel, choices = panels_and_choices(rows, ["model", "rewrite"])
    for key, name in (("searched_by", "substitutions searched by"), ("scheduler", "scheduler")):
        if len({record[key] for record in records}) > 1:
            choices = (Column(key, name), *choices)
    spec = _specification(models)
    return Figure(
        name=_NAME,
        title="Alpha against cost",
        finding=_finding(records),
        caption=(
            "Latency of the rewritten network, in percent of the network as given by the same scheduler, if graphs are "
            "searched on that cost up to alpha times the best one so far. At 1 no step may cost. The axis does not "
            "begin at zero."
        ),
        alt="Lines of the rewritten networks' latencies against alpha, a line a network.",
        columns=(
            *axis_columns([axis for axis in axes if axis != "model"]),
            Column("model", title_of("model")),
            Column("scheduler"),
            Column("searched_by", "substitutions searched by"),
            Column("alpha", digits=2),
            Column("latency_ms", digits=3),
            Column("of_given_percent", "of the network as given, %", digits=1),
        ),
        records=tuple(records),
        panels=panels(rows, panel, spec),
        choices=choices,
        legend=scheduler_legend(models, lines=True),
    )


def _rewrites(run: StudyRun) -> dict[str, Rewrite]:
    return {rewrite.label: rewrite for rewrite in run.results.scenario.rewrites if rewrite.rewrites}


def _place(row: Row, axes: Sequence[str]) -> tuple[Cell, ...]:
    """The labels that a row shares with the row of the network as given."""
    return (row.scheduler, *coordinates(row, axes).values())


def _record(row: Row, rewrite: Rewrite, given_ms: float | None, axes: Sequence[str]) -> dict[str, Cell]:
    return {
        **coordinates(row, axes),
        "model": row.model,
        "scheduler": row.scheduler,
        "searched_by": rewrite.search,
        "alpha": rewrite.alpha,
        "latency_ms": row.latency_ms,
        "of_given_percent": 100 * number_of(row.latency_ms) / number_of(given_ms),
    }


def _specification(models: Sequence[str]) -> dict[str, Any]:
    alt = need_altair()
    marks = scheduler_marks(models)
    colour = alt.Color("model:N", sort=list(marks), scale=alt.Scale(**scheduler_scale(models)))
    shape = alt.Shape("model:N", sort=list(marks), scale=alt.Scale(**shape_scale(models)))
    tooltip = [
        alt.Tooltip("model:N", title="network"),
        alt.Tooltip("alpha:Q", title="alpha", format=".3~r"),
        alt.Tooltip("latency_ms:Q", title="latency, ms", format=",.4~r"),
        alt.Tooltip("of_given_percent:Q", title="of the network as given, %", format=".1f"),
    ]
    near = alt.Scale(zero=False, padding=14)
    y = alt.Y(
        "of_given_percent:Q", title="latency, of the network as given (%)", scale=near, axis=alt.Axis(tickCount=5)
    )
    base = layer().encode(x=alt.X("alpha:Q", title="alpha (×)", scale=near, axis=alt.Axis(tickCount=5)), color=colour)
    return specification(
        base.mark_line().encode(y=y),
        base.mark_point(size=50).encode(y=y, shape=shape, tooltip=tooltip),
        height=_HEIGHT_PIXELS,
    )


def _finding(records: Sequence[dict[str, Cell]]) -> str:
    """The network that the largest alpha gains most over the smallest, of those that are shown first."""
    first = records[0]
    shown = [r for r in records if all(r[key] == first[key] for key in ("scheduler", "searched_by"))]
    low, high = (ends(number_of(record["alpha"]) for record in shown) for ends in (min, max))
    found: dict[Cell, dict[float, float]] = {}
    for record in reversed(shown):
        found.setdefault(record["model"], {})[number_of(record["alpha"])] = number_of(record["of_given_percent"])
    gains = {model: at[low] - at[high] for model, at in found.items() if low in at and high in at}
    if not gains:
        return "No network was searched at both ends of alpha."
    model = max(gains, key=lambda name: gains[name])
    if gains[model] <= 0:
        return f"No network gains from alpha {high:g} rather than {low:g}."
    at = found[model]
    gain = f"{at[high]:.1f} instead of {at[low]:.1f} % of its latency as given"
    return f"{model} gains most from alpha {high:g} rather than {low:g}: {gain}."


PLOTS = (Plot(_NAME, 44, lambda run: len({rewrite.alpha for rewrite in _rewrites(run).values()}) > 1, draw),)
