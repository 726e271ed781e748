"""Random graphs x rules x places: what a graph computes is the same after a rule was applied, and all that is kept by hand of it true."""

from __future__ import annotations

import pytest
from place_rules import RULES, SHIPPED
from random_places import random_graph, same_outputs

from iossim.ir.graph import Graph
from iossim.proving.sampling import samples
from iossim.transforms.rewriting.application import Application, Step, apply, replay
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.rule import Rule


def check_graph(graph: Graph) -> None:
    """A graph is what ``Graph.create`` makes of its parts, and knows who reads what."""
    whole = Graph.create(
        {name: graph.types[name] for name in graph.inputs}, graph.outputs, graph.nodes, graph.constants
    )
    assert whole.nodes == graph.nodes
    assert dict(whole.types) == dict(graph.types)
    assert dict(whole.constants) == dict(graph.constants)
    assert whole.producer == graph.producer
    assert whole.consumers == graph.consumers
    assert whole.position == graph.position
    assert whole.of_kind == graph.of_kind
    assert whole.hash == graph.hash


def check_application(graph: Graph, applied: Application) -> None:
    names = {node.name: node for node in graph.nodes}
    after = {node.name: node for node in applied.graph.nodes}
    assert applied.graph.outputs == graph.outputs
    assert applied.gone == names.keys() - after.keys()
    assert applied.made >= {name for name, node in after.items() if names.get(name) != node}
    check_graph(applied.graph)


def check_matches(before: Graph, applied: Application, rule: Rule) -> None:
    """Matches of the graph before without what changed, and those that touch it, are the matches of the graph after."""
    after = find_matches(applied.graph, rule)
    touched = find_matches(applied.graph, rule, applied.made)
    assert touched == tuple(match for match in after if not applied.made.isdisjoint(match.nodes))
    changed = applied.made | applied.gone
    # Nodes may have changed places, and with them the order, and which of two that are the same comes first.
    kept = [sorted(match.nodes) for match in find_matches(before, rule) if changed.isdisjoint(match.nodes)]
    assert sorted(kept) == sorted(sorted(match.nodes) for match in after if changed.isdisjoint(match.nodes))


def walk(seed: int, rules: tuple[Rule, ...], steps: int) -> int:
    """Apply rules one after another to a random graph, check each step; how many there were."""
    chosen = [rules[(seed * 7 + place * 13) % len(rules)] for place in range(1 + seed % 2)]
    placed = [each for rule in chosen for each in samples(rule, 1, seed)]
    if not placed:
        return 0
    graph = first = random_graph(placed, seed)
    taken: list[Step] = []
    for turn in range(steps):
        matches = [match for rule in rules for match in find_matches(graph, rule)]
        if turn == 0:
            matches = [match for match in matches if match.rule in chosen] or matches
        applications = (apply(graph, matches[(seed + turn * 31 + skip) % len(matches)]) for skip in range(len(matches)))
        applied = next((each for each in applications if each is not None), None)
        if applied is None:
            break
        check_application(graph, applied)
        check_matches(graph, applied, rules[(seed + turn) % len(rules)])
        assert same_outputs(first, applied.graph, seed), f"seed {seed}, {[step.rule for step in taken]}, {applied.step}"
        graph = applied.graph
        taken.append(Step.from_json(applied.step.to_json()))
    assert replay(first, taken, {rule.name: rule for rule in rules}).hash == graph.hash
    return len(taken)


def test_random_graphs_compute_the_same_after_rules() -> None:
    taken = [walk(seed, SHIPPED if seed % 2 else RULES, 3) for seed in range(120)]
    assert sum(taken) > 200


@pytest.mark.slow
def test_two_thousand_random_graphs() -> None:
    """Each shipped rule is the first to be tried in about ten of them."""
    taken = [walk(seed, SHIPPED if seed % 2 else RULES, 2) for seed in range(120, 2_120)]
    assert sum(map(bool, taken)) > 1_800
