"""Bar charts of studies: speed-up, latency, active warps, peak memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, floor, log, log10

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
    """A figure of one metric; ``axis``, ``caption`` and ``alt`` may name the ``{baseline}`` of speed-ups."""

    name: str
    metric: str
    title: str
    #: Title of the axis of values.
    axis: str
    #: Sentence that states the result.
    finding: Callable[[StudyRun], str]
    caption: str
    alt: str
    written: Callable[[float], str]
    #: Whether bars have whiskers for the expected latency, and the published one beside them.
    has_interval: bool = False
    #: The limit that values should meet, drawn as a line.
    limit: Callable[[StudyRun], float | None] = lambda run: None
    #: Whether the baseline of speed-ups has bars: as speed-ups they would all be 1.
    has_baseline: bool = True
    #: Whether devices are compared: the best schedule of each, the fastest device first, with its board's power.
    of_devices: bool = False


def bar_figure(run: StudyRun, bars: Bars) -> Figure | None:
    """Figure of all rows; None where no row has a value."""
    rows = [row for row in run.results.rows if row.status == "failed" or getattr(row, bars.metric) is not None]
    if all(getattr(row, bars.metric) is None for row in rows):
        return None
    if bars.of_devices:
        bests = [row for one in layout.points(run).values() if (row := layout.best_of(one)) is not None]
        rows = sorted(bests, key=lambda row: row.latency_ms or 0.0)
    if not bars.has_baseline:
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
    limit = bars.limit(run)
    told = {"baseline": baseline_of(run)}
    share_scales(records, [choice.key for choice in dealt.choices], dealt.panel)
    pixels = _LONG_TEXT_PIXELS if bars.of_devices else _TEXT_PIXELS
    spec = bar_specification(shown.key, bars.axis.format(**told), schedulers, records, groups, limit, pixels)
    asked = (LegendEntry(f"asked for: at most {limit:g} ms", "currentColor", "dashes"),) if limit is not None else ()
    return Figure(
        name=bars.name,
        title=bars.title,
        finding=bars.finding(run),
        caption=bars.caption.format(**told),
        alt=bars.alt.format(**told),
        columns=(
            *layout.axis_columns([axis for axis in AXES if axis in axes] or ["model"]),
            Column("scheduler"),
            *layout.metric_columns(bars.metric, *intervals, "published_ms"),
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
    beside = (interval, row.published_ms) if bars.has_interval else (None, None)
    return {
        **layout.coordinates(row, axes or ["model"]),
        "group": group,
        "scheduler": row.scheduler,
        key: value,
        "note": note if value is not None or not row.reason else f"failed: {row.reason}",
        **bar_record(value, text, *beside),
    }


def _speedup_finding(run: StudyRun) -> str:
    """Scheduler with the highest mean speed-up over all points, and the range of its speed-ups."""
    baseline = baseline_of(run)
    found: dict[str, list[float]] = {}
    for row in run.results.rows:
        if row.speedup is not None and row.scheduler != baseline:
            found.setdefault(row.scheduler, []).append(row.speedup)
    if not found:
        return "No scheduler finished."
    means = {name: exp(sum(map(log, values)) / len(values)) for name, values in found.items()}
    # Among equal schedulers the last is named, which searched the larger space.
    best = max(reversed(list(means)), key=lambda name: round(means[name], 9))
    values = found[best]
    if len(values) == 1:
        return f"{best} is {values[0]:.2f} times as fast as {baseline}."
    over = f"in the geometric mean of {len(values)} points ({min(values):.2f} to {max(values):.2f})"
    return f"{best} is {means[best]:.2f} times as fast as {baseline} {over}."


def _latency_finding(run: StudyRun) -> str:
    bests = [best for rows in layout.points(run).values() if (best := layout.best_of(rows)) is not None]
    if not bests:
        return "No scheduler finished."
    axes = layout.varying(run.results.rows)
    fastest, slowest = (end(bests, key=lambda row: row.latency_ms or 0.0) for end in (min, max))
    if fastest is slowest:
        return f"The best schedule takes {fastest.latency_ms:.3f} ms ({fastest.scheduler})."
    ends = (f"{row.latency_ms:.3f} ms ({layout.point_label(row, axes)})" for row in (fastest, slowest))
    return f"The best schedules take {' to '.join(ends)}."


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
        return _latency_finding(run)
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


def _warps_finding(run: StudyRun) -> str:
    """Largest gain in active warps of any schedule over the sequential one of its point."""
    ratios: list[tuple[float, Row]] = []
    for rows in layout.points(run).values():
        base = next((row.active_warps for row in rows if row.scheduler == "sequential" and row.active_warps), None)
        others = [row for row in rows if row.scheduler != "sequential" and row.active_warps]
        ratios += [(row.active_warps / base, row) for row in others if base and row.active_warps]
    if not ratios:
        return "There is no sequential schedule to compare with."
    ratio, row = max(ratios, key=lambda found: found[0])
    where = f"{row.model}, batch {row.batch}"
    return f"{row.scheduler} has up to {ratio:.2f} times the active warps of sequential ({where})."


def most(metric: str, words: Callable[[float, Row], str]) -> Callable[[StudyRun], str]:
    def finding(run: StudyRun) -> str:
        found = [(value, row) for row in run.results.rows if (value := getattr(row, metric)) is not None]
        largest, row = max(found, key=lambda pair: pair[0], default=(0.0, None))
        return "" if row is None else words(largest, row)

    return finding


_SPEEDUP = Bars(
    "speedup",
    "speedup",
    **words_of("speedup", baseline="{baseline}"),
    finding=_speedup_finding,
    written=lambda value: f"{value:.2f}×",
    has_baseline=False,
)
_LATENCY = Bars(
    "latency",
    "latency_ms",
    **words_of("latency"),
    finding=_latency_finding,
    written=lambda value: f"{three_digits(value)} ms",
    has_interval=True,
    limit=_limit_ms,
)
_DEVICES = replace(_LATENCY, name="devices", **words_of("devices"), finding=_devices_finding, of_devices=True)
_ACTIVE_WARPS = Bars(
    "active_warps",
    "active_warps",
    **words_of("active_warps"),
    finding=_warps_finding,
    written=lambda value: f"{value:,.0f}",
)
_PEAK_MEMORY = Bars(
    "peak_memory",
    "peak_memory_mib",
    **words_of("peak_memory"),
    finding=most(
        "peak_memory_mib",
        lambda most, row: f"The most is {most:,.0f} MiB: {row.model}, batch {row.batch}, {row.scheduler}.",
    ),
    written=lambda value: f"{value:,.0f} MiB",
)


def _is_no_line(run: StudyRun) -> bool:
    """Whether bars are drawn: latency against batch sizes alone is drawn as lines."""
    rows = run.results.rows
    sizes = {axis: len(layout.values_of(rows, axis)) for axis in layout.varying(rows)}
    return "batch" not in sizes or max(sizes.values()) > sizes["batch"]


def plot_of(bars: Bars, order: int, fits: Callable[[StudyRun], bool] | None = None) -> Plot:
    """Plot of a metric; by default a report has it where any row has the metric."""

    def has_metric(run: StudyRun) -> bool:
        return any(getattr(row, bars.metric) is not None for row in run.results.rows)

    return Plot(bars.name, order, fits or has_metric, lambda run: bar_figure(run, bars))


PLOTS = (
    plot_of(
        _DEVICES, 1, lambda run: _limit_ms(run) is not None and len(layout.values_of(run.results.rows, "device")) > 1
    ),
    plot_of(_SPEEDUP, 10, lambda run: len(layout.values_of(run.results.rows, "scheduler")) > 1),
    plot_of(_LATENCY, 20, _is_no_line),
    plot_of(_ACTIVE_WARPS, 60),
    plot_of(_PEAK_MEMORY, 65),
)
