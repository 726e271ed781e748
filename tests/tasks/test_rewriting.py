"""Networks rewritten for a scheduler: what is found, what is said of it, what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import iossim
from iossim import api
from iossim.base.errors import OptionError
from iossim.cost.model import CostModel
from iossim.cost.random import RandomCostModel
from iossim.models.random_graphs import seeded_network
from iossim.search.ios import STRATEGIES
from iossim.search.options import SearchOptions
from iossim.search.scheduler import schedule
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.scheduled import Rewrite, RewriteSearch, Rewriting
from iossim.transforms.transform import Setting

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
    assert found.before_us == pytest.approx(schedule(network, prices, scheduler).latency_us)
    assert found.after_us == pytest.approx(schedule(found.network, prices, scheduler).latency_us)
    assert found.after_us <= found.before_us
    assert all(found.after_us <= each.cost_us for each in found.first.values())
    assert list(found.first) == ([] if scheduler == "sequential" else ["backtracking", "saturation"])
    if found.steps:
        assert f"by {scheduler}" in found.sentence()


@pytest.mark.parametrize("search", ["backtracking", "saturation"])
def test_a_search_for_the_sum_of_operators_is_scheduled_then(search: RewriteSearch) -> None:
    network, prices = seeded_network(1, units=4, blocks=1), RandomCostModel(seed=1)
    found = rewrite(network, prices, search=search)
    assert found.search == search
    assert found.before_us == pytest.approx(schedule(network, prices, "ios-both").latency_us)
    assert found.after_us == pytest.approx(schedule(found.network, prices, "ios-both").latency_us)
    assert (
        schedule(found.network, prices, "sequential").latency_us <= schedule(network, prices, "sequential").latency_us
    )
    joint = rewrite(network, prices)
    assert joint.after_us <= found.after_us


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
