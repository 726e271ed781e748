"""Saved schedules of rewritten networks carry the rules and the steps, and are read without any file of rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import iossim
from iossim import api
from iossim.base.errors import IossimError, OptionError
from iossim.cost.random import RandomCostModel
from iossim.ir.network import Network
from iossim.models.random_graphs import seeded_network
from iossim.transforms.replay import split_source
from iossim.transforms.rewriting.application import ReplayError, Step
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.graph_costs import SumOfOperators
from iossim.transforms.rewriting.parts import search_in_parts
from iossim.transforms.rewriting.rewritten import OPTION, rewritten_again, with_rewriting
from iossim.transforms.rewriting.rule_sets import rule_set

RULES = (*rule_set("metaflow"), *rule_set("simplify"))


def rewritten() -> tuple[Network, Network]:
    network = seeded_network(1, units=6, blocks=2)
    best = search_in_parts(network, RULES, SumOfOperators(RandomCostModel(1)), budget=RewriteBudget(graphs=12)).best
    return network, with_rewriting(best.network, best.steps, RULES)


def test_a_network_is_rewritten_again_from_its_source() -> None:
    network, made = rewritten()
    source, texts = split_source(made.source)
    assert source == network.source
    text = texts[OPTION]
    again = rewritten_again(network, text)
    assert (again.graph.nodes, again.graph.types) == (made.graph.nodes, made.graph.types)
    assert (again.units, again.blocks, again.source, again.reading) == (
        made.units,
        made.blocks,
        made.source,
        made.reading,
    )
    assert "The graph is rewritten by" in made.remarks[-1]
    applied = {step["rule"] for step in json.loads(text)["steps"]}
    assert all((rule.name in text) == (rule.name in applied) for rule in RULES)


def test_what_is_no_rewriting_is_refused() -> None:
    network, made = rewritten()
    text = dict(made.source.options)[OPTION]
    for broken in ("", "[]", "{}", '{"rules": 3, "steps": []}', text[:-5], text.replace('"nodes"', '"notes"')):
        with pytest.raises(IossimError):
            rewritten_again(network, broken)
    with pytest.raises(ReplayError, match="take the steps from the graph"):
        rewritten_again(seeded_network(3, units=6, blocks=1), text)
    steps = [Step.from_json(step) for step in json.loads(text)["steps"]]
    with pytest.raises(OptionError, match="rewritten already"):
        with_rewriting(made, steps, RULES)
    assert with_rewriting(network, (), RULES) is network


def test_a_schedule_of_a_rewritten_network_is_read_as_any_other(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    given = iossim.load("inception_v3", block=3)
    found = iossim.optimize(given, "v100-sxm2", rewrite="metaflow,simplify", rewrite_budget="12", unproved=True)
    found.save(path)
    assert api.simulate(path).latency_us == pytest.approx(found.latency_us)
    saved, network = api.read_schedule(path)
    assert network.graph.hash == saved.graph_hash != given.graph.hash
