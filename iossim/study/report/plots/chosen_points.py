"""The few points that a report examines: two schedules of each over time, with kernels and the occupancy, and the
roofline of the ops, the rate of each unit alone under the limits of the device (Williams et al. 2009).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from iossim.base.errors import IossimError
from iossim.base.tables import number_of
from iossim.execution.execution import Execution
from iossim.hardware.lowering.target import target_of
from iossim.hardware.lowering.unit import main_kind, unit_bytes
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.shown_names import shown_names
from iossim.report.colours import kind_colours, legend_colours
from iossim.report.figures.figure import Figure, LegendEntry, Panel
from iossim.report.figures.timeline import lanes, occupancy, occupancy_legend, timeline_records
from iossim.report.figures.vega import colour_scale, described, log_ticks
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

    @property
    def peak_gflops(self) -> float:
        """The peak of the device at the network's precision."""
        return 1e3 * (self.profile.reduced_precision_tflops(self.network.precision) or self.profile.fp32_tflops)


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


def draw_roofline(run: StudyRun) -> Figure | None:
    chosen = chosen_points(run)
    units = [record for point in chosen for record in _units(point)]
    drawn = [record for record in units if record["gflops"]]
    if not drawn:
        return None
    several = ["point"] if len(chosen) > 1 else []
    missing = len(units) - len(drawn)
    left_out = f" Not drawn, and in the data alone: {missing} without arithmetic." if missing else ""
    colours = kind_colours([str(record["kind"]) for record in drawn])
    records = [*units, *(record for point in chosen for record in _roofs(point, units))]
    intensities, rates = (log_ticks(number_of(record[key]) for record in records) for key in ("intensity", "gflops"))
    values = {"intensities": intensities, "rates": rates, "kinds": list(colours), "colours": colour_scale(colours)}
    return figure_of(
        "roofline",
        Layout(several, axis_columns(several)),
        records,
        {"": described(__package__, "roofline", **values)},
        {"left_out": left_out},
        finding=_roofline_finding(chosen[0], units),
        legend=tuple(LegendEntry(*entry, "circle") for entry in legend_colours(colours).items()),
    )


def _units(point: ChosenPoint) -> list[Record]:
    network, profile = point.network, point.profile
    alone_us = {stage.units[0]: stage.latency_us for stage in point.sequential.stages if len(stage.units) == 1}
    total_us = sum(alone_us.values())
    records: list[Record] = []
    for unit in network.units:
        time_us = alone_us.get(unit.name)
        if time_us is None:
            continue
        flops = sum(network.graph.work(node).flops for node in network.unit_nodes(unit))
        moved = unit_bytes(network, unit)
        counts = bool(flops and moved and time_us)
        intensity = flops / moved if counts else None
        gflops = flops / time_us / 1e3 if counts else None
        roof = min(point.peak_gflops, intensity * profile.dram_bandwidth_gbps) if intensity else None
        records.append(
            {
                "what": "unit",
                "point": point.label,
                "unit": unit.name,
                "kind": main_kind(network, unit),
                "intensity": intensity,
                "gflops": gflops,
                "time_us": time_us,
                "share_percent": 100 * time_us / total_us if total_us else 0.0,
                "of_roof_percent": 100 * gflops / roof if gflops and roof else None,
            }
        )
    return records


def _roofs(point: ChosenPoint, units: Sequence[Record]) -> list[Record]:
    """The two lines, from the leftmost unit to the rightmost, or beyond their corner."""
    own = [number_of(unit["intensity"]) for unit in units if unit["point"] == point.label and unit["intensity"]]
    if not own:
        return []
    peak, bandwidth = point.peak_gflops, point.profile.dram_bandwidth_gbps
    corner = peak / bandwidth
    places = (min(*own, corner) / 2, corner, max(*own, corner) * 2)
    said = f"{bandwidth:,.0f} GB/s and {peak / 1e3:,.1f} TFLOP/s of {point.profile.name}"
    return [
        {
            "what": "roof",
            "point": point.label,
            "unit": f"roof: {said}",
            "kind": None,
            "intensity": place,
            "gflops": min(peak, place * bandwidth),
            "text": f"roof: {said}" if place == places[-1] else None,
        }
        for place in places
    ]


def _roofline_finding(point: ChosenPoint, units: Sequence[Record]) -> str:
    own = [unit for unit in units if unit["point"] == point.label and unit["of_roof_percent"] is not None]
    low = sum(number_of(unit["share_percent"]) for unit in own if number_of(unit["of_roof_percent"]) < 50)
    told = "ops that attain less than half of what the roofline allows"
    return f"{point.label}: {told} take {low:.0f} % of the sequential time."


PLOTS = (Plot("timeline", 90, None, draw_timeline), Plot("roofline", 100, None, draw_roofline))
