"""The timeline as a picture: a lane for each stream, a bar for each kernel, a band for each stage.

Time runs to the right and, for a long schedule, goes on in the next row, like text, so that kernels stay visible. All
rows have the same scale. Grey gaps between the bands are what stands between stages: launches and synchronisation. Where
it is known what the device was doing, a strip below the lanes shows its busy SMs and active warps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from iossim.execution.execution import Execution
from iossim.execution.timeline import Span
from iossim.ir.network import Network
from iossim.reporting.figures import new_figure
from iossim.reporting.kind_colours import kind_colour, op_kind, text_on
from iossim.reporting.stage_extent import StageExtent, stage_extents
from iossim.schedule.schedule import Schedule
from iossim.schedule.strategy import Strategy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_INCHES = 15.0
_LEFT_INCHES, _RIGHT_INCHES = 0.85, 0.25
_LANE_INCHES = 0.26
_HEADER_INCHES, _LEGEND_INCHES, _AXIS_INCHES = 0.95, 0.2, 0.62
#: Rows are added until each has at most about this many stages, and kernels in its fullest lane.
_STAGES_PER_ROW, _KERNELS_PER_ROW = 18, 60
_MAXIMUM_ROWS = 8
#: Kinds of ops for which the legend has room.
_MOST_ENTRIES = 8
_LABEL_POINTS = (6.5, 5.5)
_BUSY, _WARPS = "#b3a9d3", "#3d3463"


@dataclass(frozen=True, slots=True)
class _Row:
    """The stages drawn in one row, which begins at ``start_us``."""

    start_us: float
    extents: list[StageExtent]


def timeline_figure(
    network: Network,
    schedule: Schedule,
    spans: Sequence[Span],
    sequential_us: float | None = None,
    execution: Execution | None = None,
) -> Figure:
    """Draw a schedule's timeline; ``sequential_us``, if known, is the latency that its speed-up is against.

    ``execution``, if given, is the run that the spans are of: its active warps and its latency are shown too.
    """
    extents = stage_extents(schedule, spans)
    fullest = max(Counter(span.stream for span in spans).values(), default=0)
    rows = _rows(extents, max(math.ceil(len(extents) / _STAGES_PER_ROW), math.ceil(fullest / _KERNELS_PER_ROW)))
    row_us = max((row.extents[-1].end_us - row.start_us for row in rows), default=1.0) * 1.005
    # A row has the lanes that its own kernels run in.
    spans_of = [[span for span in spans if span.stage in {extent.number for extent in row.extents}] for row in rows]
    lanes_of = [max((span.stream for span in row_spans), default=0) + 1 for row_spans in spans_of]
    extra = int(execution is not None)
    inches_of = [(lanes + extra) * _LANE_INCHES + _AXIS_INCHES for lanes in lanes_of]
    height = _HEADER_INCHES + (sum(inches_of) or _LANE_INCHES + _AXIS_INCHES) + _LEGEND_INCHES
    figure = new_figure(_WIDTH_INCHES, height)
    kinds = _kinds(network, schedule, spans)
    bottom = height - _HEADER_INCHES + _AXIS_INCHES - 0.2
    for row, row_spans, lanes, row_inches in zip(rows, spans_of, lanes_of, inches_of, strict=True):
        strips = lanes + extra
        bottom -= row_inches
        plot_inches = _WIDTH_INCHES - _LEFT_INCHES - _RIGHT_INCHES
        axes = figure.add_axes(
            (
                _LEFT_INCHES / _WIDTH_INCHES,
                bottom / height,
                plot_inches / _WIDTH_INCHES,
                strips * _LANE_INCHES / height,
            )
        )
        points_per_us = plot_inches * 72 / row_us
        _draw_lanes(axes, lanes, strips, row.start_us, row_us, in_ms=extents[-1].end_us >= 10_000)
        _draw_stages(axes, row, strips, points_per_us)
        if execution is not None:
            _draw_occupancy(axes, row, execution, lanes)
        _draw_kernels(axes, schedule, row_spans, kinds, points_per_us)
    _draw_title(figure, schedule, sequential_us, execution, height)
    _draw_legend(figure, list(dict.fromkeys(kinds.values())), schedule, execution is not None, height)
    return figure


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
            rows.append(_Row(extent.start_us, []))
        rows[-1].extents.append(extent)
    return rows


def _kinds(network: Network, schedule: Schedule, spans: Sequence[Span]) -> dict[str, str]:
    """The kind of op of each unit that has a kernel, those that take the most time first; merged units have their own."""
    total_us: dict[str, float] = {}
    of_unit: dict[str, str] = {}
    for span in spans:
        unit = _unit(schedule, span)
        kind = of_unit.setdefault(unit, op_kind(network, network.units[network.unit_index[unit]]))
        total_us[kind] = total_us.get(kind, 0.0) + span.end_us - span.start_us
    return dict(sorted(of_unit.items(), key=lambda item: (-total_us[item[1]], item[1])))


def _unit(schedule: Schedule, span: Span) -> str:
    """The unit whose kind a kernel has: of merged ones the first."""
    stage = schedule.stages[span.stage]
    return stage.units[0] if stage.strategy is Strategy.MERGE else span.unit


def _draw_lanes(axes: Axes, lanes: int, strips: int, start_us: float, row_us: float, in_ms: bool) -> None:
    scale, unit = (1000.0, "ms") if in_ms else (1.0, "us")
    axes.set_xlim(start_us, start_us + row_us)
    axes.set_ylim(strips - 0.5, -0.5)
    names = [f"stream {lane}" for lane in range(lanes)] + ["occupancy"] * (strips - lanes)
    axes.set_yticks(range(strips), names, fontsize=7.5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / scale:g} {unit}")
    axes.tick_params(axis="x", labelsize=7.5, length=2.5, pad=1.5, colors="#444444")
    axes.tick_params(axis="y", length=0)
    axes.set_facecolor("white")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#888888")


def _draw_occupancy(axes: Axes, row: _Row, execution: Execution, strip: int) -> None:
    """SMs that hold any block, as a part of all, and active warps, as a part of the most there ever are, over time."""
    base, tall = strip + 0.43, 0.86
    warps = execution.active_warps / max(1, int(execution.active_warps.max(initial=0)))
    times_us = np.clip(execution.time_us, row.start_us, row.extents[-1].end_us)
    for parts, colour in ((execution.occupied_sms, _BUSY), (warps, _WARPS)):
        axes.stairs(base - tall * parts, times_us, baseline=base, fill=True, color=colour, linewidth=0, zorder=2)


def _draw_stages(axes: Axes, row: _Row, strips: int, points_per_us: float) -> None:
    """Bands and numbers of the stages, grey gaps between them, and the name of each block where it begins."""
    top, bottom = -0.5, strips - 0.5
    for left, right in pairwise(row.extents):
        axes.axvspan(left.end_us, right.start_us, color="#c4c4c4", linewidth=0, zorder=0)
    label_end_us = -math.inf
    for extent in row.extents:
        shade = "#f6f6f6" if extent.number % 2 else "#eaeef2"
        axes.axvspan(extent.start_us, extent.end_us, color=shade, linewidth=0, zorder=0)
        text = str(extent.number)
        if _text_points(text, 6) < (extent.end_us - extent.start_us) * points_per_us:
            middle = (extent.start_us + extent.end_us) / 2
            axes.annotate(
                text, (middle, top), (0, 1.5), textcoords="offset points", ha="center", va="bottom", fontsize=6,
                color="#555555",
            )  # fmt: skip
    for block, group in groupby(row.extents, key=lambda extent: extent.block):
        start_us = next(iter(group)).start_us
        axes.vlines(start_us, top, bottom, color="#333333", linewidth=0.8, zorder=1)
        if start_us > label_end_us:
            axes.annotate(
                block, (start_us, top), (0, 9.5), textcoords="offset points", ha="left", va="bottom", fontsize=7,
                fontweight="bold", color="#333333", annotation_clip=False,
            )  # fmt: skip
            label_end_us = start_us + (_text_points(block, 7) * 1.12 + 6) / points_per_us


def _draw_kernels(
    axes: Axes,
    schedule: Schedule,
    spans: Sequence[Span],
    kinds: Mapping[str, str],
    points_per_us: float,
) -> None:
    """A bar a kernel; the unit's name once over all its kernels, if it fits there."""
    ordered = sorted(spans, key=lambda span: (span.stream, span.start_us))
    for (stream, stage, unit), group in groupby(ordered, key=lambda span: (span.stream, span.stage, span.unit)):
        kernels = list(group)
        members = schedule.stages[stage].units if schedule.stages[stage].strategy is Strategy.MERGE else [unit]
        hatch = "///" if len(members) > 1 else None
        colour = kind_colour(kinds[_unit(schedule, kernels[0])])
        start_us, end_us = kernels[0].start_us, kernels[-1].end_us
        for kernel in kernels:
            axes.barh(
                stream, kernel.end_us - kernel.start_us, left=kernel.start_us, height=0.8, color=colour, zorder=2,
                edgecolor="#ffffff90", linewidth=0.4, hatch=hatch,
            )  # fmt: skip
        axes.vlines(end_us, stream - 0.4, stream + 0.4, color="white", linewidth=1, zorder=3)
        label, font_points = _label(members, (end_us - start_us) * points_per_us - 3)
        if label:
            box = {"facecolor": colour, "edgecolor": "none", "pad": 1.2} if hatch else None
            axes.text(
                (start_us + end_us) / 2, stream, label, ha="center", va="center_baseline", fontsize=font_points,
                color=text_on(colour), zorder=4, bbox=box,
            )  # fmt: skip


