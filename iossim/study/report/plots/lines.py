"""Figures of lines: against batch size (thesis, figure 4.9), against alpha (MetaFlow, figure 10), and the pruning
trade-off: latency lost and search time saved by the limits r and s (thesis, figure 4.6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iossim.base.shipped_yaml import shipped
from iossim.base.tables import Cell, Column, number_of
from iossim.report.colours import distinct_marks, scheduler_marks
from iossim.report.figures.bars import WHISKERS
from iossim.report.figures.figure import Figure, LegendEntry, Spec
from iossim.report.figures.vega import PUBLISHED, described, log_ticks, names_axis, scheduler_legend
from iossim.study.axes import Rewrite
from iossim.study.report import layout
from iossim.study.report.plots import Plot, figure_of
from iossim.study.study_run import StudyRun
from iossim.study.table import context

#: Colour and shape of each line by its name.
Marks = Mapping[str, tuple[str, str]]


def _scale(key: str, title: str, log_ticks: Sequence[float] = (), near: bool = True, padding: int = 14) -> Spec:
    """Channel of a column: logarithmic if it has ticks for that; otherwise linear, from zero or near the numbers."""
    if log_ticks:
        axis: Spec = {"format": "~g", "values": list(log_ticks)}
        title, scale = f"{title}, log scale", {"nice": False, "padding": padding, "type": "log"}
    else:
        axis, scale = {"tickCount": 5}, {"padding": padding, "zero": False} if near else {"zero": True}
    return {"axis": axis, "field": key, "scale": scale, "title": title, "type": "quantitative"}


#: Layers beside the markers: the line, whiskers from ``low`` to ``high``, and ``published`` figures.
_LAYERS: Spec = {"has_line": True, "low": None, "high": None, "width": 1, "opacity": 0.45, "published": None}


def _lines(key: str, marks: Marks, tooltip: str, x: Spec, y: Spec, **layers: object) -> Spec:
    """Lines in the marks of the cell ``key``, with a ``tooltip`` of ``specs.yaml``; ``size`` of markers and ``height``
    are among the ``layers``.
    """
    colour, shape = (
        {
            "field": key,
            "scale": {"domain": list(marks), "range": [mark[place] for mark in marks.values()]},
            "sort": list(marks),
            "type": "nominal",
        }
        for place in (0, 1)
    )
    # Markers at one name are side by side.
    beside = {"field": key, "sort": list(marks), "type": "nominal"} if x["type"] == "ordinal" else None
    drawn = {"x": x, "y": y, "beside": beside, "colour": colour, "shape": shape}
    drawn["tooltip"] = shipped(__package__, "specs.yaml")["tooltips"][tooltip]
    return described(__package__, "lines", **drawn, **(_LAYERS | layers))


def _batch_fits(run: StudyRun) -> bool:
    """True where lines fit: two sizes among other varying axes make no line."""
    axes = layout.varying(run.results.rows)
    return "batch" in axes and (axes == ["batch"] or len(layout.values_of(run.results.rows, "batch")) > 2)


def _draw_batch(run: StudyRun) -> Figure | None:
    rows = [row for row in run.results.rows if row.latency_ms is not None]
    if not rows:
        return None
    axes = layout.varying(run.results.rows)
    schedulers = [str(value) for value in layout.values_of(run.results.rows, "scheduler")]
    sizes = sorted({row.batch for row in rows})
    records: list[layout.Record] = []
    for row in rows:
        times = {name: getattr(row, f"{name}_ms") for name in ("latency", "low", "high", "published")}
        per_s = {name: 1e3 * row.batch / time_ms if time_ms else None for name, time_ms in times.items()}
        record: layout.Record = {
            **layout.coordinates(row, axes),
            "batch": row.batch,
            "scheduler": row.scheduler,
            "throughput": per_s["latency"],
            "low_throughput": per_s["high"],
            "high_throughput": per_s["low"],
            "published_throughput": per_s["published"],
            **{f"{name}_ms": time_ms for name, time_ms in times.items()},
        }
        records.append(record)
    published = any(row.published_ms is not None for row in rows)
    whiskers = any(row.low_ms is not None for row in rows)

    def against_batch(y: Spec, unit: str) -> Spec:
        beside = {"low": f"low_{unit}", "high": f"high_{unit}", "published": f"published_{unit}" if published else None}
        x, marks = names_axis("batch", "batch size", sizes), scheduler_marks(schedulers)
        return _lines("scheduler", marks, unit, x, y, size=44, height=250, width=1.1, opacity=0.7, **beside)

    throughput = {**_scale("throughput", "throughput (samples/s)"), "scale": {"nice": True, "zero": True}}
    throughput["axis"] = {"format": ",.3~r", "tickCount": 5}
    latency = _scale("latency_ms", "latency (ms)", log_ticks(row.latency_ms or 0.0 for row in rows), padding=12)
    return figure_of(
        "batch",
        layout.layout(rows, ["batch"], axes),
        records,
        {"throughput": against_batch(throughput, "throughput"), "latency": against_batch(latency, "ms")},
        finding=layout.best_finding(run, "throughput_per_s"),
        legend=(
            *scheduler_legend(schedulers, lines=True),
            *((LegendEntry(WHISKERS, "currentColor", "whisker"),) if whiskers else ()),
            *((LegendEntry("published measurement", "currentColor", PUBLISHED),) if published else ()),
        ),
    )


def _rewrites(run: StudyRun) -> dict[str, Rewrite]:
    return {rewrite.label: rewrite for rewrite in run.results.scenario.rewrites if rewrite.rewrites}


def _draw_alpha(run: StudyRun) -> Figure | None:
    rewrites = _rewrites(run)
    axes = [axis for axis in layout.varying(run.results.rows) if axis != "rewrite"]
    # A row is held against that of the network as given, which shares its labels on the other axes.
    priced = [(context(row, ("scheduler", *axes)), row) for row in run.results.rows if row.latency_ms is not None]
    given_ms = {place: row.latency_ms for place, row in priced if row.rewrite not in rewrites}
    compared = [(row, given_ms[place]) for place, row in priced if row.rewrite in rewrites and given_ms.get(place)]
    if not compared:
        return None
    rows = [row for row, _ in compared]
    records: list[layout.Record] = [
        {
            **layout.coordinates(row, axes),
            "model": row.model,
            "scheduler": row.scheduler,
            "searched_by": rewrites[row.rewrite].search,
            "alpha": rewrites[row.rewrite].alpha,
            "latency_ms": row.latency_ms,
            "of_given_percent": 100 * number_of(row.latency_ms) / number_of(before_ms),
        }
        for row, before_ms in compared
    ]
    records = _widest_first(records, layout.values_of(rows, "scheduler"))
    choices = (Column("scheduler", "scheduler"), Column("searched_by", "substitutions searched by"))
    several = [choice for choice in choices if len({record[choice.key] for record in records}) > 1]
    x, y = _scale("alpha", "alpha (×)"), _scale("of_given_percent", "latency, of the network as given (%)")
    models = [str(model) for model in layout.values_of(rows, "model")]
    top = layout.most(records, "of_given_percent", least=True)
    return figure_of(
        "alpha",
        layout.layout(rows, ["model", "rewrite"], [axis for axis in axes if axis != "model"], *several),
        records,
        {"": _lines("model", scheduler_marks(models), "alpha", x, y, size=50, height=250)},
        finding=(
            f"{top['model']} gains most: {number_of(top['of_given_percent']):.1f} % of its latency as given remain, by "
            f"{top['scheduler']} at alpha {number_of(top['alpha']):g}."
        ),
        legend=scheduler_legend(models, lines=True),
    )


def _widest_first(records: Sequence[layout.Record], schedulers: Sequence[Cell]) -> list[layout.Record]:
    """Records of the scheduler that searched most first: it is shown before a reader chooses."""
    return sorted(records, key=lambda record: (-schedulers.index(record["scheduler"]), number_of(record.get("alpha"))))


_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c2629a", "#8a6d00", "#7566c9")
_SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")


def _draw_pruning(run: StudyRun) -> Figure | None:
    searches = {search.label: search for search in run.results.scenario.searches}
    rows = [
        row
        for row in run.results.rows
        if row.latency_ms is not None and row.search in searches and row.scheduler.startswith("ios")
    ]
    if len(layout.values_of(rows, "search")) < 2:
        return None
    axes = [axis for axis in layout.varying(run.results.rows) if axis != "search"]
    records: list[layout.Record] = [
        {
            **layout.coordinates(row, axes),
            "scheduler": row.scheduler,
            "search": row.search,
            "r": str(searches[row.search].max_group_size or "none"),
            "s": str(searches[row.search].max_groups or "none"),
            "stages_of": searches[row.search].stages,
            **{name: getattr(row, name) for name in ("latency_ms", "low_ms", "high_ms")},
            "search_s": run.search_s.get((row.point, row.scheduler)),
            "speedup_x": row.speedup,
        }
        for row in rows
    ]
    schedulers = layout.values_of(rows, "scheduler")
    records = _widest_first(records, schedulers)
    # From the tightest to unlimited: by digits, of which words have more.
    r_limits, s_limits = (
        sorted({str(record[name]) for record in records}, key=lambda limit: (len(limit), limit)) for name in ("r", "s")
    )
    marks = distinct_marks(r_limits, _COLOURS, _SHAPES)
    against_s = names_axis("s", "s: most groups of a stage", s_limits)
    latency = _scale("latency_ms", "latency (ms)")

    def lines(x: Spec, y: Spec, size: int = 46, **layers: object) -> Spec:
        return _lines("r", marks, "pruning", x, y, size=size, height=240, **layers)

    several = [Column("scheduler")] if len(schedulers) > 1 else []
    return figure_of(
        "pruning",
        layout.layout(rows, ["search"], axes, *several),
        records,
        {
            "latency": lines(against_s, latency),
            "search time": lambda own: lines(against_s, _times(own)),
            "trade-off": lambda own: lines(_times(own), latency, 56, low="low_ms", high="high_ms", has_line=False),
        },
        finding=layout.best_finding(run, "latency_ms"),
        panel_pixels=300,
        legend=tuple(LegendEntry(f"r = {limit}", *mark) for limit, mark in marks.items()),
    )


def _times(records: Sequence[layout.Record]) -> Spec:
    """Channel of search times, linear within one order of magnitude, so that they do not look far apart."""
    known = [time_s for record in records if (time_s := number_of(record["search_s"])) > 0]
    is_wide = bool(known) and max(known) > 10 * min(known)
    return _scale("search_s", "search time (s)", log_ticks(known) if is_wide else (), near=False)


PLOTS = (
    Plot("batch", 30, _batch_fits, _draw_batch),
    Plot("alpha", 44, lambda run: len({rewrite.alpha for rewrite in _rewrites(run).values()}) > 1, _draw_alpha),
    Plot("pruning", 50, lambda run: "search" in layout.varying(run.results.rows), _draw_pruning),
)
