"""Kernels of a schedule over time: one lane per stream, one bar per kernel, one band per stage, and below them the
occupancy of the device, where known. Every figure that shows a run over time uses these data and layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from iossim.base.compiled import Floats
from iossim.base.tables import Cell, number_of
from iossim.execution.execution import Execution, Span
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.network import Network
from iossim.report.colours import kind_colours, legend_colours, scheduler_marks
from iossim.report.figures.figure import Figure, LegendEntry, Panel, Spec
from iossim.report.figures.graph import WAIT
from iossim.report.figures.vega import colour_scale, described
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Schedule, Stage

BUSY, WARPS = "#a79bd0", "#d55e00"
LANE_PIXELS, STRIP_PIXELS = 24, 40
#: Number of steps in which occupancy is drawn, each the mean over its time.
_STEPS = 240
LABELS_PIXELS = 62
#: Font sizes above the lanes: of the numbers of stages, and of the names of blocks.
NUMBER_PIXELS, BLOCK_PIXELS = 9, 10
#: Height of a line of them, relative to the font size.
LINE_PIXELS = 1.25
BAND, GAP, MERGED = "#eef0f2", "#c4c4c4", "#10151a"
#: Font size of kernels' labels, and the mean width of a letter relative to it, in the font of pictures.
LABEL_PIXELS = 7.8
_LETTER_WIDTH = 0.54
#: Most kinds of ops in the legend.
_MOST_ENTRIES = 8
#: With fewer letters after an ellipsis a name is meaningless.
_FEWEST_LETTERS = 5


@dataclass(frozen=True, slots=True)
class StageExtent:
    """Stage ``number`` of a schedule, from the start of its first kernel to the end of its last."""

    number: int
    block: str
    stage: Stage
    start_us: float
    end_us: float


def stage_extents(schedule: Schedule, spans: Sequence[Span]) -> list[StageExtent]:
    """Stages that have kernels, in execution order."""
    bounds: dict[int, tuple[float, float]] = {}
    for span in spans:
        start_us, end_us = bounds.get(span.stage, (span.start_us, span.end_us))
        bounds[span.stage] = (min(start_us, span.start_us), max(end_us, span.end_us))
    stages = schedule.named_stages
    return [StageExtent(number, *stages[number], *bounds[number]) for number in sorted(bounds)]


def timeline_records(
    network: Network, schedule: Schedule, spans: Sequence[Span], execution: Execution | None = None
) -> list[dict[str, Cell]]:
    """One record per stage, per kernel, and per step of the occupancy, if ``execution`` is the run of the spans."""
    extents = stage_extents(schedule, spans)
    records = [{"strip": False, **record} for record in (*_stages(extents), *_kernels(network, schedule, spans))]
    return records + [{"strip": True, **record} for record in (occupancy_steps(execution) if execution else ())]


def lanes(
    colours: Mapping[str, str], domain_ms: tuple[float, float], title: str = "stream", has_waits: bool = False
) -> Spec:
    """Stages and kernels over ``domain_ms``; ``title`` is that of the lanes. The cell ``above`` is the height of a
    stage's number and a block's name.
    """
    return described(
        __package__,
        "lanes",
        has_waits=has_waits,
        wait=WAIT,
        band=BAND,
        gap=GAP,
        merged=MERGED,
        narrow=f"datum.end_ms - datum.start_ms < {(domain_ms[1] - domain_ms[0]) / 700}",
        colours=colour_scale(colours),
        kinds=list(colours),
        x=time_channel("start_ms", domain_ms),
        y=stream_channel(title),
        middle=time_channel("middle", domain_ms),
        label_size=LABEL_PIXELS,
        block_size=BLOCK_PIXELS,
        number_size=NUMBER_PIXELS,
    )


def staggered(labels: Sequence[tuple[float, float]]) -> list[int]:
    """Line of each label, 0 the lowest, as low as keeps it apart from those to its right.

    ``labels`` are the left and right ends, in the order of their places.
    """
    begins: list[float] = []  # left end of each line's leftmost label
    lines = []
    for left, right in reversed(labels):
        line = next((line for line, begin in enumerate(begins) if right <= begin), len(begins))
        begins[line : line + 1] = [left]
        lines.append(line)
    return lines[::-1]


def occupancy(domain_ms: tuple[float, float], of_cores: bool = False) -> Spec:
    """Part of the SMs that hold any block, and part of the most active warps, which a processor's cores
    (``of_cores``) do not have; time as in :func:`lanes`.
    """
    return described(
        __package__,
        "occupancy",
        x=time_channel("start_ms", domain_ms, labels=False),
        busy=BUSY,
        warps=WARPS,
        has_warps=not of_cores,
        busy_title=f"busy {'cores' if of_cores else 'SMs'}, %",
        height=STRIP_PIXELS,
    )


def fitting_label(texts: Sequence[str], pixels: float) -> str:
    """First of ``texts`` that fits in ``pixels``, else the end of the last one; empty if not even a few letters fit."""
    if fitting := next((text for text in texts if text_pixels(text, LABEL_PIXELS) <= pixels), ""):
        return fitting
    letters = int(pixels / (LABEL_PIXELS * _LETTER_WIDTH)) - 1
    return f"…{texts[-1][-letters:].lstrip('._')}" if letters >= _FEWEST_LETTERS else ""


def text_pixels(text: str, size: float) -> float:
    return len(text) * size * _LETTER_WIDTH


def colours_by_time(records: Sequence[Mapping[str, Cell]]) -> dict[str, str]:
    """Colour of each kind of op that has a kernel, those that take the most time first."""
    total_ms: dict[str, float] = defaultdict(float)
    for record in records:
        if record["what"] == "kernel":
            total_ms[str(record["kind"])] += number_of(record["time_ms"])
    colours = kind_colours(total_ms)
    return {kind: colours[kind] for kind in sorted(total_ms, key=lambda kind: (-total_ms[kind], kind))}


def kind_entries(colours: Mapping[str, str]) -> list[LegendEntry]:
    """Kinds of one colour share an entry; beyond the most entries, the shortest kinds are left out."""
    named = [LegendEntry(kinds, colour) for kinds, colour in legend_colours(colours).items()]
    entries = named[:_MOST_ENTRIES]
    if len(entries) < len(named):
        entries.append(LegendEntry(f"and {len(named) - len(entries)} more", "#ffffff"))
    return entries


def occupancy_legend(of_cores: bool = False) -> tuple[LegendEntry, ...]:
    if of_cores:
        return (LegendEntry("busy cores", BUSY),)
    return LegendEntry("busy SMs", BUSY), LegendEntry("active warps", WARPS, "line")


def _stages(extents: Sequence[StageExtent]) -> list[dict[str, Cell]]:
    return [
        {
            "what": "stage",
            "stage": extent.number,
            "unit": extent.block,
            **from_to_ms(extent.start_us, extent.end_us),
            "time_ms": (extent.end_us - extent.start_us) / 1e3,
        }
        for extent in extents
    ]


def _kernels(network: Network, schedule: Schedule, spans: Sequence[Span]) -> list[dict[str, Cell]]:
    stages = schedule.stages
    kinds = {unit.name: main_kind(network, unit) for unit in network.units}
    records: list[dict[str, Cell]] = []
    for span in spans:
        stage = stages[span.stage]
        units = stage.units if stage.strategy is Strategy.MERGE else [span.unit]
        record: dict[str, Cell] = {
            "what": "kernel",
            "stage": span.stage,
            "stream": span.stream,
            "unit": " + ".join(units),
            "kernel": span.name,
            "kind": kinds[units[0]],
            **from_to_ms(span.start_us, span.end_us),
            "time_ms": (span.end_us - span.start_us) / 1e3,
        }
        records.append(record)
    return records


def occupancy_steps(execution: Execution, **parts: Floats) -> list[dict[str, Cell]]:
    """Occupancy in steps of equal length, each the mean over its time, in percent, together with other ``parts`` of a
    whole, shape ``[states]``, under their names.
    """
    if not execution.latency_us:
        return []
    edges = np.linspace(0.0, execution.latency_us, _STEPS + 1)
    held = execution.sms_by_warps[0]
    most = int(held.sum()) * (len(held) - 1)
    occupied = {
        "busy_sms_percent": execution.occupied_sms,
        "active_warps_percent": execution.active_warps / max(1, most),
    }
    means: dict[str, list[float]] = {}
    for name, values in (occupied | parts).items():
        # This is the integral of the step function at the edges; its differences are the means times the steps' length.
        sums = np.concatenate([[0.0], np.cumsum(np.diff(execution.time_us) * values)])
        at_edges = np.interp(edges, execution.time_us, sums)
        means[name] = (100 * np.diff(at_edges) / np.diff(edges)).tolist()
    return [
        {
            "what": "occupancy",
            **from_to_ms(float(start), float(end)),
            **{name: values[step] for name, values in means.items()},
        }
        for step, (start, end) in enumerate(pairwise(edges))
    ]


def stream_channel(title: str) -> Spec:
    """Vertical channel: one lane per stream."""
    axis = {"grid": False, "maxExtent": LABELS_PIXELS, "minExtent": LABELS_PIXELS}
    scale = {"paddingInner": 0.16, "paddingOuter": 0.16}
    return {"axis": axis, "field": "stream", "scale": scale, "title": title, "type": "ordinal"}


def from_to_ms(start_us: float, end_us: float) -> dict[str, Cell]:
    """Cells of a record that give its time."""
    return {"start_ms": start_us / 1e3, "end_ms": end_us / 1e3}


def time_channel(key: str, domain_ms: tuple[float, float], labels: bool = True) -> Spec:
    """Horizontal channel of a time in ms over ``domain_ms``."""
    scale = {"domain": list(domain_ms), "nice": False}
    ticks = {"labelExpr": "datum.index == 0 ? datum.label + ' ms' : datum.label"}
    axis = {"grid": False, **ticks, "labels": labels, "ticks": labels}
    return {"axis": axis, "field": key, "scale": scale, "title": None, "type": "quantitative"}


_WIDTH_PIXELS = 720


def active_warps_figure(title: str, runs: Mapping[str, Execution]) -> Figure:
    """One panel per run, from top to bottom, with the mean over its own time as a dashed line.

    Means after the first are also given over the first's.
    """
    latest_ms = max((run.latency_us for run in runs.values()), default=0.0) / 1e3 or 1.0
    most = max((int(run.active_warps.max(initial=0)) for run in runs.values()), default=0) or 1
    marks = scheduler_marks(list(runs))
    first = next(iter(runs.values()), None)
    of_cores = first is not None and first.of_cores
    active, spread = ("busy cores", ".1f") if of_cores else ("active warps", ",.0f")
    records: list[dict[str, Cell]] = []
    panels = []
    for name, run in runs.items():
        mean = f"{run.mean_active_warps:{spread}} {active.split()[1]} on average"
        if run is not first and first is not None and first.mean_active_warps:
            mean += f", {run.mean_active_warps / first.mean_active_warps:.2f} times as many"
        values = [*run.active_warps.tolist(), 0]  # at each change; at the end nothing is active
        times_ms = [time_us / 1e3 for time_us in run.time_us.tolist()]
        records += [{"run": name, "time_ms": ms, "warps": value} for ms, value in zip(times_ms, values, strict=True)]
        spec = described(
            __package__,
            "active_warps",
            colour=marks[name][0],
            times_ms=[0, latest_ms * 1.01],
            warps=[0, most * 1.06],
            active=active,
            end_ms=run.latency_us / 1e3,
            mean=run.mean_active_warps,
        )
        panels.append(Panel(f"{name}: {run.latency_us / 1000:.3f} ms, {mean}", spec, {"run": name}))
    return Figure(
        name="active_warps",
        title=title,
        finding=f"{active}{'' if of_cores else ' on all SMs together'}; dashed: the mean over the run",
        records=tuple(records),
        panels=tuple(panels),
        stacked=True,
        panel_pixels=_WIDTH_PIXELS,
    )