def _label(units: Sequence[str], points: float) -> tuple[str, float]:
    """The longest name of the units and the largest font that fit in ``points``; nothing where none does.

    The first parts of a name, which mostly repeat the block's, go first.
    """
    parts = [unit.replace("/", ".").split(".") for unit in units]
    candidates = [" + ".join(".".join(names[start:]) for names in parts) for start in (0, -2, -1)]
    if len(units) > 1:
        candidates.append(f"{len(units)} merged")
    for candidate in candidates:
        for font_points in _LABEL_POINTS:
            if _text_points(candidate, font_points) <= points:
                return candidate, font_points
    return "", _LABEL_POINTS[-1]


def _text_points(text: str, font_points: float) -> float:
    """Width of a line of text, by the mean advance of matplotlib's default sans-serif font."""
    return len(text) * font_points * 0.64


def _draw_title(
    figure: Figure, schedule: Schedule, sequential_us: float | None, execution: Execution | None, height: float
) -> None:
    first = f"{schedule.network} on {schedule.device}"
    facts = [
        f"batch {schedule.source.batch}",
        schedule.precision,
        f"{schedule.engine} engine",
        schedule.scheduler,
        f"{len(schedule.stages)} stages",
        f"{schedule.streams} stream{'s' if schedule.streams != 1 else ''}",
    ]
    second = f"{schedule.latency_us / 1000:.3f} ms"
    if sequential_us:
        second += f", speed-up {sequential_us / schedule.latency_us:.2f}x over sequential"
    if schedule.lower_bound_us and schedule.gap is not None:
        second += f", lower bound {schedule.lower_bound_us / 1000:.3f} ms (gap {100 * schedule.gap:.1f} %)"
    if execution is not None:
        second += f", block by block {execution.latency_us / 1000:.3f} ms"
    left = _LEFT_INCHES / _WIDTH_INCHES
    figure.text(left, 1 - 0.16 / height, first, fontsize=13, fontweight="bold", va="top")
    figure.text(
        left, 1 - 0.44 / height, f"{second}   ·   {'  ·  '.join(facts)}", fontsize=9, va="top", color="#333333"
    )


