"""Bar charts of studies: speed-up, latency, active warps, peak memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import floor, log10
from typing import Any

from iossim.base.tables import Column
from iossim.report.figures.bars import WHISKERS, bar_legend, bar_record, bar_specification, share_scales
from iossim.report.figures.figure import Figure, LegendEntry
from iossim.report.figures.vega import scheduler_legend
from iossim.study.axes import AXES, METRICS, Quantity, name_of
from iossim.study.report import layout
from iossim.study.report.plots import Plot, figure_of, words_of
from iossim.study.study_run import Row, StudyRun

#: Widths of the text after a bar: of a value, and of one with a board's power.
_TEXT_PIXELS, _LONG_TEXT_PIXELS = 64, 110


def bar_plot(
    name: str,
    order: int,
    metric: str,
    written: Callable[[float], str],
    fits: Callable[[StudyRun], bool] | None = None,
    *,
    of_devices: bool = False,
    words: Mapping[str, str] | None = None,
) -> Plot:
    """Bars of one metric; by default a report has them where any row has the metric.

    Latencies have whiskers for the expected interval, the published one beside them, and the limit of the scenario as
    a line. ``of_devices`` compares devices: the best schedule of each, the fastest device first, with its board power.
    ``words`` are title, caption, description and title of the ``axis`` of values; by default those of ``figures.yaml``.
    """
    return Plot(name, order, fits, partial(_draw, name, metric, written, of_devices, words))


def _draw(
    name: str,
    metric: str,
    written: Callable[[float], str],
    of_devices: bool,
    words: Mapping[str, str] | None,
    run: StudyRun,
) -> Figure | None:
    rows = [row for row in run.results.rows if row.status == "failed" or getattr(row, metric) is not None]
    if all(getattr(row, metric) is None for row in rows):
        return None
    points, baseline = layout.points(run).values(), baseline_of(run)
    bests = [best for own in points if (best := layout.best_of(own)) is not None]
    ties: set[int] = set()
    if of_devices:
        rows = sorted(bests, key=lambda row: row.latency_ms or 0.0)
    else:
        at_best = {best.point: best.ties for best in bests}
        ties = {id(row) for row in rows if row.scheduler in at_best.get(row.point, ())}
    if metric == "speedup":  # of the baseline itself they would all be 1
        rows = [row for row in rows if row.scheduler != baseline] or rows
    shown = METRICS[metric].column
    assert shown is not None
    axes, schedulers = layout.varying(rows), [str(value) for value in layout.values_of(rows, "scheduler")]
    group = "device" if of_devices else layout.group_of(rows)
    shown_axes = [axis for axis in AXES if axis in axes] or ["model"]
    laid = layout.layout(rows, axes if group == layout.POINT else [group], shown_axes)
    records: list[layout.Record] = []
    for row in rows:
        value: float | None = getattr(row, metric)
        place = layout.point_label(row, axes) if group == layout.POINT else name_of(group, getattr(row, group))
        text, note = "failed", f"failed: {row.reason}" if row.reason else "failed"
        if value is not None:
            text, note = (f"{written(value)} ≈", "tie with the best") if id(row) in ties else (written(value), "")
        text += f", {row.board_power_w:.0f} W" if of_devices and row.board_power_w else ""
        marks = bar_record(value, text)
        if metric == "latency_ms":
            interval = None if row.low_ms is None or row.high_ms is None else (row.low_ms, row.high_ms)
            marks = bar_record(value, text, interval, row.published_ms)
        key: layout.Record = {**layout.coordinates(row, axes or ["model"]), "group": place, "scheduler": row.scheduler}
        records.append({**key, shown.key: value, "note": note, **marks})
    share_scales(records, [choice.key for choice in laid.choices], laid.panel)
    limit = _limit_ms(run) if metric == "latency_ms" else None
    told: dict[str, Any] = dict(words or words_of(name, {"baseline": baseline}))
    spec = bar_specification(
        shown.key,
        told.pop("axis"),
        schedulers,
        records,
        list(dict.fromkeys(record["group"] for record in records)),
        limit,
        _LONG_TEXT_PIXELS if of_devices else _TEXT_PIXELS,
    )
    intervals = ("low_ms", "high_ms") if any(record["low_ms"] is not None for record in records) else ()
    asked = (LegendEntry(f"asked for: at most {limit:g} ms", "currentColor", "dashes"),) if limit is not None else ()
    return figure_of(
        name,
        laid,
        records,
        {"": spec},
        **told,
        finding=_devices_finding(run, bests) if of_devices else layout.best_finding(run, metric),
        columns=(
            *layout.axis_columns(shown_axes),
            Column("scheduler"),
            *(METRICS[each].column or Column(each) for each in (metric, *intervals, "published_ms")),
            Column("note"),
        ),
        legend=(*scheduler_legend(schedulers), *bar_legend(records, WHISKERS), *asked),
    )


def baseline_of(run: StudyRun) -> str:
    """Baseline of speed-ups, in words."""
    scenario, schedulers = run.results.scenario, {row.scheduler for row in run.results.rows}
    if (kind := scenario.kind) is None:
        return "sequential" if "sequential" in schedulers else "the slowest schedule"
    return kind.baseline(getattr(scenario, kind.axis.field), schedulers) or "the slowest schedule"


def three_digits(value: float) -> str:
    """A number with three significant digits, trailing zeros and thousands apart: 0.880, 4.40, 1,230."""
    digits = max(0, 2 - floor(log10(value))) if value > 0 else 2
    return f"{value:,.{digits}f}"


def _milliseconds(value: float) -> str:
    return f"{three_digits(value)} ms"


def _limit_ms(run: StudyRun) -> float | None:
    """The latency that questions demand, of which the least."""
    asked = run.results.scenario.questions
    demanded = [bounds for each in asked if (bounds := each.having.get("latency_ms")) is not None]
    demanded += [each for each in asked if each.kind == "figure" and each.of is None and each.quantity == Quantity()]
    limits = [bound for bounds in demanded for sign, bound in bounds.bounds if sign in ("<", "<=")]
    return min(limits, default=None)


def _devices_finding(run: StudyRun, bests: Sequence[Row]) -> str:
    """The devices that meet the limit, and those whose whole interval does: for each point of the other axes."""
    if (limit := _limit_ms(run)) is None:
        return layout.best_finding(run, "latency_ms")
    others = [axis for axis in layout.varying(run.results.rows) if axis != "device"]
    at: dict[str, list[Row]] = {}
    for best in bests:
        at.setdefault(layout.point_label(best, others), []).append(best)
    counted: dict[str, list[str]] = {}
    for where, rows in at.items():
        within = [row for row in rows if (row.latency_ms or 0.0) <= limit]
        surely = sum(row.high_ms is not None and row.high_ms <= limit for row in within)
        count = f"{len(within)} of {len(rows)} devices, {surely} with their whole interval"
        counted.setdefault(count, []).append(where)
    few = {count: points if len(points) < 3 else [f"{len(points)} points"] for count, points in counted.items()}
    said = (f"{count}, at {' and at '.join(points)}" for count, points in few.items())
    return f"Within {limit:g} ms are {'; '.join(said)}."


def _is_no_line(run: StudyRun) -> bool:
    """True where bars are drawn: latency against batch sizes alone is drawn as lines."""
    rows = run.results.rows
    sizes = {axis: len(layout.values_of(rows, axis)) for axis in layout.varying(rows)}
    return "batch" not in sizes or max(sizes.values()) > sizes["batch"]


def _compares(axis: str, run: StudyRun) -> bool:
    return len(layout.values_of(run.results.rows, axis)) > 1


PLOTS = (
    bar_plot("devices", 1, "latency_ms", _milliseconds,
             lambda run: _limit_ms(run) is not None and _compares("device", run), of_devices=True),
    bar_plot("speedup", 10, "speedup", "{:.2f}×".format, partial(_compares, "scheduler")),
    bar_plot("latency", 20, "latency_ms", _milliseconds, _is_no_line),
    bar_plot("active_warps", 60, "active_warps", "{:,.0f}".format),
    bar_plot("peak_memory", 65, "peak_memory_mib", "{:,.0f} MiB".format),
)  # fmt: skip
