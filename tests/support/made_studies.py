"""Studies for tests: small enough to run, or made up for reports: rows of any number of points, without a search."""

from collections.abc import Iterable
from itertools import permutations, product
from pathlib import Path
from typing import Any

from iossim.study.axes import AXES, Device, Model, Search
from iossim.study.question import Question, in_words
from iossim.study.run_directory import RESULTS, TABLE
from iossim.study.scenario import Published, Scenario
from iossim.study.study_kind import label_of
from iossim.study.study_run import SCHEDULES, Answer, CrossPrice, Results, Row, StudyRun

SCHEDULERS = ("sequential", "greedy", "ios-both")
#: How fast each is, relative to sequential at batch 1.
_WORTH = {"sequential": 1.0, "greedy": 1.12, "ios-both": 1.4}


def small_study(
    models: Iterable[str | Model] = ("ios_sample",), crossed: Iterable[str] = (), **fields: Any
) -> Scenario:
    """Two devices and two batch sizes of a network, all schedulers, which are priced across the axes ``crossed``."""
    given: dict[str, Any] = {
        "name": "small",
        "models": [Model(model=each) if isinstance(each, str) else each for each in models],
        "devices": [Device(device="v100-sxm2"), Device(device="t4")],
        "batch_sizes": [1, 8],
        "questions": [{"smallest": "device", "having": {"latency_ms": {"at_most": 5}}}],
    }
    return Scenario(**_crossed({**given, **fields}, crossed))


def _crossed(given: dict[str, Any], axes: Iterable[str]) -> dict[str, Any]:
    return given | {"questions": [*given.get("questions", []), *({"specialised_for": axis} for axis in axes)]}


def files_of(folder: Path) -> dict[str, bytes]:
    """By name the files that equal studies have in common."""
    names = [RESULTS, TABLE, *sorted(f"{SCHEDULES}/{path.name}" for path in (folder / SCHEDULES).iterdir())]
    return {name: (folder / name).read_bytes() for name in names}


def made_scenario(crossed: Iterable[str] = (), **changes: Any) -> Scenario:
    """Two models on one device at one batch size, unless changed; priced across the axes ``crossed``."""
    fields: dict[str, Any] = {
        "name": "made",
        "title": "A made-up study",
        "description": "What would be, if <this> & that?",
        "models": [Model(model="inception_v3"), Model(model="squeezenet")],
        "devices": [Device(device="v100-sxm2")],
        "schedulers": list(SCHEDULERS),
    }
    return Scenario(**_crossed({**fields, **changes}, crossed))


def made_run(folder: Path, scenario: Scenario | None = None, failed: int | None = None, **row_changes: Any) -> StudyRun:
    """A run of all points of a grid; of point ``failed`` the last scheduler failed. ``row_changes`` go to every row."""
    scenario = scenario or made_scenario()
    grid = product(*(getattr(scenario, axis.field) for axis in AXES.values()))
    rows: list[Row] = []
    for point, values in enumerate(grid):
        for scheduler in scenario.schedulers:
            is_failed = point == failed and scheduler == scenario.schedulers[-1]
            rows.append(_row(point, values, scheduler, is_failed).model_copy(update=row_changes))
    cross = [price for axis in scenario.cross_evaluate for price in _cross(axis, rows)]
    answers = [
        Answer(question=in_words(each), answer=f"The answer to: {in_words(each)}", rows=[0])
        for each in scenario.questions
    ]
    answers += [
        Answer(question=each.says, answer="Here it is 1.4.", holds=True, source=each.source, rows=[0, 1])
        for each in scenario.published
        if each.claims
    ]
    search_s = {(row.point, row.scheduler): 0.01 * (1 + row.point) for row in rows}
    environment = {"iossim": "0", "attempts": [{"command": ["iossim", "study", "run", "made"], "workers": 2}]}
    return StudyRun(folder, Results(scenario=scenario, rows=rows, cross=cross, answers=answers), environment, search_s)


def published(says: str = "It is 1.5 times as fast.", is_claimed: bool = True) -> Published:
    claim = Question(metric="speedup", of="ios-both", at_least=1.3)
    return Published(says=says, source="a thesis, figure 1", claims=[claim] if is_claimed else [])


def searches() -> list[Search]:
    """Pruned four ways, and not at all."""
    return [*(Search(max_group_size=r, max_groups=s) for r in (1, 3) for s in (3, 8)), Search()]


def _row(point: int, values: tuple[Any, ...], scheduler: str, is_failed: bool) -> Row:
    labels: dict[str, Any] = dict(zip(AXES, map(label_of, values), strict=True))
    labels |= {"point": point, "scheduler": scheduler}
    batch = labels["batch"]
    if is_failed:
        return Row(**labels, status="failed", reason="the model is too large for it; take a smaller one")
    worth = 1 + (_WORTH.get(scheduler, 1.2) - 1) / batch**0.3
    latency_ms = (1 + point % 7) * batch**0.8 / worth
    return Row(
        **labels,
        latency_ms=latency_ms,
        low_ms=0.9 * latency_ms,
        high_ms=1.15 * latency_ms,
        throughput_per_s=1e3 * batch / latency_ms,
        speedup=worth,
        ties=["greedy"] if scheduler == "ios-both" and batch > 16 else [],
        stages=10,
        streams=2,
        time_by_kind_us={"conv": 800 * latency_ms, "concat": 150 * latency_ms, "boundaries": 50 * latency_ms},
    )


def _cross(axis: str, rows: list[Row]) -> list[CrossPrice]:
    """Prices between points that differ in one axis: 7 % slower than what was made there, a tie for every other."""
    others = [name for name in AXES if name != axis]
    families: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        families.setdefault(tuple(getattr(row, name) for name in (*others, "scheduler")), []).append(row)
    return [
        CrossPrice.model_validate(
            {
                "axis": axis,
                "scheduler": run_at.scheduler,
                "made_for": made_for.point,
                "run_at": run_at.point,
                "latency_ms": 1.07 * (run_at.latency_ms or 1.0),
                "tie": (made_for.point + run_at.point) % 2 == 0,
            }
        )
        for family in families.values()
        for made_for, run_at in permutations(family, 2)
    ]
