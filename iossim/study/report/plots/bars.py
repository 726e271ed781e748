"""Bar charts of studies: speed-up, latency, active warps, peak memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

from iossim.base.tables import Cell, Column
from iossim.report.figures.bars import bar_legend, bar_record, bar_specification, share_scales
from iossim.report.figures.figure import Figure, LegendEntry
from iossim.report.figures.vega import scheduler_legend
from iossim.study.axes import AXES, METRICS, name_of
from iossim.study.report import layout
from iossim.study.report.plots import Plot, words_of
from iossim.study.study_run import Row, StudyRun

#: Meaning of whiskers.
WHISKERS = "expected on hardware (90% interval)"


@dataclass(frozen=True, slots=True)
class Bars:
    """A figure of one metric, in the words of its name.

    Latencies have whiskers for the expected interval, the published one beside them, and the limit of the scenario as
    a line.
    """

    name: str
    metric: str
    written: Callable[[float], str]
    #: True where devices are compared: the best schedule of each, the fastest device first, with its board power.
    of_devices: bool = False
    #: Title, caption, description and title of the ``axis`` of values; by default those of ``figures.yaml``.
    words: Mapping[str, str] | None = None


def bar_figure(run: StudyRun, bars: Bars) -> Figure | None:
    """Figure of all rows; None where no row has a value."""
    rows = [row for row in run.results.rows if row.status == "failed" or getattr(row, bars.metric) is not None]
    if all(getattr(row, bars.metric) is None for row in rows):
        return None
    if bars.of_devices:
        bests = [row for one in layout.points(run).values() if (row := layout.best_of(one)) is not None]
        rows = sorted(bests, key=lambda row: row.latency_ms or 0.0)
    if bars.metric == "speedup":  # of the baseline itself they would all be 1
        rows = [row for row in rows if row.scheduler != baseline_of(run)] or rows
    shown = METRICS[bars.metric].column
    assert shown is not None
    schedulers = [str(value) for value in layout.values_of(rows, "scheduler")]
    dealt = layout.layout(rows, group="device" if bars.of_devices else None)
    ties: set[int] = set() if bars.of_devices else _ties(run)
    axes = layout.varying(rows)
    records = tuple(_record(row, bars, shown.key, dealt, axes, id(row) in ties) for row in rows)
    groups = list(dict.fromkeys(record["group"] for record in records))
    intervals = ("low_ms", "high_ms") if any(record["low_ms"] is not None for record in records) else ()
    limit = _limit_ms(run) if bars.metric == "latency_ms" else None
    words = {"name": bars.name, **(bars.words or words_of(bars.name, baseline=baseline_of(run)))}
    axis = words.pop("axis")
    share_scales(records, [choice.key for choice in dealt.choices], dealt.panel)
    pixels = _LONG_TEXT_PIXELS if bars.of_devices else _TEXT_PIXELS
    spec = bar_specification(shown.key, axis, schedulers, records, groups, limit, pixels)
    asked = (LegendEntry(f"asked for: at most {limit:g} ms", "currentColor", "dashes"),) if limit is not None else ()
    return Figure(
        **words,
        finding=_devices_finding(run) if bars.of_devices else layout.best_finding(run, bars.metric),
        columns=(
            *layout.axis_columns([axis for axis in AXES if axis in axes] or ["model"]),
            Column("scheduler"),
            *(METRICS[name].column or Column(name) for name in (bars.metric, *intervals, "published_ms")),
            Column("note"),
        ),
        records=records,
        panels=layout.panels(rows, dealt.panel, spec),
        choices=dealt.choices,
        legend=(*scheduler_legend(schedulers), *bar_legend(records, WHISKERS), *asked),
    )


#: Widths of the text after a bar: of a value, and of one with a board's power.
_TEXT_PIXELS, _LONG_TEXT_PIXELS = 64, 110


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


def _ties(run: StudyRun) -> set[int]:
    """The rows that tie with the best of their point, by identity."""
    found: set[int] = set()
    for rows in layout.points(run).values():
        best = layout.best_of(rows)
        found |= {id(row) for row in rows if best is not None and row is not best and row.scheduler in best.ties}
    return found


def _record(row: Row, bars: Bars, key: str, dealt: layout.Layout, axes: Sequence[str], is_tie: bool) -> dict[str, Cell]:
    value: float | None = getattr(row, bars.metric)
    group = (
        layout.point_label(row, axes)
        if dealt.group == layout.POINT
        else name_of(dealt.group, getattr(row, dealt.group))
    )
    text = "failed" if value is None else bars.written(value) + (" ≈" if is_tie else "")
    text += f", {row.board_power_w:.0f} W" if bars.of_devices and row.board_power_w else ""
    note = "failed" if value is None else "tie with the best" if is_tie else ""
    interval = None if row.low_ms is None or row.high_ms is None else (row.low_ms, row.high_ms)
    beside = (interval, row.published_ms) if bars.metric == "latency_ms" else (None, None)
    return {
        **layout.coordinates(row, axes or ["model"]),
        "group": group,
        "scheduler": row.scheduler,
        key: value,
        "note": note if value is not None or not row.reason else f"failed: {row.reason}",
        **bar_record(value, text, *beside),
    }


def _limit_ms(run: StudyRun) -> float | None:
    """The latency that the scenario's constraints demand of every row, if one is on latency alone."""
    limits = [
        bound
        for asked in run.results.scenario.constraints
        if asked.metric in (None, "latency_ms") and asked.per is None and not asked.where and not asked.where_not
        for sign, bound in asked.bounds
        if sign in ("<", "<=") and isinstance(bound, float)
    ]
    return min(limits, default=None)


