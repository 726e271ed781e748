"""When the kernels of a schedule run: a lane for each stream, a bar for each kernel, a band for each stage, and below them how
full the device is, where that is known.

:func:`timeline_records` makes the data of every such figure, :func:`lanes` and :func:`occupancy` draw them.
:func:`timeline_figure` is a single schedule by itself: time runs to the right and, for a long one, goes on in the next row, like
text, so that kernels stay visible.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from iossim.execution.execution import Execution
from iossim.execution.timeline import Span
from iossim.ir.network import Network
from iossim.reporting.figures.figure import Figure, LegendEntry, Panel
from iossim.reporting.figures.specifications import layer, need_altair, specification
from iossim.reporting.kind_colours import kind_colour, kind_colours, op_kind, text_on
from iossim.reporting.stage_extent import StageExtent, stage_extents
from iossim.schedule.schedule import Schedule
from iossim.schedule.strategy import Strategy
from iossim.tables import Cell, number_of

BUSY, WARPS = "#a79bd0", "#d55e00"
_LANE_PIXELS, _STRIP_PIXELS, _LOW_STRIP_PIXELS = 24, 92, 40
#: Steps of the occupancy that are drawn; between them it is the mean over time.
_STEPS = 240
#: A stage that is narrower has no room for its number.
_NUMBER_PIXELS = 15
_LABELS_PIXELS = 62
_GAP, _MERGED = "#c4c4c4", "#10151a"
#: Of a figure by itself: its width, and rows are added until each has at most about this many stages, and kernels in its
#: fullest lane.
_WIDTH_PIXELS, _STAGES_PER_ROW, _KERNELS_PER_ROW, _MAXIMUM_ROWS = 1100, 18, 60, 8
#: Kinds of ops for which the legend has room.
_MOST_ENTRIES = 8
_LABEL_PIXELS = (9.5, 8.0, 6.8)


def timeline_records(
    network: Network, schedule: Schedule, spans: Sequence[Span], execution: Execution | None = None
) -> list[dict[str, Cell]]:
    """A record for each stage, each kernel, and each step of the occupancy, if ``execution`` is the run of the spans."""
    extents = stage_extents(schedule, spans)
    records = [{"strip": False, **record} for record in (*_stages(extents), *_kernels(network, schedule, spans))]
    return records + [{"strip": True, **record} for record in (_steps(execution) if execution else ())]


def lanes(colours: Mapping[str, str], domain_ms: tuple[float, float] | None = None) -> dict[str, Any]:
    """Stages and kernels; over the time of ``domain_ms``, or from 0 to the cell ``end_of_both_ms``."""
    alt = need_altair()
    x = _time(alt, "start_ms", None, domain_ms, labels=domain_ms is not None)
    y = alt.Y(
        "stream:O", title="stream", scale=alt.Scale(paddingInner=0.16, paddingOuter=0.16),
        axis=alt.Axis(minExtent=_LABELS_PIXELS, maxExtent=_LABELS_PIXELS, grid=False),
    )  # fmt: skip
    stages, kernels = _only("stage"), _only("kernel")
    tooltip = [
        alt.Tooltip("stage:Q", title="stage"),
        alt.Tooltip("unit:N", title="unit or block"),
        alt.Tooltip("kernel:N", title="kernel"),
        alt.Tooltip("kind:N", title="kind"),
        alt.Tooltip("start_ms:Q", title="start, ms", format=".4f"),
        alt.Tooltip("time_ms:Q", title="time, ms", format=".4f"),
    ]
    numbered = "datum.end_of_both_ms" if domain_ms is None else f"{domain_ms[1] - domain_ms[0]!r}"
    whole = {"y": alt.value(0), "y2": alt.value("height")}
    layers = [
        stages.mark_rect(opacity=0.22).encode(
            x=x, x2="end_ms:Q", **whole, tooltip=tooltip,
            color=alt.condition("datum.stage % 2", alt.value("#8b939c"), alt.value("#c3c8ce")),
        ),
        kernels.mark_bar(**({} if domain_ms is None else {"stroke": "#ffffff", "strokeWidth": 0.5})).encode(
            x=x, x2="end_ms:Q", y=y, tooltip=tooltip,
            color=alt.Color("kind:N", sort=list(colours), scale=alt.Scale(domain=list(colours), range=list(colours.values()))),
        ),
        stages.transform_filter(f"datum.time_ms / {numbered} * width > {_NUMBER_PIXELS}")
        .transform_calculate(middle="(datum.start_ms + datum.end_ms) / 2")
        .mark_text(baseline="bottom", fontSize=9, dy=-2)
        .encode(x=_time(alt, "middle", None, domain_ms, labels=domain_ms is not None), y=alt.value(0), text="stage:Q"),
    ]  # fmt: skip
    if domain_ms is None:
        layers.append(_end(alt))
    else:
        merged = kernels.transform_filter("datum.merged")
        labels = _only("label")
        layers += [
            _only("gap").mark_rect(color=_GAP).encode(x=x, x2="end_ms:Q", **whole),
            merged.mark_bar(fillOpacity=0, stroke=_MERGED, strokeWidth=1.4).encode(x=x, x2="end_ms:Q", y=y),
            *(
                labels.transform_filter(f"datum.size == {size} && datum.colour == '{colour}'")
                .mark_text(fontSize=size, color=colour)
                .encode(x=x, y=y, text="text:N")
                for size in _LABEL_PIXELS
                for colour in ("black", "white")
            ),
            _only("block")
            .mark_text(align="left", baseline="bottom", fontSize=10, fontWeight="bold", dy=-13)
            .encode(x=x, y=alt.value(0), text="text:N"),
            _only("block").mark_rule(color="#333333", strokeWidth=0.8).encode(x=x, **whole),
        ]
    return specification(*layers, height={"step": _LANE_PIXELS})


def occupancy(domain_ms: tuple[float, float] | None = None) -> dict[str, Any]:
    """The part of the SMs that hold any block, and of the most active warps; time as in :func:`lanes`."""
    alt = need_altair()
    x = _time(alt, "start_ms", "time (ms)" if domain_ms is None else None, domain_ms, labels=domain_ms is None)
    axis = alt.Axis(minExtent=_LABELS_PIXELS, maxExtent=_LABELS_PIXELS, tickCount=3)
    scale = alt.Scale(domain=[0, 100])
    tooltip = [
        alt.Tooltip("start_ms:Q", title="time, ms", format=".4f"),
        alt.Tooltip("busy_sms_percent:Q", title="busy SMs, %", format=".0f"),
        alt.Tooltip("active_warps_percent:Q", title="active warps, %", format=".0f"),
    ]
    layers = [
        layer().mark_rect(color=BUSY, stroke=BUSY, strokeWidth=0.6).encode(
            x=x, x2="end_ms:Q", y=alt.Y("busy_sms_percent:Q", title="% of all", scale=scale, axis=axis),
            y2=alt.datum(0), tooltip=tooltip,
        ),
        layer().mark_line(interpolate="step-after", strokeWidth=1.4, color=WARPS).encode(
            x=x, y=alt.Y("active_warps_percent:Q", scale=scale)
        ),
    ]  # fmt: skip
    if domain_ms is None:
        return specification(*layers, _end(alt), height=_STRIP_PIXELS)
    return specification(*layers, height=_LOW_STRIP_PIXELS)


def occupancy_legend() -> tuple[LegendEntry, ...]:
    return LegendEntry("busy SMs", BUSY), LegendEntry("active warps", WARPS, "line")


def timeline_figure(
    network: Network,
    schedule: Schedule,
    spans: Sequence[Span],
    sequential_us: float | None = None,
    execution: Execution | None = None,
) -> Figure:
    """A schedule by itself; ``sequential_us``, if known, is the latency that its speed-up is against.

    ``execution``, if given, is the run that the spans are of: its active warps and its latency are shown too.
    """
    extents = stage_extents(schedule, spans)
    fullest = max(Counter(span.stream for span in spans).values(), default=0)
    wanted = max(math.ceil(len(extents) / _STAGES_PER_ROW), math.ceil(fullest / _KERNELS_PER_ROW))
    rows = _rows(extents, wanted)
    row_ms = max((row.end_ms - row.start_ms for row in rows), default=1.0) * 1.005
    row_of = {extent.number: number for number, row in enumerate(rows) for extent in row.extents}
    records: list[dict[str, Cell]] = []
    for record in timeline_records(network, schedule, spans, execution):
        if record["strip"]:
            places = [number for number, row in enumerate(rows) if _meet(record, row)]
            records += [{**record, **_clipped(record, rows[number]), "row": number} for number in places]
        else:
            stage = int(record["stage"] or 0)
            merged = schedule.stages[stage].strategy is Strategy.MERGE
            records.append({**record, "row": row_of[stage], "merged": merged})
    for number, row in enumerate(rows):
        own = [record for record in records if record["row"] == number and record["what"] == "kernel"]
        for extra in (*_gaps(row), *_blocks(row, row_ms), *_labels(schedule, own, _WIDTH_PIXELS / row_ms)):
            records.append({"strip": False, "row": number, **extra})
    colours = _by_time(records)
    panels: list[Panel] = []
    for number, row in enumerate(rows):
        domain_ms = (row.start_ms, row.start_ms + row_ms)
        panels.append(Panel("", lanes(colours, domain_ms), {"row": number, "strip": False}))
        if execution is not None:
            panels.append(Panel("", occupancy(domain_ms), {"row": number, "strip": True}))
    return Figure(
        name="timeline",
        title=f"{schedule.network} on {schedule.device}",
        finding=_facts(schedule, sequential_us, execution),
        records=tuple(records),
        panels=tuple(panels),
        legend=_legend(colours, schedule, execution is not None),
        stacked=True,
        panel_pixels=_WIDTH_PIXELS,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """The stages drawn in one row."""

    extents: list[StageExtent]

    @property
    def start_ms(self) -> float:
        return self.extents[0].start_us / 1e3

    @property
    def end_ms(self) -> float:
        return self.extents[-1].end_us / 1e3


def _rows(extents: Sequence[StageExtent], wanted: int) -> list[_Row]:
    """Stages dealt to about ``wanted`` rows of about equal time, each a whole number of stages."""
    if not extents:
        return []
    start_us, end_us = extents[0].start_us, extents[-1].end_us
    count = min(_MAXIMUM_ROWS, wanted)
    target_us = (end_us - start_us) / count
    rows: list[_Row] = []
    for extent in extents:
        middle_us = (extent.start_us + extent.end_us) / 2
        if not rows or (middle_us - start_us > target_us * len(rows) and len(rows) < count):
            rows.append(_Row([]))
        rows[-1].extents.append(extent)
    return rows


def _stages(extents: Sequence[StageExtent]) -> list[dict[str, Cell]]:
    return [
        {
            "what": "stage",
            "stage": extent.number,
            "unit": extent.block,
            "start_ms": extent.start_us / 1e3,
            "end_ms": extent.end_us / 1e3,
            "time_ms": (extent.end_us - extent.start_us) / 1e3,
        }
        for extent in extents
    ]


def _kernels(network: Network, schedule: Schedule, spans: Sequence[Span]) -> list[dict[str, Cell]]:
    stages = schedule.stages
    kinds = {unit.name: op_kind(network, unit) for unit in network.units}
    records: list[dict[str, Cell]] = []
    for span in spans:
        merged = stages[span.stage].strategy is Strategy.MERGE
        unit = stages[span.stage].units[0] if merged else span.unit
        records.append(
            {
                "what": "kernel",
                "stage": span.stage,
                "stream": span.stream,
                "unit": " + ".join(stages[span.stage].units) if merged else span.unit,
                "kernel": span.name,
                "kind": kinds[unit],
                "start_ms": span.start_us / 1e3,
                "end_ms": span.end_us / 1e3,
                "time_ms": (span.end_us - span.start_us) / 1e3,
            }
        )
    return records


def _steps(execution: Execution) -> list[dict[str, Cell]]:
    """Occupancy in steps of equal length, each the mean over its time."""
    if not execution.latency_us:
        return []
    edges = np.linspace(0.0, execution.latency_us, _STEPS + 1)
    held = execution.sms_by_warps[0]
    most = int(held.sum()) * (len(held) - 1)
    parts = []
    for values in (execution.occupied_sms, execution.active_warps / max(1, most)):
        # The integral of the step function at the edges; its differences are the means times the steps' length.
        sums = np.concatenate([[0.0], np.cumsum(np.diff(execution.time_us) * values)])
        at_edges = np.interp(edges, execution.time_us, sums)
        parts.append(100 * np.diff(at_edges) / np.diff(edges))
    return [
        {
            "what": "occupancy",
            "start_ms": float(start) / 1e3,
            "end_ms": float(end) / 1e3,
            "busy_sms_percent": float(busy),
            "active_warps_percent": float(warps),
        }
        for start, end, busy, warps in zip(edges, edges[1:], *parts, strict=False)
    ]


def _meet(step: Mapping[str, Cell], row: _Row) -> bool:
    return number_of(step["end_ms"]) > row.start_ms and number_of(step["start_ms"]) < row.end_ms


def _clipped(step: Mapping[str, Cell], row: _Row) -> dict[str, Cell]:
    return {
        "start_ms": max(number_of(step["start_ms"]), row.start_ms),
        "end_ms": min(number_of(step["end_ms"]), row.end_ms),
    }


def _gaps(row: _Row) -> list[dict[str, Cell]]:
    """What stands between the stages of a row: launches and synchronisation."""
    return [
        {"what": "gap", "start_ms": left.end_us / 1e3, "end_ms": right.start_us / 1e3}
        for left, right in pairwise(row.extents)
    ]


def _blocks(row: _Row, row_ms: float) -> list[dict[str, Cell]]:
    """Where each block of a row begins, with its name where that has room behind the one before."""
    found: list[dict[str, Cell]] = []
    free_ms = -math.inf
    for block, group in groupby(row.extents, key=lambda extent: extent.block):
        start_ms = next(iter(group)).start_us / 1e3
        has_room = start_ms > free_ms
        found.append({"what": "block", "text": block if has_room else "", "start_ms": start_ms})
        if has_room:
            free_ms = start_ms + (_text_pixels(block, 10.5) + 8) * row_ms / _WIDTH_PIXELS
    return found


def _labels(schedule: Schedule, kernels: Sequence[Mapping[str, Cell]], pixels_per_ms: float) -> list[dict[str, Cell]]:
    """The name of each unit once over all its kernels, where it fits there."""

    def group_of(record: Mapping[str, Cell]) -> tuple[int, int, str]:
        return int(record["stream"] or 0), int(record["stage"] or 0), str(record["unit"])

    found: list[dict[str, Cell]] = []
    ordered = sorted(kernels, key=lambda record: (int(record["stream"] or 0), number_of(record["start_ms"])))
    for (stream, stage, unit), group in groupby(ordered, key=group_of):
        own = list(group)
        start_ms, end_ms = number_of(own[0]["start_ms"]), number_of(own[-1]["end_ms"])
        units = schedule.stages[stage].units if own[0]["merged"] else [unit]
        text, size = _label(units, (end_ms - start_ms) * pixels_per_ms - 4)
        if text:
            colour = text_on(kind_colour(str(own[0]["kind"])))
            found.append(
                {
                    "what": "label",
                    "stream": stream,
                    "text": text,
                    "size": size,
                    "colour": colour,
                    "start_ms": (start_ms + end_ms) / 2,
                }
            )
    return found


def _label(units: Sequence[str], pixels: float) -> tuple[str, float]:
    """The longest name of the units and the largest font that fit in ``pixels``; nothing where none does.

    The first parts of a name, which mostly repeat the block's, go first.
    """
    parts = [unit.replace("/", ".").split(".") for unit in units]
    candidates = [" + ".join(".".join(names[start:]) for names in parts) for start in (0, -2, -1)]
    if len(units) > 1:
        candidates.append(f"{len(units)} merged")
    for candidate in candidates:
        for size in _LABEL_PIXELS:
            if _text_pixels(candidate, size) <= pixels:
                return candidate, size
    return "", _LABEL_PIXELS[-1]


def _text_pixels(text: str, size: float) -> float:
    """Width of a line of text, by the mean advance of the font of pictures."""
    return len(text) * size * 0.56


def _by_time(records: Sequence[Mapping[str, Cell]]) -> dict[str, str]:
    """The colour of each kind of op that has a kernel, those that take the most time first."""
    total_ms: Counter[str] = Counter()
    for record in records:
        if record["what"] == "kernel":
            total_ms[str(record["kind"])] += number_of(record["time_ms"])  # type: ignore[assignment]
    colours = kind_colours(total_ms)
    return {kind: colours[kind] for kind in sorted(total_ms, key=lambda kind: (-total_ms[kind], kind))}


def _facts(schedule: Schedule, sequential_us: float | None, execution: Execution | None) -> str:
    told = f"{schedule.latency_us / 1000:.3f} ms"
    if sequential_us:
        told += f", speed-up {sequential_us / schedule.latency_us:.2f}x over sequential"
    if schedule.lower_bound_us and schedule.gap is not None:
        told += f", lower bound {schedule.lower_bound_us / 1000:.3f} ms (gap {100 * schedule.gap:.1f} %)"
    if execution is not None:
        told += f", block by block {execution.latency_us / 1000:.3f} ms"
    facts = [
        f"batch {schedule.source.batch}",
        schedule.precision,
        f"{schedule.engine} engine",
        schedule.scheduler,
        f"{len(schedule.stages)} stages",
        f"{schedule.streams} stream{'s' if schedule.streams != 1 else ''}",
    ]
    return f"{told}   ·   {'  ·  '.join(facts)}"


def _legend(colours: Mapping[str, str], schedule: Schedule, has_occupancy: bool) -> tuple[LegendEntry, ...]:
    """Kinds of one colour share an entry; of many the ones that take least time are left out."""
    named: dict[str, list[str]] = {}
    for kind, colour in colours.items():
        named.setdefault(colour, []).append(kind)
    shown = list(named.items())[:_MOST_ENTRIES]
    entries = [LegendEntry(", ".join(same[:2]), colour) for colour, same in shown]
    if len(shown) < len(named):
        entries.append(LegendEntry(f"and {len(named) - len(shown)} more", "#ffffff"))
    if any(stage.strategy is Strategy.MERGE for stage in schedule.stages):
        entries.append(LegendEntry("merged stage", _MERGED, "outline"))
    entries += [LegendEntry("stage", "#dfe3e7"), LegendEntry("between stages", _GAP)]
    return (*entries, *(occupancy_legend() if has_occupancy else ()))


def _time(alt: Any, key: str, title: str | None, domain_ms: tuple[float, float] | None, labels: bool = True) -> Any:
    scale = alt.Scale(nice=False, zero=True) if domain_ms is None else alt.Scale(domain=list(domain_ms), nice=False)
    ticks = {} if domain_ms is None else {"labelExpr": "datum.label + ' ms'"}
    return alt.X(
        f"{key}:Q", title=title, scale=scale, axis=alt.Axis(grid=False, labels=labels, ticks=labels, **ticks)
    )


def _only(what: str) -> Any:
    return layer().transform_filter(f"datum.what == '{what}'")


def _end(alt: Any) -> Any:
    """Nothing to be seen where the longer of both schedules ends, so that they have the same scale."""
    return layer().mark_point(opacity=0).encode(x=alt.X("end_of_both_ms:Q"))
