"""One pipeline: what options are combined; networks rewritten for a scheduler, what is said of it, what is refused."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from command_line import run

import iossim
from iossim import api
from iossim.base.errors import IossimError, OptionError
from iossim.cli.options import with_flags
from iossim.cost.model import CostModel
from iossim.cost.random import RandomCostModel
from iossim.models.load import load
from iossim.models.random_graphs import seeded_network
from iossim.schedule.schedule import Schedule
from iossim.search.ios import STRATEGIES
from iossim.search.options import SearchOptions
from iossim.search.scheduler import schedule
from iossim.study.scenario import Scenario
from iossim.study.sweep import run_study
from iossim.tasks.task import Scheduled, Task
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.scheduled import Rewrite, RewriteSearch, Rewriting
from iossim.transforms.transform import Setting

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
    search = {"stages": options["stages"], "max_group_size": GROUP_SIZE, "max_groups": GROUPS}
    scenario = {
        "name": "one-point",
        **{"models": [MODEL], "devices": [DEVICE], "batch_sizes": [BATCH], "schedulers": ["ios-both"]},
        **{"engines": [options["engine"]], "searches": [search]},
        "rewrites": ["none" if rewrite is None else {"rules": rewrite, "graphs": 4}],
        "workspace": [options["workspace_limit"] or "none"],
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
    # A study neither measures within a budget, nor loads a network with its gradients, nor divides its batch.
    if options["budget"] is None and not options["training"] and options["micro_batch"] is None:
        assert decided(of_study(options, folder)) == expected


def changed(options: dict[str, Any]) -> int:
    """How many options are not plain."""
    return sum(value != OPTIONS[name][0] for name, value in options.items())


def sampled(count: int, *marks: pytest.MarkDecorator) -> list[Any]:
    """Combinations of so many options that are not plain, each under its values."""
    found = (options for options in COMBINATIONS if changed(options) == count)
    return [pytest.param(options, marks=marks, id="-".join(map(str, options.values()))) for options in found]


@pytest.mark.parametrize("options", [*sampled(0), *sampled(1), *sampled(2, pytest.mark.slow)])
def test_few_options(options: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
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


RULES = (*rule_set("metaflow"), *rule_set("simplify"))
FEW = RewriteBudget(graphs=6)


def rewrite(
    network: iossim.Network,
    prices: CostModel,
    rules: Sequence[Rule] = RULES,
    scheduler: str = "ios-both",
    search: RewriteSearch = "joint",
    alpha: float = 1.05,
) -> Rewriting:
    transform = Rewrite(tuple(rules), search, alpha, FEW, unproved=True)
    return transform.apply(network, Setting(prices, scheduler, SearchOptions()))


@pytest.mark.parametrize("scheduler", ["sequential", *STRATEGIES])
def test_no_scheduler_is_slower_by_it(scheduler: str) -> None:
    network, prices = seeded_network(1, units=6, blocks=2), RandomCostModel(seed=1)
    found = rewrite(network, prices, scheduler=scheduler)
    assert found.found.before_us == pytest.approx(schedule(network, prices, scheduler).latency_us)
    assert found.found.best.cost_us == pytest.approx(schedule(found.network, prices, scheduler).latency_us)
    assert found.found.best.cost_us <= found.found.before_us
    assert all(found.found.best.cost_us <= each.cost_us for each in found.first.values())
    assert list(found.first) == ([] if scheduler == "sequential" else ["backtracking", "saturation"])
    if found.found.best.steps:
        assert f"by {scheduler}" in found.sentence()


@pytest.mark.parametrize("search", ["backtracking", "saturation"])
def test_a_search_for_the_sum_of_operators_is_scheduled_then(search: RewriteSearch) -> None:
    network, prices = seeded_network(1, units=4, blocks=1), RandomCostModel(seed=1)
    found = rewrite(network, prices, search=search)
    assert found.search == search
    before_us, after_us = (
        {name: schedule(one, prices, name).latency_us for name in ("ios-both", "sequential")}
        for one in (network, found.network)
    )
    assert found.found.before_us == pytest.approx(before_us["ios-both"])
    assert found.found.best.cost_us == pytest.approx(after_us["ios-both"])
    assert after_us["sequential"] <= before_us["sequential"]
    assert rewrite(network, prices).found.best.cost_us <= found.found.best.cost_us


def test_what_came_of_it_is_said() -> None:
    network, prices = seeded_network(1, units=4, blocks=1), RandomCostModel(seed=1)
    idempotent = [rule for rule in RULES if rule.name == "relu-of-relu"]
    found = rewrite(network, prices, idempotent)
    assert found.network is network
    assert found.sentence() == "no rule matches: the graph is unchanged"
    larger = [rule for rule in RULES if rule.name == "enlarge-3x3-to-5x5"]
    found = rewrite(network, api.cost_model("simulator", "v100-sxm2"), larger, alpha=1.0)
    assert found.network is network
    assert found.sentence().startswith("no rewriting is faster: the graph is unchanged; ")


def test_mistakes_are_refused() -> None:
    network, prices = seeded_network(1, units=4, blocks=1), RandomCostModel(seed=1)
    with pytest.raises(OptionError, match="`rewrite` cannot price graphs for `scheduler` greedy; give one of"):
        rewrite(network, prices, scheduler="greedy")
    with pytest.raises(OptionError, match="`rewrite_search` 'join' is not known; did you mean 'joint'"):
        rewrite(network, prices, search="join")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"`alpha` 0.5 is not possible"):
        rewrite(network, prices, alpha=0.5)
    with pytest.raises(OptionError, match="`rewrite_budget` 'much' is not a budget"):
        iossim.optimize(network, None, cost_model=prices, rewrite="simplify", rewrite_budget="much")
    with pytest.raises(iossim.IossimError, match="unknown rules 'metaflo'; did you mean 'metaflow'"):
        api.task(network, None, cost_model=prices, rewrite="metaflo")