def _draw_legend(figure: Figure, kinds: Sequence[str], schedule: Schedule, occupancy: bool, height: float) -> None:
    from matplotlib.patches import Patch

    # Kinds of one colour share an entry; of many the ones that take least time are left out.
    named: dict[str, list[str]] = {}
    for kind in kinds:
        named.setdefault(kind_colour(kind), []).append(kind)
    shown = list(named.items())[:_MOST_ENTRIES]
    handles = [Patch(facecolor=colour, label=", ".join(same[:2])) for colour, same in shown]
    if len(shown) < len(named):
        handles.append(Patch(facecolor="none", label=f"and {len(named) - len(shown)} more"))
    if any(stage.strategy is Strategy.MERGE for stage in schedule.stages):
        handles.append(Patch(facecolor="white", edgecolor="#555555", hatch="////", label="merged stage"))
    handles.append(Patch(facecolor="#eaeef2", edgecolor="#bbbbbb", label="stage"))
    handles.append(Patch(facecolor="#c4c4c4", label="between stages"))
    if occupancy:
        handles += [Patch(facecolor=_BUSY, label="busy SMs"), Patch(facecolor=_WARPS, label="active warps")]
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(_LEFT_INCHES / _WIDTH_INCHES - 0.006, 0.06 / height),
        ncols=len(handles), fontsize=8, frameon=False, handlelength=1.3, columnspacing=1.6, borderaxespad=0,
    )  # fmt: skip
