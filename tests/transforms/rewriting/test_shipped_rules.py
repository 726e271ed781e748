"""The rules that ship: each computes the same on both sides at a few places, of which verification tries many more; and is trusted."""

from __future__ import annotations

import pytest
from place_rules import SHIPPED

import iossim
from iossim.proving.refute import trials
from iossim.search.options import SearchOptions
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_sets import DEFAULT_RULES, RULE_SETS, rule_set, rules_named
from iossim.transforms.rewriting.scheduled import Rewrite
from iossim.transforms.rewriting.verdict import trusted
from iossim.transforms.transform import Setting


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.name) for rule in SHIPPED])
def test_both_sides_compute_the_same(rule: Rule) -> None:
    tried = [trial.counterexample for trial in trials(rule, 8, seed=7)]
    assert None in tried
    assert all(each is None or each.element is None for each in tried), tried


def test_metaflow_has_its_22() -> None:
    origins = [rule.origin for rule in rule_set("metaflow")]
    kinds = ("costs at first", "fusion", "algebraic identity")
    assert [sum(origin.startswith(f"MetaFlow, {kind}") for origin in origins) for kind in kinds] == [8, 10, 4]


def test_no_rule_ships_twice() -> None:
    rules = [rule for name in RULE_SETS.own() for rule in rule_set(name)]
    assert len({rule.hash for rule in rules}) == len(rules)


def test_simplifying_adds_no_op() -> None:
    assert all(len(rule.target) <= len(rule.source) for rule in rule_set("simplify"))


@pytest.mark.parametrize("name", ["metaflow", "simplify", "layouts"])
def test_rules_that_ship_are_trusted_as_they_are_written(name: str) -> None:
    """After a change of rules, axioms or prover: ``iossim rules verify NAME --anew --write iossim/transforms/rewriting/rules/NAME.json``."""
    used, without_proof = trusted(rule_set(name), False)
    assert not without_proof
    assert [rule.conditions for rule in used] == [rule.conditions for rule in rule_set(name)]


def test_queries_keys_and_values_become_one_product_with_its_bias() -> None:
    network = iossim.load("bert_layer", dtype="bf16")
    prices = iossim.cost_model("simulator", device="h100-sxm", precision="bf16", engine="graph")
    rewrite = Rewrite(rules_named(DEFAULT_RULES), budget=RewriteBudget(graphs=20))
    made = rewrite.apply(network, Setting(prices, "ios-both", SearchOptions()))
    graph = made.network.graph
    assert (1, 128, 3 * 768) in [graph.types[node.outputs[0]].shape for node in graph.of_kind["matmul"]]
    assert made.found.best.cost_us < 0.95 * made.found.before_us, "the split of one product is in place"
