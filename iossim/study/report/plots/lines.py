"""Figures of lines: against batch size (thesis, figure 4.9), against alpha (MetaFlow, figure 10), and the pruning
trade-off: latency lost and search time saved by the limits r and s (thesis, figure 4.6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from iossim.base.shipped_yaml import shipped
from iossim.base.tables import Cell, Column, number_of
from iossim.report.colours import scheduler_marks
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.vega import PUBLISHED, described, dodged, log_ticks, names_axis, scheduler_legend
from iossim.study.axes import Rewrite
from iossim.study.report import layout
from iossim.study.report.plots import Plot, columns_of, words_of
from iossim.study.report.plots.bars import WHISKERS
from iossim.study.study_run import Row, StudyRun

Record = dict[str, Cell]
#: Colour and shape of each line by its name.
Marks = Mapping[str, tuple[str, str]]


def _scale(
    key: str, title: str, log_ticks: Sequence[float] = (), near: bool = True, padding: int = 14
) -> dict[str, Any]:
    """Channel of a column: logarithmic if it has ticks for that; otherwise linear, from zero or near the numbers."""
    if log_ticks:
        axis: dict[str, Any] = {"format": "~g", "values": list(log_ticks)}
        title, scale = f"{title}, log scale", {"nice": False, "padding": padding, "type": "log"}
    else:
        axis, scale = {"tickCount": 5}, {"padding": padding, "zero": False} if near else {"zero": True}
    return {"axis": axis, "field": key, "scale": scale, "title": title, "type": "quantitative"}


#: Layers beside the markers: the line, whiskers from ``low`` to ``high``, and ``published`` figures.
_LAYERS: dict[str, Any] = {"has_line": True, "low": None, "high": None, "width": 1, "opacity": 0.45, "published": None}


def _lines(key: str, marks: Marks, tooltip: str, x: Any, y: Any, **layers: Any) -> dict[str, Any]:
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
    drawn = {"x": x, "y": y, "colour": colour, "shape": shape}
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
    schedulers = [str(value) for value in layout.values_of(run.results.rows, "scheduler")]
    panel, choices = layout.panels_and_choices(rows, ["batch"])
    axes = layout.varying(run.results.rows)
    sizes = sorted({row.batch for row in rows})
    published = any(row.published_ms is not None for row in rows)
    ticks = log_ticks(row.latency_ms or 0.0 for row in rows)
    throughput = _against_batch("throughput", "throughput (samples/s)", schedulers, sizes, published)
    latency = _against_batch("latency_ms", "latency (ms)", schedulers, sizes, published, ticks)
    panels: list[Panel] = []
    for before, where in layout.sides(rows, panel):
        panels += [Panel(f"{before}throughput", throughput, where), Panel(f"{before}latency", latency, where)]
    whiskers = any(row.low_ms is not None for row in rows)
    return Figure(
        **words_of("batch"),
        finding=layout.best_finding(run, "throughput_per_s"),
        columns=columns_of("batch", *layout.axis_columns(axes)),
        records=tuple(_batch_record(row, axes, sizes, schedulers) for row in rows),
        panels=tuple(panels),
        choices=choices,
        legend=(
            *scheduler_legend(schedulers, lines=True),
            *((LegendEntry(WHISKERS, "currentColor", "whisker"),) if whiskers else ()),
            *((LegendEntry("published measurement", "currentColor", PUBLISHED),) if published else ()),
        ),
    )


def _batch_record(row: Row, axes: Sequence[str], sizes: Sequence[int], schedulers: Sequence[str]) -> Record:
    times = {name: getattr(row, f"{name}_ms") for name in ("latency", "low", "high", "published")}
    per_s = {name: 1e3 * row.batch / time_ms if time_ms else None for name, time_ms in times.items()}
    return {
        **layout.coordinates(row, axes),
        "batch": row.batch,
        "scheduler": row.scheduler,
        "place": dodged(sizes, row.batch, schedulers, row.scheduler),
        "throughput": per_s["latency"],
        "low_throughput": per_s["high"],
        "high_throughput": per_s["low"],
        "published_throughput": per_s["published"],
        **{f"{name}_ms": time_ms for name, time_ms in times.items()},
    }


def _against_batch(
    key: str, title: str, schedulers: Sequence[str], sizes: Sequence[int], published: bool, ticks: Sequence[float] = ()
) -> dict[str, Any]:
    unit = "ms" if key == "latency_ms" else "throughput"
    if ticks:
        y = _scale(key, title, ticks, padding=12)
    else:
        from_zero = {"axis": {"format": ",.3~r", "tickCount": 5}, "field": key, "scale": {"nice": True, "zero": True}}
        y = {**from_zero, "title": title, "type": "quantitative"}
    whiskers: dict[str, Any] = {"low": f"low_{unit}", "high": f"high_{unit}", "width": 1.1, "opacity": 0.7}
    beside = {**whiskers, "published": f"published_{unit}" if published else None}
    x = names_axis("place", "batch size", sizes)
    return _lines("scheduler", scheduler_marks(schedulers), unit, x, y, size=44, height=250, **beside)


def _rewrites(run: StudyRun) -> dict[str, Rewrite]:
    return {rewrite.label: rewrite for rewrite in run.results.scenario.rewrites if rewrite.rewrites}


def _draw_alpha(run: StudyRun) -> Figure | None:
    rewrites = _rewrites(run)
    axes = [axis for axis in layout.varying(run.results.rows) if axis != "rewrite"]

    def place(row: Row) -> tuple[Cell, ...]:
        """Labels that a row shares with the row of the network as given."""
        return (row.scheduler, *layout.coordinates(row, axes).values())

    priced = [row for row in run.results.rows if row.latency_ms is not None]
    given_ms = {place(row): row.latency_ms for row in priced if row.rewrite not in rewrites}
    rows = [row for row in priced if row.rewrite in rewrites and given_ms.get(place(row))]
    if not rows:
        return None
    records: list[Record] = [
        {
            **layout.coordinates(row, axes),
            "model": row.model,
            "scheduler": row.scheduler,
            "searched_by": rewrites[row.rewrite].search,
            "alpha": rewrites[row.rewrite].alpha,
            "latency_ms": row.latency_ms,
            "of_given_percent": 100 * number_of(row.latency_ms) / number_of(given_ms[place(row)]),
        }
        for row in rows
    ]
    models = [str(model) for model in layout.values_of(rows, "model")]
    records = _widest_first(records, layout.values_of(rows, "scheduler"))
    panel, choices = layout.panels_and_choices(rows, ["model", "rewrite"])
    for choice in (Column("searched_by", "substitutions searched by"), Column("scheduler", "scheduler")):
        if len({record[choice.key] for record in records}) > 1:
            choices = (choice, *choices)
    x, y = _scale("alpha", "alpha (×)"), _scale("of_given_percent", "latency, of the network as given (%)")
    top = layout.most(records, "of_given_percent", least=True) or records[0]
    spec = _lines("model", scheduler_marks(models), "alpha", x, y, size=50, height=250)
    return Figure(
        **words_of("alpha"),
        finding=(
            f"{top['model']} gains most: {number_of(top['of_given_percent']):.1f} % of its latency as given remain, by "
            f"{top['scheduler']} at alpha {number_of(top['alpha']):g}."
        ),
        columns=columns_of("alpha", *layout.axis_columns([axis for axis in axes if axis != "model"])),
        records=tuple(records),
        panels=layout.panels(rows, panel, spec),
        choices=choices,
        legend=scheduler_legend(models, lines=True),
    )


def _widest_first(records: Sequence[Record], schedulers: Sequence[Cell]) -> list[Record]:
    """Records of the scheduler that searched most first: it is shown before a reader chooses."""
    return sorted(records, key=lambda record: (-schedulers.index(record["scheduler"]), number_of(record.get("alpha"))))


_NO_LIMIT = "none"
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
    records: list[Record] = [
        {
            **layout.coordinates(row, axes),
            "scheduler": row.scheduler,
            "search": row.search,
            "r": str(searches[row.search].max_group_size or _NO_LIMIT),
            "s": str(searches[row.search].max_groups or _NO_LIMIT),
            "stages_of": searches[row.search].stages,
            **{name: getattr(row, name) for name in ("latency_ms", "low_ms", "high_ms")},
            "search_s": run.search_s.get((row.point, row.scheduler)),
            "speedup_x": row.speedup,
        }
        for row in rows
    ]
    panel, choices = layout.panels_and_choices(rows, ["search"])
    schedulers = layout.values_of(rows, "scheduler")
    records = _widest_first(records, schedulers)
    choices = (*((Column("scheduler"),) if len(schedulers) > 1 else ()), *choices)
    limits = {
        name: sorted(
            {str(record[name]) for record in records}, key=lambda limit: (limit == _NO_LIMIT, len(limit), limit)
        )
        for name in ("r", "s")
    }  # from the tightest to unlimited
    for record in records:
        record["place"] = dodged(limits["s"], record["s"], limits["r"], record["r"])
    marks = {
        limit: (_COLOURS[place % len(_COLOURS)], _SHAPES[place % len(_SHAPES)])
        for place, limit in enumerate(limits["r"])
    }
    lines = partial(_lines, "r", marks, "pruning", height=240)
    against_s = names_axis("place", "s: most groups of a stage", limits["s"])
    latency = _scale("latency_ms", "latency (ms)")
    whiskers: dict[str, Any] = {"low": "low_ms", "high": "high_ms", "has_line": False}
    panels: list[Panel] = []
    for before, where in layout.sides(rows, panel):
        own = [record for record in records if all(record[key] == value for key, value in where.items())]
        times = _times([number_of(record["search_s"]) for record in own])
        panels += [
            Panel(f"{before}latency", lines(against_s, latency, size=46), where),
            Panel(f"{before}search time", lines(against_s, times, size=46), where),
            Panel(f"{before}trade-off", lines(times, latency, size=56, **whiskers), where),
        ]
    return Figure(
        **words_of("pruning"),
        finding=layout.best_finding(run, "latency_ms"),
        columns=columns_of("pruning", *map(Column, axes)),
        records=tuple(records),
        panels=tuple(panels),
        choices=choices,
        panel_pixels=300,
        legend=tuple(LegendEntry(f"r = {limit}", *mark) for limit, mark in marks.items()),
    )


def _times(times_s: Sequence[float]) -> dict[str, Any]:
    """Channel of times, linear within one order of magnitude, so that they do not look far apart."""
    known = [time_s for time_s in times_s if time_s > 0]
    is_wide = bool(known) and max(known) > 10 * min(known)
    return _scale("search_s", "search time (s)", log_ticks(known) if is_wide else (), near=False)


PLOTS = (
    Plot("batch", 30, _batch_fits, _draw_batch),
    Plot("alpha", 44, lambda run: len({rewrite.alpha for rewrite in _rewrites(run).values()}) > 1, _draw_alpha),
    Plot("pruning", 50, lambda run: "search" in layout.varying(run.results.rows), _draw_pruning),
)
