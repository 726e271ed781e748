"""The few points of a study that a report looks into: their networks, devices and schedules, read again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from iossim.base.errors import IossimError
from iossim.hardware.lowering.target import target_of
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.report.study.layout import best_of, point_label, points, values_of, varying
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
    """Points priced by the simulator of a GPU whose schedules are there; at most ``MOST_POINTS``."""
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
        if not best.cost_model.startswith("simulator"):
            continue
        try:
            profile = device_of(known[number].device)
            if not target_of(profile).has_warps:
                continue
            first, second = (Schedule.read(run.folder / file) for file in (sequential.schedule, best.schedule))
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
