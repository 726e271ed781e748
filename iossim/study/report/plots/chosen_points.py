"""The few points that a report examines: two schedules of each over time, with kernels and the occupancy."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property, lru_cache

from iossim.base.errors import IossimError
from iossim.execution.execution import Execution
from iossim.hardware.lowering.target import target_of
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.shown_names import shown_names
from iossim.report.colours import kind_colours, legend_colours
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.timeline import lanes, occupancy, occupancy_legend, timeline_records
from iossim.schedule.schedule import Schedule
from iossim.study.points import device_of, network_of, points_of
from iossim.study.report.layout import Layout, Record, axis_columns, best_of, point_label, points, varying
from iossim.study.report.plots import Plot, figure_command, figure_of
from iossim.study.study_run import StudyRun
from iossim.tasks.own_prices import own_prices
from iossim.transforms.replay import replayed, split_source

#: More would make the page slow to write and no easier to read.
MOST_POINTS = 6


@dataclass(frozen=True, eq=False)
class ChosenPoint:
    """A point with the schedules that are drawn: the sequential one and the best, which may be the same."""

    label: str
    network: Network
    profile: DeviceProfile
    sequential: Schedule
    best: Schedule
    #: Path of the best one, relative to the run directory.
    best_file: str

    @cached_property
    def executions(self) -> dict[str, tuple[Schedule, Execution]]:
        """Both on the event-driven simulator."""
        from iossim.backends.simulator.events import run_schedule

        drawn = {"sequential": self.sequential, "best": self.best}
        return {
            name: (one, run_schedule(self.network, one, self.profile, engine=one.engine)) for name, one in drawn.items()
        }


@lru_cache(maxsize=1)
def chosen_points(run: StudyRun) -> tuple[ChosenPoint, ...]:
    """Points priced from the profile of a GPU whose schedules were kept; at most ``MOST_POINTS``."""
    members = points(run)
    axes = varying(run.results.rows)
    try:
        known = {point.index: point for point in points_of(run.results.scenario)}
    except IossimError:
        # A model or a device of the study was moved or deleted: the rest of the report does without.
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
            # The network that the schedules were made for is rewritten as they say.
            network = replayed(network_of(known[number]), split_source(second.source.to_source())[1])
        except IossimError:
            continue
        network, first, second = shown_names(network)((network, first, second))
        found.append(ChosenPoint(point_label(best, axes), network, profile, first, second, best.schedule))
    return tuple(found)


def _numbers(run: StudyRun) -> list[int]:
    """Points with a schedule: those that answers rest on, then the first ones."""
    rows, numbers = run.results.rows, [number for number, own in points(run).items() if best_of(own) is not None]
    wanted = [rows[place].point for answer in run.results.answers for place in answer.rows[:1] if place < len(rows)]
    return sorted([number for number in dict.fromkeys([*wanted, *numbers]) if number in numbers][:MOST_POINTS])


def draw_timeline(run: StudyRun) -> Figure | None:
    chosen = chosen_points(run)
    if not chosen:
        return None
    records = [record for point in chosen for record in _point_records(point)]
    several = ["point"] if len(chosen) > 1 else []
    best_file = shlex.quote(f"{run.folder.name}/{chosen[0].best_file}")
    colours = kind_colours([str(record["kind"]) for record in records if record["what"] == "kernel"])
    pictures = (("stages and kernels", lanes(colours), False), ("occupancy", occupancy(), True))
    panels = tuple(
        Panel(f"{name} schedule: {what}", spec, {"schedule": name, "strip": is_strip})
        for name in ("sequential", "best")
        for what, spec, is_strip in pictures
    )
    return figure_of(
        "timeline",
        Layout(several, axis_columns(several)),
        records,
        {},
        finding=_finding(chosen[0]),
        panels=panels,
        command=f"{figure_command(run, 'timeline')}\niossim simulate {best_file} --event-driven --out timeline",
        legend=(*(LegendEntry(*entry) for entry in legend_colours(colours).items()), *occupancy_legend()),
        stacked=True,
    )


def _point_records(point: ChosenPoint) -> list[Record]:
    end_ms = max(execution.latency_us for _, execution in point.executions.values()) / 1e3
    return [
        {"point": point.label, "schedule": name, "end_of_both_ms": end_ms, **record}
        for name, (schedule, execution) in point.executions.items()
        for record in timeline_records(point.network, schedule, execution.spans, execution)
    ]


def _finding(point: ChosenPoint) -> str:
    run_ms = {name: execution.latency_us / 1e3 for name, (_, execution) in point.executions.items()}
    analytic_ms = point.best.latency_us / 1e3, point.sequential.latency_us / 1e3
    return (
        f"{point.label}: {point.best.scheduler} takes {run_ms['best']:.3g} ms, sequential {run_ms['sequential']:.3g} "
        f"ms on the event-driven simulator (analytic, as in all tables: {analytic_ms[0]:.3g} and {analytic_ms[1]:.3g} "
        "ms)."
    )


PLOTS = (Plot("timeline", 90, None, draw_timeline),)
