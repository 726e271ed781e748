"""One pipeline: what options are combined, API, command line and studies give the same schedule, or refuse with the same words."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from command_line import run

from iossim import api
from iossim.base.errors import IossimError
from iossim.cli.options import with_flags
from iossim.models.load import load
from iossim.schedule.schedule import Schedule
from iossim.study.scenario import Scenario
from iossim.study.sweep import run_study
from iossim.tasks.task import Scheduled, Task

#: For each option its values, the plain one first.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "rewrite": (None, "simplify"),
    "micro_batch": (None, 2, "auto"),
    "training": (False, True),
    "workspace_limit": (None, "64MiB"),
    "budget": (None, "20"),
    "engine": ("paper", "graph"),
    "stages": ("general", "paper"),
}
COMBINATIONS = [dict(zip(OPTIONS, values, strict=True)) for values in product(*OPTIONS.values())]
MODEL, DEVICE, BATCH = "ios_sample", "v100-sxm2", 2
#: Groups of at most so many units, and at most so many of them: a divided network with its gradients is a wide block.
GROUP_SIZE, GROUPS = 1, 2


def of_api(options: dict[str, Any]) -> Schedule | str:
    try:
        network = load(MODEL, batch=BATCH, training=options["training"])
        return api.optimize(
            network,
            DEVICE,
            engine=options["engine"],
            options=api.search_options(options["stages"], GROUP_SIZE, GROUPS, options["workspace_limit"]),
            budget=options["budget"],
            rewrite=options["rewrite"],
            rewrite_budget="4",
            micro_batch=options["micro_batch"],
        )
    except IossimError as error:
        return with_flags(str(error))


def of_command_line(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> Schedule | str:
    words = f"optimize {MODEL} -d {DEVICE} -b {BATCH} -r {GROUP_SIZE} -s {GROUPS} --json".split()
    words += ["--rewrite-budget", "4"] * (options["rewrite"] is not None)
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)] if value not in (None, False) else []
    capsys.readouterr()
    code, printed = run(words), capsys.readouterr()
    if code:
        assert code == 2, printed.err
        return printed.err.removeprefix("error: ").removesuffix("\n")
    return Schedule.model_validate_json(printed.out)


def of_study(options: dict[str, Any], folder: Path) -> Schedule | str:
    rewrite = options["rewrite"]
    scenario = {
        "name": "one-point",
        "models": [MODEL],
        "devices": [DEVICE],
        "batch_sizes": [BATCH],
        "engines": [options["engine"]],
        "searches": [{"stages": options["stages"], "max_group_size": GROUP_SIZE, "max_groups": GROUPS}],
        "rewrites": ["none" if rewrite is None else {"rules": rewrite, "graphs": 4}],
        "micro_batches": [options["micro_batch"] or 1],
        "workspace": [options["workspace_limit"] or "none"],
        "schedulers": ["ios-both"],
    }
    (row,) = run_study(Scenario.model_validate(scenario), folder, workers=1).results.rows
    return Schedule.read(folder / row.schedule) if row.schedule else row.reason


def decided(found: Schedule | str) -> Any:
    """What a schedule decides, and what it takes; a refusal as it is."""
    if isinstance(found, str):
        return found
    return json.dumps([stage.model_dump(mode="json") for stage in found.stages]), found.latency_us


def check(options: dict[str, Any], capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    expected = decided(of_api(options))
    assert decided(of_command_line(options, capsys)) == expected
    # A study neither measures within a budget nor loads a network with its gradients.
    if options["budget"] is None and not options["training"]:
        assert decided(of_study(options, folder)) == expected


def changed(options: dict[str, Any]) -> int:
    """How many options are not plain."""
    return sum(value != OPTIONS[name][0] for name, value in options.items())


def sample(*counts: int) -> pytest.MarkDecorator:
    """Combinations of so many options that are not plain, each under its values."""
    names = {"-".join(map(str, options.values())): options for options in COMBINATIONS if changed(options) in counts}
    return pytest.mark.parametrize("options", names.values(), ids=names)


@sample(0, 1)
def test_each_option(options: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    check(options, capsys, tmp_path / "run")


@pytest.mark.slow
@sample(2)
def test_pairs_of_options(options: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    check(options, capsys, tmp_path / "run")


@pytest.fixture
def each_task_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that equals one that has run gives what that gave: API and command line then search once, if they ask the same."""
    known: dict[str, Scheduled] = {}
    run_task = Task.run

    def remembered(task: Task, *reports: Any) -> Scheduled:
        # The command line gives the text of a number; the device is asked for only where the prices come from measurements.
        changes = str(task.transforms).replace("'", "")
        key = f"{task.network.graph.hash} {task.network.units} {task.prices.identity} {task.scheduler} {task.options} {changes}"
        if task.budget is not None:
            return run_task(task, *reports)
        if key not in known:
            known[key] = run_task(task, *reports)
        return known[key]

    monkeypatch.setattr(Task, "run", remembered)


@pytest.mark.slow
@pytest.mark.usefixtures("each_task_once")
@pytest.mark.parametrize("micro_batch", OPTIONS["micro_batch"])
@pytest.mark.parametrize("training", OPTIONS["training"])
@pytest.mark.parametrize("rewrite", OPTIONS["rewrite"])
def test_every_combination(
    rewrite: str | None,
    training: bool,
    micro_batch: int | str | None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """One test for each choice of the options that cost most, so that workers share them."""
    chosen = {"rewrite": rewrite, "training": training, "micro_batch": micro_batch}
    for number, options in enumerate(COMBINATIONS):
        if chosen.items() <= options.items() and changed(options) > 2:
            check(options, capsys, tmp_path / str(number))
