"""Two schedules of one point over one scale of time, block by block: their kernels, and how full the device is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from iossim.execution.execution import Execution
from iossim.ir.network import Network
from iossim.reporting.kind_colours import kind_colours, op_kind
from iossim.reporting.stage_extent import stage_extents
from iossim.reporting.study.chosen_points import ChosenPoint, chosen_points
from iossim.reporting.study.commands import figure_command, in_folder
from iossim.reporting.study.figure import Figure, LegendEntry, Panel, Plot
from iossim.reporting.study.specifications import layer, need_altair, specification
from iossim.schedule.schedule import Schedule
from iossim.schedule.strategy import Strategy
from iossim.study.study_run import StudyRun
from iossim.tables import Cell, Column

_LANE_PIXELS, _STRIP_PIXELS = 24, 92
#: Steps of the occupancy that are drawn; between them it is the mean over time.
_STEPS = 240
#: A stage that is narrower has no room for its number.
_NUMBER_PIXELS = 15
_LABELS_PIXELS = 62
_BUSY, _WARPS = "#a79bd0", "#d55e00"


def fits(run: StudyRun) -> bool:
    return bool(chosen_points(run))


def draw(run: StudyRun) -> Figure | None:
    chosen = chosen_points(run)
    if not chosen:
        return None
    records: list[dict[str, Cell]] = []
    for point in chosen:
        records += _point_records(point)
    colours = kind_colours([str(record["kind"]) for record in records if record["what"] == "kernel"])
    lanes, strip = _lanes(colours), _strip()
    panels: list[Panel] = []
    for name in ("sequential", "best"):
        panels += [
            Panel(f"{name} schedule: stages and kernels", lanes, {"schedule": name, "strip": False}),
            Panel(f"{name} schedule: occupancy", strip, {"schedule": name, "strip": True}),
        ]
    return Figure(
        name=PLOT.name,
        title="Timelines of two schedules",
        finding=_finding(chosen[0], records),
        caption=(
            "A run of the whole schedule on the event-driven simulator: a lane for each stream, a bar for each kernel, a band "
            "with its number for each stage; gaps are launches and synchronisation. Below, the part of the SMs that hold any "
            "block, and the active warps as a part of the most that the device can hold. Both schedules have the same scale."
        ),
        alt="Kernels over time, by stream and stage, and the occupancy of the SMs below them, of the sequential schedule and of the best.",
        columns=(
            *((Column("point"),) if len(chosen) > 1 else ()),
            Column("schedule"),
            Column("what"),
            Column("stage"),
            Column("stream"),
            Column("unit"),
            Column("kernel"),
            Column("kind"),
            Column("start_ms", "start", digits=4),
            Column("end_ms", "end", digits=4),
            Column("busy_sms_percent", "busy SMs", digits=1),
            Column("active_warps_percent", "active warps", digits=1),
        ),
        records=tuple(records),
        panels=tuple(panels),
        command=_command(run, chosen[0]),
        choices=(Column("point"),) if len(chosen) > 1 else (),
        legend=(
            *(LegendEntry(kind, colour) for kind, colour in colours.items()),
            LegendEntry("busy SMs", _BUSY),
            LegendEntry("active warps", _WARPS, "line"),
        ),
        stacked=True,
        printed=tuple(record for record in records if record["what"] == "stage"),
    )


def _command(run: StudyRun, point: ChosenPoint) -> str:
    """What draws the picture, and what makes a trace of one of its runs."""
    trace = f"iossim simulate {in_folder(run, point.best_file)} --event-driven --out timeline"
    return f"{figure_command(run, PLOT.name)}\n{trace}"


@lru_cache(maxsize=16)
def _executions(point: ChosenPoint) -> tuple[Execution, Execution]:
    from iossim.backends.simulator.events import run_schedule

    sequential, best = (
        run_schedule(point.network, schedule, point.profile, engine=schedule.engine)
        for schedule in (point.sequential, point.best)
    )
    return sequential, best


def _point_records(point: ChosenPoint) -> list[dict[str, Cell]]:
    executions = _executions(point)
    end_ms = max(execution.latency_us for execution in executions) / 1e3
    records: list[dict[str, Cell]] = []
    for name, schedule, execution in zip(
        ("sequential", "best"), (point.sequential, point.best), executions, strict=True
    ):
        common: dict[str, Cell] = {"point": point.label, "schedule": name, "end_of_both_ms": end_ms}
        records += [{**common, "strip": False, **record} for record in _stages(schedule, execution)]
        records += [{**common, "strip": False, **record} for record in _kernels(point.network, schedule, execution)]
        records += [{**common, "strip": True, **record} for record in _steps(execution)]
    return records


def _stages(schedule: Schedule, execution: Execution) -> list[dict[str, Cell]]:
    return [
        {
            "what": "stage",
            "stage": extent.number,
            "unit": extent.block,
            "start_ms": extent.start_us / 1e3,
            "end_ms": extent.end_us / 1e3,
            "time_ms": (extent.end_us - extent.start_us) / 1e3,
        }
        for extent in stage_extents(schedule, execution.spans)
    ]


def _kernels(network: Network, schedule: Schedule, execution: Execution) -> list[dict[str, Cell]]:
    stages = schedule.stages
    kinds = {unit.name: op_kind(network, unit) for unit in network.units}
    records: list[dict[str, Cell]] = []
    for span in execution.spans:
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


def _time(alt: Any, key: str, title: str | None, labels: bool = True) -> Any:
    scale = alt.Scale(nice=False, zero=True)
    return alt.X(f"{key}:Q", title=title, scale=scale, axis=alt.Axis(grid=False, labels=labels, ticks=labels))


def _lanes(colours: Mapping[str, str]) -> dict[str, Any]:
    alt = need_altair()
    x = _time(alt, "start_ms", None, labels=False)
    y = alt.Y(
        "stream:O", title="stream", scale=alt.Scale(paddingInner=0.16, paddingOuter=0.16),
        axis=alt.Axis(minExtent=_LABELS_PIXELS, maxExtent=_LABELS_PIXELS, grid=False),
    )  # fmt: skip
    stages = layer().transform_filter("datum.what == 'stage'")
    tooltip = [
        alt.Tooltip("stage:Q", title="stage"),
        alt.Tooltip("unit:N", title="unit or block"),
        alt.Tooltip("kernel:N", title="kernel"),
        alt.Tooltip("kind:N", title="kind"),
        alt.Tooltip("start_ms:Q", title="start, ms", format=".4f"),
        alt.Tooltip("time_ms:Q", title="time, ms", format=".4f"),
    ]
    return specification(
        stages.mark_rect(opacity=0.22).encode(
            x=x, x2="end_ms:Q", y=alt.value(0), y2=alt.value("height"),
            color=alt.condition("datum.stage % 2", alt.value("#8b939c"), alt.value("#c3c8ce")), tooltip=tooltip,
        ),
        layer().transform_filter("datum.what == 'kernel'").mark_bar().encode(
            x=x, x2="end_ms:Q", y=y, tooltip=tooltip,
            color=alt.Color("kind:N", sort=list(colours), scale=alt.Scale(domain=list(colours), range=list(colours.values()))),
        ),
        stages.transform_filter(f"datum.time_ms / datum.end_of_both_ms * width > {_NUMBER_PIXELS}")
        .transform_calculate(middle="(datum.start_ms + datum.end_ms) / 2")
        .mark_text(
            baseline="bottom", fontSize=9, dy=-2
        ).encode(x=_time(alt, "middle", None, labels=False), y=alt.value(0), text="stage:Q"),
        _end(alt),
        height={"step": _LANE_PIXELS},
    )  # fmt: skip


def _strip() -> dict[str, Any]:
    alt = need_altair()
    x = _time(alt, "start_ms", "time (ms)")
    axis = alt.Axis(minExtent=_LABELS_PIXELS, maxExtent=_LABELS_PIXELS, tickCount=3)
    scale = alt.Scale(domain=[0, 100])
    tooltip = [
        alt.Tooltip("start_ms:Q", title="time, ms", format=".4f"),
        alt.Tooltip("busy_sms_percent:Q", title="busy SMs, %", format=".0f"),
        alt.Tooltip("active_warps_percent:Q", title="active warps, %", format=".0f"),
    ]
    return specification(
        layer().mark_rect(color=_BUSY, stroke=_BUSY, strokeWidth=0.6).encode(
            x=x, x2="end_ms:Q", y=alt.Y("busy_sms_percent:Q", title="% of all", scale=scale, axis=axis),
            y2=alt.datum(0), tooltip=tooltip,
        ),
        layer().mark_line(interpolate="step-after", strokeWidth=1.4, color=_WARPS).encode(
            x=x, y=alt.Y("active_warps_percent:Q", scale=scale)
        ),
        _end(alt),
        height=_STRIP_PIXELS,
    )  # fmt: skip


def _end(alt: Any) -> Any:
    """Nothing to be seen where the longer of both schedules ends, so that they have the same scale."""
    return layer().mark_point(opacity=0).encode(x=alt.X("end_of_both_ms:Q"))


def _finding(point: ChosenPoint, records: Sequence[Mapping[str, Cell]]) -> str:
    sequential, best = _executions(point)
    busy = [
        float(np.mean([float(r["busy_sms_percent"] or 0.0) for r in records if _is_step(r, point.label, name)]))
        for name in ("sequential", "best")
    ]
    return (
        f"{point.label}: {point.best.scheduler} ends after {best.latency_us / 1e3:.3g} ms, sequential after "
        f"{sequential.latency_us / 1e3:.3g} ms; on average {busy[1]:.0f} % of the SMs hold work, instead of {busy[0]:.0f} %."
    )


def _is_step(record: Mapping[str, Cell], label: str, name: str) -> bool:
    return (record["point"], record["schedule"], record["what"]) == (label, name, "occupancy")


PLOT = Plot("timeline", 90, fits, draw)
