"""Schedulers side by side: one bar each, with expected intervals, published figures, lower bounds and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iossim.base.tables import Cell, number_of
from iossim.report.figures.figure import Figure, LegendEntry, Panel, Record, Spec
from iossim.report.figures.vega import PUBLISHED, described, scheduler_scale
from iossim.tasks.comparison import TIE, ComparisonRow, best_row, ties_with
from iossim.tasks.device_comparison import DeviceComparison

#: Meaning of whiskers.
WHISKERS = "expected on hardware (90% interval)"
_BAR_PIXELS, _ROW_PIXELS = 15, 24
#: Width of the longest text after a bar.
_TEXT_PIXELS = 64
#: Panels share one scale if their longest bars differ by less than this factor.
_ALIKE = 3.0
#: The cells beside a bar's value.
_PARTS = ("low_ms", "high_ms", "published_ms", "bound_ms")


def bar_record(
    value: float | None, text: str, interval_ms: tuple[float, float] | None = None, published_ms: float | None = None
) -> dict[str, Cell]:
    """Cells of a record from which :func:`bar_specification` draws the marks at a bar and the ``text`` after it."""
    low_ms, high_ms = interval_ms or (None, None)
    return {
        "low_ms": low_ms,
        "high_ms": high_ms,
        "published_ms": published_ms,
        "text": text,
        "right": max(value or 0.0, high_ms or 0.0, published_ms or 0.0),
    }


def bar_specification(
    key: str,
    title: str,
    schedulers: Sequence[str],
    records: Sequence[Record],
    groups: Sequence[Cell] | None = None,
    limit: float | None = None,
    text_pixels: int = _TEXT_PIXELS,
) -> Spec:
    """One bar per record, as long as its cell ``key``, in the colour of its ``scheduler``.

    Bars are grouped into ``groups`` by the cell ``group``; without groups each follows its scheduler's name. Records
    have the cells of :func:`bar_record` and :func:`share_scales`; a lower bound in ``bound_ms`` is a mark, and one that
    is ``best`` has its text in bold. ``limit``, a bound that the values should meet, is drawn as a line. The longest
    text takes ``text_pixels``.
    """
    one_is_best = any(record.get("best") for record in records)
    order, is_grouped = list(schedulers), groups is not None
    offset = {"field": "scheduler", "scale": {"paddingInner": 0.12}, "sort": order, "type": "nominal"}
    return described(
        __package__,
        "bars",
        key=key,
        title=title,
        schedulers=order,
        colours=scheduler_scale(schedulers),
        is_grouped=is_grouped,
        y="group" if is_grouped else "scheduler",
        rows=order if groups is None else list(groups),
        label_limit=260 if is_grouped else 190,
        y_scale={"paddingInner": 0.22} if is_grouped else None,
        y_offset=offset if is_grouped else None,
        height={"step": _BAR_PIXELS, "for": "offset"} if is_grouped else {"step": _ROW_PIXELS},
        **{part: any(record.get(part) is not None for record in records) for part in _PARTS},
        has_limit=limit is not None,
        limit=limit,
        one_is_best=one_is_best,
        none_is_best=not one_is_best,
        room=f"datum.longest * width / max(60, width - {text_pixels})",
    )


def bar_legend(records: Sequence[Record], whiskers: str) -> tuple[LegendEntry, ...]:
    """Legend of the marks at the bars; ``whiskers`` says what an interval is."""
    marks = {
        "low_ms": LegendEntry(whiskers, "currentColor", "whisker"),
        "bound_ms": LegendEntry("lower bound", "currentColor", "bound"),
        "published_ms": LegendEntry("published measurement", "currentColor", PUBLISHED),
    }
    return tuple(mark for key, mark in marks.items() if any(record.get(key) is not None for record in records))


def share_scales(records: Sequence[dict[str, Cell]], choices: Sequence[str], panel: str | None) -> None:
    """Store in each record the longest bar on its scale: one scale for panels that are seen together, unless one of
    them would be hard to see.
    """
    together: dict[tuple[Cell, ...], dict[Cell, float]] = {}
    placed: list[tuple[dict[str, Cell], dict[Cell, float], Cell]] = []
    for record in records:
        panels = together.setdefault(tuple(record[key] for key in choices), {})
        place = record[panel] if panel else None
        panels[place] = max(panels.get(place, 0.0), number_of(record["right"]))
        placed.append((record, panels, place))
    for record, panels, place in placed:
        longest = max(panels.values())
        record["longest"] = (longest if longest <= _ALIKE * min(panels.values()) else panels[place]) or 1.0


#: Width of a latency, a speed-up and the sign of a tie after a bar; of power and scheduler besides.
_LONG_TEXT_PIXELS, _LONGEST_TEXT_PIXELS = 130, 300
#: Scheduler of a bar that stands for the best of its device.
_BEST = "best"


def comparison_figure(
    title: str, panels: Mapping[str, Sequence[ComparisonRow]], whiskers: str = WHISKERS, name: str = "comparison"
) -> Figure:
    """One panel per entry (a network, say), its schedulers from top to bottom.

    Bars are labelled with the latency and the speed-up, the best one's in bold, with a sign at those that tie with it;
    whiskers span each row's interval, which the legend describes by ``whiskers``.
    """
    records: list[dict[str, Cell]] = []
    for panel, rows in panels.items():
        best = best_row(rows)
        records += [{"panel": panel, **_comparison_record(row, best)} for row in rows]
    share_scales(records, ["panel"], None)
    drawn = []
    for panel, rows in panels.items():
        own = [record for record in records if record["panel"] == panel]
        schedulers = [row.scheduler for row in rows]
        spec = bar_specification("latency_ms", "latency (ms)", schedulers, own, text_pixels=_LONG_TEXT_PIXELS)
        drawn.append(Panel(panel, spec, {"panel": panel}))
    ties = f", {TIE} a tie with it" if any(row.ties for rows in panels.values() for row in rows) else ""
    return Figure(
        name=name,
        title=title,
        finding=f"latency and speed-up of each scheduler; bold: the best{ties}",
        records=tuple(records),
        panels=tuple(drawn),
        legend=bar_legend(records, whiskers),
        stacked=True,
        panel_pixels=640,
    )


def _comparison_record(row: ComparisonRow, best: ComparisonRow | None) -> dict[str, Cell]:
    latency_ms = row.latency_us / 1e3
    text = f"{latency_ms:.3f} ms  {row.speedup:.2f}x{f' {TIE}' if ties_with(best, row) else ''}"
    interval_ms = None if row.interval_us is None else (row.interval_us[0] / 1e3, row.interval_us[1] / 1e3)
    published_ms = None if row.published_us is None else row.published_us / 1e3
    return {
        "scheduler": row.scheduler,
        "latency_ms": latency_ms,
        "best": row is best,
        "bound_ms": None if row.lower_bound_us is None else row.lower_bound_us / 1e3,
        **bar_record(latency_ms, text, interval_ms, published_ms),
    }


def devices_figure(compared: DeviceComparison) -> Figure:
    """One bar per device, the fastest first: its best latency with the interval, the board's power, and the limit."""
    records: list[dict[str, Cell]] = []
    for each, row in sorted(compared.best, key=lambda item: item[1].latency_us):
        record = _comparison_record(row, None)
        power_w = compared.board_power_w.get(each.device)
        text = f"{record['text']}{'' if power_w is None else f', {power_w:.0f} W'}, {row.scheduler}"
        records.append({"group": each.device, **record, "scheduler": _BEST, "text": text})
    share_scales(records, [], None)
    groups, limit, axis = [record["group"] for record in records], compared.limit_ms, "latency (ms)"
    spec = bar_specification("latency_ms", axis, [_BEST], records, groups, limit, _LONGEST_TEXT_PIXELS)
    asked = [] if limit is None else [LegendEntry(f"asked for: at most {limit:g} ms", "currentColor", "dashes")]
    return Figure(
        name="devices",
        title=compared.title,
        finding="\n".join(compared.sentences()),
        records=tuple(records),
        panels=(Panel("", spec),),
        legend=(*bar_legend(records, WHISKERS), *asked),
        panel_pixels=640,
    )
