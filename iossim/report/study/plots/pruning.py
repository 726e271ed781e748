"""The pruning trade-off: what the limits r and s cost in latency, and save of the search (thesis, figure 4.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iossim.base.tables import Cell, Column, number_of
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.vega import coloured, dodged, layer, log_ticks, names_axis, need_altair, specification
from iossim.report.study.layout import (
    coordinates,
    metric_columns,
    panel_title,
    panels_and_choices,
    sides,
    values_of,
    varying,
)
from iossim.report.study.plots import Plot
from iossim.study.axes import Search
from iossim.study.study_run import Row, StudyRun

_HEIGHT_PIXELS = 240
_NO_LIMIT = "none"
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c2629a", "#8a6d00", "#7566c9")
_SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")

_NAME = "pruning"


def draw(run: StudyRun) -> Figure | None:
    searches = {search.label: search for search in run.results.scenario.searches}
    rows = [
        row
        for row in run.results.rows
        if row.latency_ms is not None and row.search in searches and row.scheduler.startswith("ios")
    ]
    if len(values_of(rows, "search")) < 2:
        return None
    axes = [axis for axis in varying(run.results.rows) if axis != "search"]
    records = tuple(_record(row, searches[row.search], run, axes) for row in rows)
    panel, choices = panels_and_choices(rows, ["search"])
    schedulers = values_of(rows, "scheduler")
    if len(schedulers) > 1:
        choices = (Column("scheduler"), *choices)
        # The scheduler that searched most comes first: it is shown before a reader chooses.
        records = tuple(sorted(records, key=lambda record: -schedulers.index(record["scheduler"])))
    limits = {name: _limits(records, name) for name in ("r", "s")}
    for record in records:
        record["place"] = dodged(limits["s"], record["s"], limits["r"], record["r"])
    colours = {limit: _COLOURS[place % len(_COLOURS)] for place, limit in enumerate(limits["r"])}
    shapes = {limit: _SHAPES[place % len(_SHAPES)] for place, limit in enumerate(limits["r"])}
    latency = _Scale("latency_ms", "latency (ms)", log_ticks=())
    panels: list[Panel] = []
    for before, where in sides(rows, panel):
        own = [record for record in records if all(record[key] == value for key, value in where.items())]
        times = _times([number_of(record["search_s"]) for record in own])
        panels += [
            Panel(f"{before}latency", _against_s(latency, limits["s"], colours, shapes), where),
            Panel(f"{before}search time", _against_s(times, limits["s"], colours, shapes), where),
            Panel(f"{before}trade-off", _trade_off(times, colours, shapes), where),
        ]
    return Figure(
        name=_NAME,
        title="Pruning: latency against search time",
        finding=_finding(records, axes),
        caption=(
            "r is the most units of a group, s the most groups of a stage; “none” is no limit. Search times are of the "
            "machine that ran the study, one run each, and include pricing. Whiskers are 90% intervals of measured "
            "latencies; they move together, since the schedules share their operators. Axes of latencies do not begin "
            "at zero."
        ),
        alt="Latency and search time against the limits r and s, and one against the other.",
        columns=(
            *(Column(axis) for axis in axes),
            Column("scheduler"),
            Column("r"),
            Column("s"),
            Column("stages_of", "stages"),
            *metric_columns("latency_ms", "low_ms", "high_ms"),
            Column("search_s", "search time", digits=3),
            Column("speedup_x", "speed-up"),
        ),
        records=records,
        panels=tuple(panels),
        choices=choices,
        panel_pixels=300,
        legend=tuple(LegendEntry(f"r = {limit}", colours[limit], shapes[limit]) for limit in limits["r"]),
    )


def _record(row: Row, search: Search, run: StudyRun, axes: Sequence[str]) -> dict[str, Cell]:
    return {
        **coordinates(row, axes),
        "scheduler": row.scheduler,
        "search": row.search,
        "r": str(search.max_group_size or _NO_LIMIT),
        "s": str(search.max_groups or _NO_LIMIT),
        "stages_of": search.stages,
        **{name: getattr(row, name) for name in ("latency_ms", "low_ms", "high_ms")},
        "search_s": run.search_s.get((row.point, row.scheduler)),
        "speedup_x": row.speedup,
    }


def _limits(records: Sequence[Mapping[str, Cell]], key: str) -> list[str]:
    """From the tightest limit to none."""
    found = {str(record[key]) for record in records}
    return sorted(found, key=lambda limit: (limit == _NO_LIMIT, 0 if limit == _NO_LIMIT else int(limit)))


def _encodings(colours: Mapping[str, str], shapes: Mapping[str, str]) -> tuple[Any, Any, list[Any]]:
    alt = need_altair()
    colour = coloured("r", colours, sort=list(colours))
    shape = alt.Shape("r:N", sort=list(shapes), scale=alt.Scale(domain=list(shapes), range=list(shapes.values())))
    tooltip = [
        alt.Tooltip("search:N", title="search"),
        alt.Tooltip("latency_ms:Q", title="latency, ms", format=",.4~r"),
        alt.Tooltip("search_s:Q", title="search time, s", format=",.3~r"),
        alt.Tooltip("speedup_x:Q", title="speed-up", format=".2f"),
    ]
    return colour, shape, tooltip


@dataclass(frozen=True, slots=True)
class _Scale:
    """A column on an axis: logarithmic if it has ticks for that; if not, from zero on, or near the numbers."""

    key: str
    title: str
    log_ticks: tuple[float, ...]
    near: bool = True

    def channel(self, channel: Any) -> Any:
        """The encoding, for ``alt.X`` or ``alt.Y``."""
        alt = need_altair()
        if self.log_ticks:
            scale = alt.Scale(type="log", padding=14, nice=False)
            return channel(
                f"{self.key}:Q", title=f"{self.title}, log scale", scale=scale,
                axis=alt.Axis(values=list(self.log_ticks), format="~g"),
            )  # fmt: skip
        scale = alt.Scale(zero=False, padding=14) if self.near else alt.Scale(zero=True)
        return channel(f"{self.key}:Q", title=self.title, scale=scale, axis=alt.Axis(tickCount=5))


def _times(times_s: Sequence[float]) -> _Scale:
    """Times of one order of magnitude must not look far apart."""
    known = [time_s for time_s in times_s if time_s > 0]
    is_wide = bool(known) and max(known) > 10 * min(known)
    return _Scale("search_s", "search time (s)", tuple(log_ticks(known)) if is_wide else (), near=False)


def _against_s(
    scale: _Scale, limits: Sequence[str], colours: Mapping[str, str], shapes: Mapping[str, str]
) -> dict[str, Any]:
    alt = need_altair()
    colour, shape, tooltip = _encodings(colours, shapes)
    y = scale.channel(alt.Y)
    base = layer().encode(x=names_axis("place", "s: most groups of a stage", limits), color=colour)
    layers = [base.mark_line().encode(y=y), base.mark_point(size=46).encode(y=y, shape=shape, tooltip=tooltip)]
    return specification(*layers, height=_HEIGHT_PIXELS)


def _trade_off(times: _Scale, colours: Mapping[str, str], shapes: Mapping[str, str]) -> dict[str, Any]:
    alt = need_altair()
    colour, shape, tooltip = _encodings(colours, shapes)
    y = _Scale("latency_ms", "latency (ms)", ()).channel(alt.Y)
    base = layer().encode(x=times.channel(alt.X))
    return specification(
        base.mark_rule(strokeWidth=1, opacity=0.45).encode(y=alt.Y("low_ms:Q"), y2="high_ms:Q", color=colour),
        base.mark_point(size=56).encode(y=y, color=colour, shape=shape, tooltip=tooltip),
        height=_HEIGHT_PIXELS,
    )


def _finding(records: Sequence[Mapping[str, Cell]], axes: Sequence[str]) -> str:
    """What the widest search gained over the tightest, at the first place shown."""
    first = records[0]
    shown = [
        record
        for record in records
        if record["scheduler"] == first["scheduler"] and all(record[axis] == first[axis] for axis in axes)
    ]
    best = min(shown, key=lambda record: number_of(record["latency_ms"]))
    worst = max(shown, key=lambda record: number_of(record["latency_ms"]))
    where = ", ".join(panel_title(axis, first[axis]) for axis in axes)
    gain = number_of(worst["latency_ms"]) / float(best["latency_ms"] or 1.0)
    times = [float(record["search_s"]) for record in (best, worst) if isinstance(record["search_s"], float)]
    cost = f" for {times[0]:.3g} s of search instead of {times[1]:.3g} s" if len(times) == 2 else ""
    return f"{f'On {where}, ' if where else ''}{best['search']} is {gain:.2f} times as fast as {worst['search']}{cost}."


PLOTS = (Plot(_NAME, 50, lambda run: "search" in varying(run.results.rows), draw),)
