"""Runs a study: every point scheduled, on as many workers as there are, each once, whatever interrupts it.

Workers do points (:mod:`iossim.study.evaluate`), then price schedules across points
(:mod:`iossim.study.cross_evaluation`); this process alone writes. Each result is kept before it counts as done
(:mod:`iossim.study.journal`), and the tables are made of what was kept, in the order of the points, so that they are
the same whatever the number of workers or of attempts.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

from iossim._version import __version__
from iossim.base.cores import usable_cores
from iossim.base.errors import OptionError
from iossim.cost.create import measures
from iossim.search.scheduler import Progress, ignore
from iossim.study.answers import answer, meets
from iossim.study.cross_evaluation import CrossTask, MadeElsewhere, evaluate_cross, families
from iossim.study.evaluate import PointTask, TraceFormat, evaluate_point
from iossim.study.journal import CrossDone, PointDone
from iossim.study.points import Point, points_of
from iossim.study.question import Question
from iossim.study.run_directory import RunDirectory, read_run
from iossim.study.scenario import Scenario
from iossim.study.study_run import CrossPrice, Results, Row, StudyRun
from iossim.study.workers import Workers, open_workers

#: Packages that results or their speed may depend on.
_PACKAGES = ("numpy", "numba", "scipy", "simpy", "pydantic", "onnx", "joblib", "distributed", "pyarrow")


@dataclass
class Attempt:
    """One call of ``run_study`` on a folder; the first, or one that went on."""

    command: Sequence[str]
    executor: str
    workers: int
    #: Points that earlier attempts had done.
    taken_over: int
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    _begin_s: float = field(default_factory=perf_counter)

    def to_json(self, done: int | None = None) -> dict[str, Any]:
        """``done``: points of this attempt, once it has come to its end."""
        told: dict[str, Any] = {
            "command": list(self.command),
            "executor": self.executor,
            "workers": self.workers,
            "started": self.started.isoformat(timespec="seconds"),
            "points_taken_over": self.taken_over,
        }
        if done is None:
            return told
        return {**told, "points_done": done, "elapsed_s": round(perf_counter() - self._begin_s, 3)}


def environment(attempts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Versions and machine of this process, and the attempts."""
    return {
        "iossim": __version__,
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": len(usable_cores()),
        "attempts": list(attempts),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def run_study(
    scenario: Scenario,
    folder: Path | str,
    *,
    workers: int | None = None,
    executor: str = "processes",
    address: str | None = None,
    resume: bool = False,
    trace: TraceFormat | None = None,
    command: Sequence[str] = (),
    progress: Progress = ignore,
) -> StudyRun:
    """Run a study and write its run directory (layout: :mod:`iossim.study.study_run`).

    ``workers`` is the number of processes, by default one a core; with the ``executor`` ``dask`` the cluster at
    ``address`` does the work. ``resume`` goes on with a run that was interrupted; ``trace`` writes a timeline of
    every schedule; ``command`` is what the user typed, for the record. ``progress`` is told how many pieces of work
    are done, and of how many.

    KeyboardInterrupt leaves a folder that can be resumed. Raises a subclass of IossimError for a folder that is
    taken, and for models, devices or clusters that cannot be read or reached; what fails at one point is a row of its
    own.
    """
    points = points_of(scenario)
    if any(map(measures, scenario.cost_models)):
        workers = _alone(workers, executor)
    with (
        open_workers(workers, executor, address) as crew,
        RunDirectory(Path(folder), scenario, points, resume) as directory,
    ):
        done = directory.done(trace is not None)
        attempt = Attempt(command, executor, crew.count, sum(point.key in done for point in points))
        attempts = directory.earlier_attempts()
        directory.write_environment(environment([*attempts, attempt.to_json()]))
        _Sweep(scenario, points, directory, crew, trace, progress).run(done)
        rows = _rows(points, done, scenario.constraints)
        cross = _cross(scenario, directory.crossed())
        results = Results(scenario=scenario, rows=rows, cross=cross, answers=answer(scenario, rows, cross))
        search_s = {
            (point.index, name): seconds for point in points for name, seconds in done[point.key].search_s.items()
        }
        directory.write_environment(environment([*attempts, attempt.to_json(len(points) - attempt.taken_over)]))
        directory.write_results(results, search_s)
    return read_run(folder)


def _alone(workers: int | None, executor: str) -> int:
    """One worker: measurements that are made side by side disturb each other."""
    if workers not in (None, 1) or executor != "processes":
        raise OptionError("a cost model of this study measures, which one worker must do alone; give `workers` 1")
    return 1


class _Sweep:
    """The work that is left of a study."""

    def __init__(
        self,
        scenario: Scenario,
        points: Sequence[Point],
        directory: RunDirectory,
        crew: Workers,
        trace: TraceFormat | None,
        progress: Progress,
    ) -> None:
        self.scenario, self.points, self.directory = scenario, points, directory
        self.crew, self.trace, self.progress = crew, trace, progress
        self.families = [(axis, family) for axis in scenario.cross_evaluate for family in families(points, axis)]

    def run(self, done: dict[str, PointDone]) -> None:
        """Do all that is not ``done`` yet, and add it there."""
        crossed = set(self.directory.crossed())
        crossings = sum(len(family) for _, family in self.families)
        distinct = {point.key for point in self.points}
        total = len(distinct) + crossings
        finished = len(distinct & done.keys()) + len(crossed)
        self.progress(finished, total)
        for result in self.crew.each(evaluate_point, self._point_tasks(done)):
            done[result.point.key] = self.directory.add(result, self.trace is not None)
            finished += 1
            self.progress(finished, total)
        for priced in self.crew.each(evaluate_cross, self._cross_tasks(done, crossed)):
            self.directory.add_cross(priced)
            finished += 1
            self.progress(finished, total)

    def _point_tasks(self, done: Mapping[str, PointDone]) -> list[PointTask]:
        """Points that are not done, each distinct one once; those of one network follow each other."""
        left: dict[str, Point] = {}
        for point in self.points:
            if point.key not in done:
                left.setdefault(point.key, point)
        networks: dict[tuple[str, int, str], list[Point]] = {}
        for point in left.values():
            networks.setdefault((point.model.model_dump_json(), point.batch, point.dtype), []).append(point)
        schedulers, measures = tuple(self.scenario.schedulers), tuple(self.scenario.measures)
        return [
            PointTask(point, schedulers, measures, self.trace, self.crew.count > 1)
            for several in networks.values()
            for point in several
        ]

    def _cross_tasks(self, done: Mapping[str, PointDone], crossed: set[tuple[str, int]]) -> Iterator[CrossTask]:
        """One for each point and axis, made when it is needed: it holds the schedules of a whole family."""
        for axis, family in self.families:
            for point in family:
                if (axis, point.index) in crossed:
                    continue
                own = {row.scheduler: text for row in done[point.key].rows if (text := self._text(row))}
                others = tuple(
                    MadeElsewhere(other.index, row.scheduler, self._text(row), row.reason)
                    for other in family
                    if other is not point
                    for row in done[other.key].rows
                )
                yield CrossTask(axis, point, own, others, self.crew.count > 1)

    def _text(self, row: Row) -> str | None:
        return self.directory.schedule_text(row.schedule) if row.schedule else None


def _rows(points: Sequence[Point], done: Mapping[str, PointDone], constraints: Sequence[Question]) -> list[Row]:
    """The rows in the order of points and schedulers.

    A point that is the same as another has its rows under its own labels.
    """
    rows = [
        row.model_copy(update={"point": point.index, **point.labels})
        for point in points
        for row in done[point.key].rows
    ]
    return [row.model_copy(update={"meets": meets(constraints, row)}) for row in rows]


def _cross(scenario: Scenario, crossed: Mapping[tuple[str, int], CrossDone]) -> list[CrossPrice]:
    """By axis, scheduler, the point where a schedule was made, and where it runs."""
    axes = {axis: place for place, axis in enumerate(scenario.cross_evaluate)}
    schedulers = {name: place for place, name in enumerate(scenario.schedulers)}
    prices = [price for entry in crossed.values() for price in entry.prices]
    return sorted(
        prices, key=lambda price: (axes[price.axis], schedulers[price.scheduler], price.made_for, price.run_at)
    )
