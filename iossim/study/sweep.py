"""Execution of a study: every point is scheduled once, on all workers, whatever interrupts it.

Workers evaluate points, then price schedules across points (:mod:`iossim.study.evaluate`); only this process writes.
Each result is a file before it counts as done, and the tables are made from these in the order of the points, so that
they are independent of the number of workers and attempts.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from time import perf_counter

from iossim._version import __version__
from iossim.base.errors import OptionError, Progress, ignore, public
from iossim.base.threads import usable_cores
from iossim.cost.create import measures
from iossim.study.answers import answer
from iossim.study.evaluate import Made, Texts, evaluate_cross, evaluate_point
from iossim.study.points import Point, families, points_of
from iossim.study.run_directory import Done, RunDirectory, crossing, read_run
from iossim.study.scenario import CrossAxis, Scenario
from iossim.study.scenario_file import read_scenario
from iossim.study.study_run import CrossPrice, Results, StudyRun
from iossim.study.workers import Workers, workers_for

#: Packages that results or their speed may depend on.
_PACKAGES = ("numpy", "numba", "scipy", "simpy", "pydantic", "onnx", "joblib", "distributed")


def _environment(attempts: Sequence[object]) -> dict[str, object]:
    packages: dict[str, str] = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return {
        "iossim": __version__,
        "python": platform.python_version(),
        "packages": packages,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": len(usable_cores()),
        "attempts": list(attempts),
    }


@public
def run_study(
    scenario: Scenario | Path | str,
    out: Path | str,
    *,
    workers: int | None = None,
    resume: bool = False,
    command: Sequence[str] = (),
    progress: Progress = ignore,
) -> StudyRun:
    """Run a study (``scenario``: a value, the name of one that ships, or a YAML file); ``out`` is the folder of its
    results (layout: :mod:`iossim.study.study_run`).

    ``workers`` is the number of processes, by default one per core; inside of ``joblib.parallel_config(backend=...)``
    that backend does the work, so many pieces at a time. ``resume`` continues an interrupted run; ``command`` is what
    the user typed, for the record. ``progress`` is called with the finished and total pieces of work.

    KeyboardInterrupt leaves a folder that can be resumed. Raises ScenarioError for a study that is not valid, and
    another subclass of IossimError for a folder in use or with other results, and for models or devices that cannot be
    read; a failure at one point is a row of its own.
    """
    if not isinstance(scenario, Scenario):
        scenario = read_scenario(scenario)
    points = points_of(scenario)
    if any(map(measures, scenario.cost_models)):
        if workers not in (None, 1):
            raise OptionError("a cost model of this study measures, which one worker must do alone; give `workers` 1")
        workers = 1  # concurrent measurements disturb each other
    crew = workers_for(workers)
    with RunDirectory(Path(out), scenario, points, resume) as directory:
        done = directory.done()
        begin_s, taken_over = perf_counter(), sum(point.key in done for point in points)
        attempt: dict[str, object] = {
            "command": list(command),
            "workers": crew.count,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "points_taken_over": taken_over,
        }
        attempts = directory.earlier_attempts()
        directory.write_environment(_environment([*attempts, attempt]))
        _Sweep(scenario, points, directory, done).run(crew, progress)
        # Equal points share rows, under their own labels.
        rows = [
            row.model_copy(update={"point": point.index, **point.labels})
            for point in points
            for row in done[point.key].rows
        ]
        cross = _cross(scenario, done)
        results = Results(scenario=scenario, rows=rows, cross=cross, answers=answer(scenario, rows, cross))
        search_s = {
            (point.index, name): seconds for point in points for name, seconds in done[point.key].search_s.items()
        }
        attempt |= {"points_done": len(points) - taken_over, "elapsed_s": round(perf_counter() - begin_s, 3)}
        directory.write_environment(_environment([*attempts, attempt]))
        directory.write_results(results, search_s)
    return read_run(out)


@dataclass(frozen=True)
class _Sweep:
    scenario: Scenario
    points: Sequence[Point]
    directory: RunDirectory
    #: Finished work by key, which grows.
    done: dict[str, Done]

    def run(self, crew: Workers, progress: Progress) -> None:
        """Do all work that is not done yet."""
        crossings = [(axis, own) for axis in self.scenario.cross_evaluate for own in families(self.points, axis)]
        keys = {point.key for point in self.points}
        keys |= {crossing(axis, point.index) for axis, family in crossings for point in family}
        finished = len(keys & self.done.keys())
        progress(finished, len(keys))
        work: list[tuple[Callable[..., tuple[Done, Texts]], Iterable[tuple[object, ...]]]] = [
            (evaluate_point, self._points()),
            (evaluate_cross, self._crossings(crossings)),
        ]
        for evaluate, tasks in work:
            for entry, texts in crew.each(evaluate, tasks):
                self.directory.add(entry, texts)
                self.done[entry.key] = entry
                finished += 1
                progress(finished, len(keys))

    def _points(self) -> Iterator[tuple[object, ...]]:
        """Unfinished points, each distinct one once; those of one network are consecutive."""
        left: dict[str, Point] = {}
        for point in self.points:
            if point.key not in self.done:
                left.setdefault(point.key, point)
        networks: dict[tuple[str, int, str], list[Point]] = {}
        for point in left.values():
            networks.setdefault((point.model.model_dump_json(), point.batch, point.dtype), []).append(point)
        for point in chain.from_iterable(networks.values()):
            yield point, self.scenario.schedulers, self.scenario.measures

    def _crossings(
        self, crossings: Sequence[tuple[CrossAxis, Sequence[Point]]]
    ) -> Iterator[tuple[CrossAxis, Point, list[Made]]]:
        """One task per point and axis, made on demand: it holds the schedules of a whole family."""
        text_of = self.directory.schedule_text
        for axis, family in crossings:
            for point in family:
                if crossing(axis, point.index) not in self.done:
                    rows = ((other.index, row) for other in family for row in self.done[other.key].rows)
                    yield axis, point, [(at, row.scheduler, text_of(row.schedule), row.reason) for at, row in rows]


def _cross(scenario: Scenario, done: Mapping[str, Done]) -> list[CrossPrice]:
    """Cross prices by axis, scheduler, the point where a schedule was made, and where it runs."""
    axes, schedulers = scenario.cross_evaluate, scenario.schedulers
    return sorted(
        (price for entry in done.values() for price in entry.prices if price.axis in axes),
        key=lambda price: (axes.index(price.axis), schedulers.index(price.scheduler), price.made_for, price.run_at),
    )
