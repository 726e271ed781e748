"""Equality saturation: all rules applied to all places at once, nothing taken away, and the cheapest graph taken out at the end (Y. Yang
et al., Equality saturation for tensor graph superoptimization, MLSys 2021: TENSAT).

The order of substitutions does not matter, and none has to pay at first. What it minimises has to be a sum over ops, so that the
schedule is no such cost; the graph found under the sum is a seed for the search by schedules.

Rules of several roots (two convolutions of one input) match as any other, their ops joined by what they share. Their
results would join with their own operands again without end; TENSAT limits the rounds in which they apply. Here two ops of a
match that do not read each other must not replace results of the same op, since no graph has both, and rounds and e-nodes are limited for all rules.

An e-graph keeps no steps. They are found again by a search of graphs, guided by how far the ops of each are from those of the graph
that was taken out; only what has steps is returned as found, since only that can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from iossim.errors import GraphError
from iossim.ir.network import Network
from iossim.rewriting.backtracking import Candidate, Found, RewriteProgress, Search, cheaper, ignore
from iossim.rewriting.egraph import EGraph, Origin
from iossim.rewriting.extraction import Extraction, extract_cheapest, extract_greedily, extracted_graph
from iossim.rewriting.graph_costs import SumOfOperators
from iossim.rewriting.matching import Match, find_matches
from iossim.rewriting.operator_prices import operator_prices
from iossim.rewriting.replacement import Target
from iossim.rewriting.rewritten import rewritten_network
from iossim.rewriting.rule import Rule, tensor_of


@dataclass(frozen=True, slots=True)
class SaturationLimits:
    """``nodes``: e-nodes after which no more are made. ``seconds``: of the solver. ``graphs``: expanded to find the steps again."""

    nodes: int = 2000
    rounds: int = 8
    seconds: float = 20.0
    graphs: int = 200


@dataclass(frozen=True, eq=False)
class Saturated:
    """What saturation found.

    ``found.best`` has its steps; ``extracted`` is the best graph that was taken out, at its cost in us as a network. ``derived`` tells whether
    they are the same. ``estimated_us`` and ``at_least_us`` are the cost of the extraction and its bound by the prices of pairs
    (:mod:`iossim.rewriting.extraction`). ``saturated``: no rule makes anything new.
    """

    found: Found
    extracted: Network
    extracted_us: float
    derived: bool
    estimated_us: float
    at_least_us: float
    nodes: int
    rounds: int
    saturated: bool

    @property
    def gap(self) -> float:
        """How much of the estimate the solver could not rule out; 0 where it is the least."""
        return max(0.0, 1 - self.at_least_us / self.estimated_us) if self.estimated_us > 0 else 0.0


def saturate(
    network: Network,
    rules: Sequence[Rule],
    cost: SumOfOperators,
    limits: SaturationLimits | None = None,
    progress: RewriteProgress = ignore,
) -> Saturated:
    """The cheapest network that the rules make of this one, as far as the limits reach; never worse than it is."""
    limits = limits or SaturationLimits()
    before_us = cost.us(network)
    egraph = EGraph(network.graph)
    rounds, saturated, matched = grow(egraph, rules, limits)
    outputs = [egraph.find(egraph.class_of[name]) for name in network.graph.outputs]
    prices = operator_prices(egraph, network, cost)
    cheapest = extract_cheapest(egraph, outputs, prices, limits.seconds)
    estimate = cheapest
    extracted = Candidate(network, (), before_us)
    best_of: Extraction | None = None
    for extraction in (cheapest, extract_greedily(egraph, outputs, prices)):
        if extraction is not None:
            estimate = estimate or extraction
            graph = extracted_graph(network.graph, egraph, extraction.makers)
            made = rewritten_network(network, graph)
            better = cheaper(extracted, Candidate(made, (), cost.us(made)))
            if better is not extracted:
                extracted, best_of = better, extraction
    assert estimate is not None
    best = Candidate(network, (), before_us)
    seen = expanded = 0
    if best_of is not None:
        chosen = frozenset(node.name for node in best_of.makers.values())
        work = Search(network, rules, _Distance(egraph, _levels(egraph, chosen)), alpha=inf)
        while work.best.cost_us > 0 and not work.complete and work.expanded < limits.graphs:
            work.expand()
            progress(work.seen, before_us)
        near = work.best
        best = cheaper(best, Candidate(near.network, near.steps, cost.us(near.network)))
        seen, expanded = work.seen, work.expanded
    derived = best.cost_us <= extracted.cost_us * (1 + 1e-9)
    found = Found(best, before_us, 1 + seen, expanded, saturated and derived, False, matched)
    return Saturated(
        found,
        extracted.network,
        extracted.cost_us,
        derived,
        estimate.cost_us,
        estimate.at_least_us,
        len(egraph.nodes),
        rounds,
        saturated,
    )


def grow(egraph: EGraph, rules: Sequence[Rule], limits: SaturationLimits) -> tuple[int, bool, bool]:
    """Apply rules in rounds. Returns the rounds, whether nothing is left to apply, and whether any rule matched."""
    touched: frozenset[str] | None = None
    matched = False
    for number in range(limits.rounds):
        matches = [
            match for rule in rules for match in find_matches(egraph, rule, touched) if _may_join(egraph, match)
        ]
        matched = matched or bool(matches)
        targets = []
        for match in matches:
            try:
                targets.append((match, Target(egraph, match)))
            except GraphError:
                continue
        for match, target in targets:
            if len(egraph.origins) >= limits.nodes:
                egraph.rebuild()
                return number + 1, False, matched
            _add(egraph, match, target)
        touched = egraph.rebuild()
        if not touched:
            return number + 1, True, matched
    return limits.rounds, False, matched


def _add(egraph: EGraph, match: Match, target: Target) -> None:
    """The target of a match, beside what it replaces."""
    rule = match.rule
    roots = frozenset(root for index in _roots(rule) for root in egraph.origins[match.nodes[index]].roots)
    classes = {name: egraph.add_constant(constant) for name, constant in target.constants.items()}
    pairs = [(str(match.tensors[source]), target.value(by)) for source, by in rule.outputs]
    if any(target.type(new) != egraph.types[old] for old, new in pairs):
        return
    for node in target.nodes:
        named = egraph.origins[node.name.partition("~")[0]].node
        read = [classes.get(value, value) for value in node.inputs]
        try:
            made = egraph.add(node.op, read, Origin(named, roots, match.nodes))
        except GraphError:
            return
        classes |= zip(node.outputs, made, strict=True)
    for old, new in pairs:
        egraph.union(old, classes.get(new, new))


def _may_join(egraph: EGraph, match: Match) -> bool:
    """Whether ops of the match that do not read each other replace results of different ops."""
    roots = [egraph.origins[name].roots for name in match.nodes]
    return all(roots[one].isdisjoint(roots[other]) for one, other in _apart(match.rule))


@lru_cache(maxsize=4096)
def _apart(rule: Rule) -> tuple[tuple[int, int], ...]:
    """The pairs of source ops of which neither is computed from the other."""
    made_by = {output: index for index, op in enumerate(rule.source) for output in op.outputs}
    before: list[set[int]] = []
    for op in rule.source:
        read = {made_by[name] for name in map(tensor_of, op.inputs) if name in made_by}
        before.append(read.union(*(before[index] for index in read)))
    return tuple((one, other) for other in range(len(before)) for one in range(other) if one not in before[other])


@lru_cache(maxsize=4096)
def _roots(rule: Rule) -> tuple[int, ...]:
    """The source ops whose results are replaced."""
    replaced = {source for source, _ in rule.outputs}
    return tuple(index for index, op in enumerate(rule.source) if not replaced.isdisjoint(op.outputs))


def _levels(egraph: EGraph, chosen: frozenset[str]) -> dict[str, int]:
    """How many applications of rules are between each e-node and the chosen ones, for those that lead there."""
    levels = dict.fromkeys(sorted(chosen), 0)
    pending = sorted(chosen)
    for name in pending:
        for source in egraph.origins[name].made_of:
            if source not in levels:
                levels[source] = levels[name] + 1
                pending.append(source)
    return levels


@dataclass(frozen=True, eq=False)
class _Distance:
    """No cost, but what guides the search for steps: how far the ops of a network are from the chosen; infinite with one that is not
    in the e-graph."""

    egraph: EGraph
    levels: dict[str, int]

    def us(self, network: Network) -> float:
        nodes = self.egraph.nodes_of(network.graph)
        if nodes is None:
            return inf
        far = 1 + max(self.levels.values())
        return float(sum(self.levels.get(name, far) for name in nodes))

    def at_least_us(self, network: Network) -> float:
        return self.us(network)
