"""The few points that a report looks into, and two schedules of each over time: kernels, and the occupancy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from iossim.base.errors import IossimError
from iossim.base.tables import Cell, Column, number_of
from iossim.cost.create import own_prices
from iossim.execution.execution import Execution
from iossim.hardware.lowering.target import target_of
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.report.colours import kind_colours
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.timeline import lanes, occupancy, occupancy_legend, timeline_records
from iossim.report.study.layout import best_of, point_label, points, values_of, varying
from iossim.report.study.plots import Plot, figure_command, in_folder
from iossim.schedule.schedule import Schedule
from iossim.study.points import Point, device_of, network_of, points_of
from iossim.study.study_run import StudyRun
from iossim.transforms.replay import replayed, split_source

#: Looking into more would make the page slow to write and no easier to read.
MOST_POINTS = 6


@dataclass(frozen=True, eq=False)
class ChosenPoint:
    """A point with the schedules that are drawn: the sequential one and the best, which may be the same."""

    label: str
    network: Network
    profile: DeviceProfile
    sequential: Schedule
    best: Schedule
    #: Where they stand, relative to the run directory.
    sequential_file: str
    best_file: str


@lru_cache(maxsize=1)
def chosen_points(run: StudyRun) -> tuple[ChosenPoint, ...]:
    """Points priced from the profile of a GPU whose schedules are there; at most ``MOST_POINTS``."""
    members = points(run)
    axes = varying(run.results.rows)
    try:
        known = {point.index: point for point in points_of(run.results.scenario)}
    except IossimError:
        # A model or a device of the study is no longer where it was: the rest of the report does without.
        return ()
    found = []
    for number in _numbers(run):
        rows = members[number]
        sequential = next((row for row in rows if row.scheduler == "sequential" and row.schedule), None)
        best = best_of(rows)
        if sequential is None or best is None or not best.schedule or not sequential.schedule or number not in known:
            continue
        try:
            profile = device_of(known[number].device)
            if not target_of(profile).has_warps:
                continue
            first, second = (Schedule.read(run.folder / file) for file in (sequential.schedule, best.schedule))
            if own_prices(second, profile) is None:
                continue
            network = _network(known[number], second)
        except IossimError:
            continue
        label = point_label(best, axes)
        found.append(ChosenPoint(label, network, profile, first, second, sequential.schedule, best.schedule))
    return tuple(found)


def _network(point: Point, schedule: Schedule) -> Network:
    """The network that a schedule of the point was made for, changed as the schedule says."""
    return replayed(network_of(point), split_source(schedule.source.to_source())[1])


def _numbers(run: StudyRun) -> list[int]:
    """All points where they are few; of many those that answers rest on, then the first and last of each model."""
    members = points(run)
    numbers = [number for number, rows in members.items() if best_of(rows) is not None]
    if len(numbers) <= MOST_POINTS:
        return numbers
    rows = run.results.rows
    wanted = [rows[place].point for answer in run.results.answers for place in answer.rows[:1] if place < len(rows)]
    for model in values_of(rows, "model"):
        own = [number for number in numbers if members[number][0].model == model]
        wanted += [own[0], own[-1]] if own else []
    return [number for number in dict.fromkeys(wanted) if number in set(numbers)][:MOST_POINTS]


_NAME = "timeline"


def draw(run: StudyRun) -> Figure | None:
    chosen = chosen_points(run)
    if not chosen:
        return None
    records: list[dict[str, Cell]] = []
    for point in chosen:
        records += _point_records(point)
    trace = f"iossim simulate {in_folder(run, chosen[0].best_file)} --event-driven --out timeline"
    colours = kind_colours([str(record["kind"]) for record in records if record["what"] == "kernel"])
    shown, strip = lanes(colours), occupancy()
    panels: list[Panel] = []
    for name in ("sequential", "best"):
        panels += [
            Panel(f"{name} schedule: stages and kernels", shown, {"schedule": name, "strip": False}),
            Panel(f"{name} schedule: occupancy", strip, {"schedule": name, "strip": True}),
        ]
    return Figure(
        name=_NAME,
        title="Timelines of two schedules",
        finding=_finding(chosen[0], records),
        caption=(
            "A run of the whole schedule on the event-driven simulator: a lane for each stream, a bar for each kernel, "
            "a band with its number for each stage; gaps are launches and synchronisation. Below, the part of the SMs "
            "that hold any block, and the active warps as a part of the most that the device can hold. Both schedules "
            "have the same scale."
        ),
        alt="Kernels over time, by stream and stage, and the occupancy of the SMs below them, of the sequential "
        "schedule and of the best.",
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
        command=f"{figure_command(run, _NAME)}\n{trace}",
        choices=(Column("point"),) if len(chosen) > 1 else (),
        legend=(*(LegendEntry(kind, colour) for kind, colour in colours.items()), *occupancy_legend()),
        stacked=True,
        printed=tuple(record for record in records if record["what"] == "stage"),
    )


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
        made = timeline_records(point.network, schedule, execution.spans, execution)
        records += [{**common, **record} for record in made]
    return records


def _finding(point: ChosenPoint, records: Sequence[Mapping[str, Cell]]) -> str:
    sequential, best = _executions(point)
    busy = [
        float(np.mean([number_of(r["busy_sms_percent"]) for r in records if _is_step(r, point.label, name)]))
        for name in ("sequential", "best")
    ]
    return (
        f"{point.label}: {point.best.scheduler} takes {best.latency_us / 1e3:.3g} ms, sequential "
        f"{sequential.latency_us / 1e3:.3g} ms on the event-driven simulator (analytic, as in all tables: "
        f"{point.best.latency_us / 1e3:.3g} and {point.sequential.latency_us / 1e3:.3g} ms); on average {busy[1]:.0f} "
        f"% of the SMs hold work, instead of {busy[0]:.0f} %."
    )


def _is_step(record: Mapping[str, Cell], label: str, name: str) -> bool:
    return (record["point"], record["schedule"], record["what"]) == (label, name, "occupancy")


PLOTS = (Plot(_NAME, 90, lambda run: bool(chosen_points(run)), draw),)