def _devices_finding(run: StudyRun) -> str:
    """The devices that meet the limit, and those whose whole interval does: for each point of the other axes."""
    if (limit := _limit_ms(run)) is None:
        return layout.best_finding(run, "latency_ms")
    others = [axis for axis in layout.varying(run.results.rows) if axis != "device"]
    bests: dict[str, list[Row]] = {}
    for rows in layout.points(run).values():
        if (best := layout.best_of(rows)) is not None:
            bests.setdefault(layout.point_label(best, others), []).append(best)
    said = []
    for where, rows in bests.items():
        within = [row for row in rows if (row.latency_ms or 0.0) <= limit]
        surely = sum(row.high_ms is not None and row.high_ms <= limit for row in within)
        said.append(f"{where}: {len(within)} of {len(rows)} devices, {surely} with their whole interval")
    return f"Within {limit:g} ms at {'; at '.join(said)}."


def _is_no_line(run: StudyRun) -> bool:
    """True where bars are drawn: latency against batch sizes alone is drawn as lines."""
    rows = run.results.rows
    sizes = {axis: len(layout.values_of(rows, axis)) for axis in layout.varying(rows)}
    return "batch" not in sizes or max(sizes.values()) > sizes["batch"]


def plot_of(bars: Bars, order: int, fits: Callable[[StudyRun], bool] | None = None) -> Plot:
    """Plot of a metric; by default a report has it where any row has the metric."""
    return Plot(bars.name, order, fits, lambda run: bar_figure(run, bars))


PLOTS = (
    plot_of(
        Bars("devices", "latency_ms", _milliseconds, of_devices=True),
        1,
        lambda run: _limit_ms(run) is not None and len(layout.values_of(run.results.rows, "device")) > 1,
    ),
    plot_of(
        Bars("speedup", "speedup", "{:.2f}×".format),
        10,
        lambda run: len(layout.values_of(run.results.rows, "scheduler")) > 1,
    ),
    plot_of(Bars("latency", "latency_ms", _milliseconds), 20, _is_no_line),
    plot_of(Bars("active_warps", "active_warps", "{:,.0f}".format), 60),
    plot_of(Bars("peak_memory", "peak_memory_mib", "{:,.0f} MiB".format), 65),
)
