"""Equality saturation: all rules are applied to all places at once, nothing is removed, and the cheapest graph is
extracted at the end (Y. Yang et al., Equality saturation for tensor graph superoptimization, MLSys 2021: TENSAT).

The order of substitutions does not matter, and none has to pay at first. The cost has to be a sum over ops, which that
of a schedule is not; the graph found under the sum is a seed for the search by schedules.

Rules of several roots (two convolutions of one input) match as any other, their ops joined by what they share. Their
results would join with their own operands again without end; TENSAT limits the rounds in which they apply. Here two
ops of a match that do not read each other must not replace results of the same op, since no graph has both, and
rounds and e-nodes are limited for all rules.

An e-graph keeps no steps. A search of graphs recovers them, guided by the distance of the ops of each from those of the
extracted graph; only a graph with steps is returned as found, since only that can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from time import perf_counter

from scipy.cluster.hierarchy import DisjointSet

from iossim.base.errors import GraphError, ignore
from iossim.ir.network import Network
from iossim.transforms.choices import GraphCost
from iossim.transforms.rewriting.application import Target
from iossim.transforms.rewriting.backtracking import (
    RELATIVE_TOLERANCE,
    Candidate,
    Found,
    RewriteProgress,
    Search,
    cheaper,
)
from iossim.transforms.rewriting.egraph import EGraph, Origin, operator_prices
from iossim.transforms.rewriting.extraction import Extraction, extract_cheapest, extract_greedily, extracted_graph
from iossim.transforms.rewriting.graph_costs import SumOfOperators
from iossim.transforms.rewriting.matching import Match, find_matches
from iossim.transforms.rewriting.rewritten import policy_like, rewritten_network
from iossim.transforms.rewriting.rule import Rule, tensor_of


@dataclass(frozen=True, slots=True)
class SaturationLimits:
    """Limits on e-nodes (``nodes``), rounds of rules, ``branches`` of the solver, and ``graphs`` expanded to recover
    the steps at one place; after ``seconds`` no further e-graph is begun, and the solver stops.
    """

    nodes: int = 2000
    rounds: int = 8
    branches: int = 1000
    graphs: int = 200
    seconds: float = inf


@dataclass(frozen=True, eq=False)
class Saturated:
    """Result of saturation.

    ``found.best`` has its steps; ``extracted`` is the best extracted graph, at its cost as a network.
    ``extraction`` is that of the last e-graph, which has ``nodes`` e-nodes; ``rounds`` are those of all e-graphs.
    ``saturated``: no rule makes anything new in the last one.
    """

    found: Found
    extracted: Candidate
    extraction: Extraction
    nodes: int
    rounds: int
    saturated: bool


def saturate(
    network: Network,
    rules: Sequence[Rule],
    cost: SumOfOperators,
    limits: SaturationLimits | None = None,
    progress: RewriteProgress = ignore,
) -> Saturated:
    """The cheapest network that the rules make of this one, as far as the limits reach; never worse than it is.

    If a limit ended it, it begins again with its result, as long as that becomes cheaper. KeyboardInterrupt ends it
    with the result of the last e-graph that was finished.
    """
    limits = limits or SaturationLimits()
    started = perf_counter()
    begun = Candidate(network, (), cost.us(network))
    nothing = Found(begun, begun.cost_us, 1, 0, False, False, False)
    result = Saturated(nothing, begun, Extraction({}, begun.cost_us, 0.0), 0, 0, False)
    while not result.saturated:
        best = result.found.best
        left = limits.seconds - (perf_counter() - started)
        if left <= 0:
            break
        try:
            result = _saturated_again(network, result, rules, cost, replace(limits, seconds=left), progress)
        except KeyboardInterrupt:
            return replace(result, found=replace(result.found, complete=False, interrupted=True))
        if cheaper(best, result.found.best) is best:
            break
    return result


def _saturated_again(
    original: Network,
    before: Saturated,
    rules: Sequence[Rule],
    cost: SumOfOperators,
    limits: SaturationLimits,
    progress: RewriteProgress,
) -> Saturated:
    """The result after one more e-graph, of what was found before; steps are from the original."""
    begun, known = before.found.best, before.found
    graph = begun.network.graph
    egraph = EGraph(graph)
    rounds, saturated, matched = grow(egraph, rules, limits, lambda: progress(1, begun.cost_us))
    outputs = [egraph.find(egraph.class_of[name]) for name in graph.outputs]
    prices = operator_prices(egraph, begun.network, cost, policy_like(original))
    greedy = extract_greedily(egraph, outputs, prices)
    cheapest = extract_cheapest(egraph, outputs, prices, limits.branches, limits.seconds)
    extracted, makers = begun, None
    for extraction in (cheapest, greedy):
        if extraction is not None:
            made = rewritten_network(original, extracted_graph(graph, egraph, extraction.makers))
            candidate = Candidate(made, (), cost.us(made))
            if cheaper(extracted, candidate) is candidate:
                extracted, makers = candidate, extraction.makers
    best, seen, expanded = begun, 1, 0
    if makers is not None:
        chosen = frozenset(node.name for node in makers.values())
        near, seen, expanded = _derived(
            begun.network, rules, _Distance(egraph, _levels(egraph, chosen)), limits, progress
        )
        made = rewritten_network(original, near.network.graph)
        best = cheaper(begun, Candidate(made, (*begun.steps, *near.steps), cost.us(made)))
    derived = best.cost_us <= extracted.cost_us * (1 + RELATIVE_TOLERANCE)
    complete = saturated and derived and not before.rounds
    seen, expanded, matched = known.seen + seen - 1, known.expanded + expanded, known.matched or matched
    found = Found(best, known.before_us, seen, expanded, complete, False, matched)
    extracted = min(extracted, before.extracted, key=lambda each: each.cost_us)
    size, rounds = len(egraph.graph.nodes), before.rounds + rounds
    return Saturated(found, extracted, cheapest or greedy, size, rounds, saturated)


def grow(
    egraph: EGraph, rules: Sequence[Rule], limits: SaturationLimits, tell: Callable[[], None] = lambda: None
) -> tuple[int, bool, bool]:
    """Apply rules in rounds. Returns the rounds, whether nothing is left to apply, and whether any rule matched;
    ``tell`` is called before each round.

    Once there are as many e-nodes as the limit, only rules go on whose target has fewer ops than their source, up to
    twice as many.
    """
    shrinking = [rule for rule in rules if len(rule.target) < len(rule.source)]
    touched: frozenset[str] | None = None
    matched = full = False
    for number in range(limits.rounds):
        tell()
        tried = shrinking if full else rules
        matches = [match for rule in tried for match in find_matches(egraph.graph, rule, touched)]
        matched = matched or bool(matches)
        for match, target in list(_targets(egraph, matches)):
            size = len(egraph.origins)
            full = full or size >= limits.nodes
            if size < limits.nodes or (match.rule in shrinking and size < 2 * limits.nodes):
                _add(egraph, match, target)
        touched = egraph.rebuild()
        if not touched:
            return number + 1, not full, matched
    return limits.rounds, False, matched


def _targets(egraph: EGraph, matches: Iterable[Match]) -> Iterator[tuple[Match, Target]]:
    """Replacements of matches that are valid and that a graph may contain: ops of a match that do not read each other
    replace results of different ops.
    """
    for match in matches:
        roots = [egraph.origins[name].roots for name in match.nodes]
        if all(roots[one].isdisjoint(roots[other]) for one, other in _apart(match.rule)):
            try:
                yield match, Target(egraph.graph, match)
            except GraphError:
                continue


def _add(egraph: EGraph, match: Match, target: Target) -> None:
    """Add the target of a match beside what it replaces."""
    rule = match.rule
    replaced = {source for source, _ in rule.outputs}
    sources = zip(rule.source, match.nodes, strict=True)
    makers = [name for op, name in sources if not replaced.isdisjoint(op.outputs)]
    roots = frozenset(root for name in makers for root in egraph.origins[name].roots)
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


@lru_cache(maxsize=4096)
def _apart(rule: Rule) -> tuple[tuple[int, int], ...]:
    """The pairs of source ops of which neither is computed from the other."""
    made_by = {output: index for index, op in enumerate(rule.source) for output in op.outputs}
    before: list[set[int]] = []
    for op in rule.source:
        read = {made_by[name] for name in map(tensor_of, op.inputs) if name in made_by}
        before.append(read.union(*(before[index] for index in read)))
    return tuple((one, other) for other in range(len(before)) for one in range(other) if one not in before[other])


def _derived(
    network: Network, rules: Sequence[Rule], distance: _Distance, limits: SaturationLimits, progress: RewriteProgress
) -> tuple[Candidate, int, int]:
    """The nearest network that was found, with its steps; graphs seen and expanded. Connected ops that are not chosen
    are replaced, one such place after another, since steps at one say nothing about the others.
    """
    near = Candidate(network, (), distance.us(network))
    seen, expanded = 1, 0
    for place in _places(network, distance):
        there = frozenset(place)
        goal = near.cost_us - sum(place.values())
        work = Search(near.network, rules, distance, alpha=inf, focus=there)
        while work.best.cost_us > goal and not work.complete and work.expanded < limits.graphs:
            work.expand()
            expanded += 1
            progress(seen + work.seen, near.cost_us)
        seen += work.seen - 1
        near = replace(work.best, steps=(*near.steps, *work.best.steps))
    return near, seen, expanded


def _places(network: Network, distance: _Distance) -> list[dict[str, float]]:
    """Nodes that are not chosen, each with its distance, in connected groups."""
    graph = network.graph
    far = {name: level for name, level in distance.of_nodes(network).items() if level > 0}
    together = DisjointSet(far)
    for name in far:
        for value in graph.nodes[graph.position[name]].inputs:
            if value in graph.producer and graph.producer[value].name in far:
                together.merge(name, graph.producer[value].name)
    places: dict[str, dict[str, float]] = {}
    for name, level in far.items():
        places.setdefault(together[name], {})[name] = level
    return list(places.values())


def _levels(egraph: EGraph, chosen: frozenset[str]) -> dict[str, int]:
    """Number of rule applications between each e-node and the chosen ones, for those that lead there."""
    levels = dict.fromkeys(sorted(chosen), 0)
    pending = sorted(chosen)
    for name in pending:
        for source in egraph.origins[name].made_of:
            if source not in levels:
                levels[source] = levels[name] + 1
                pending.append(source)
    return levels


@dataclass(frozen=True, eq=False)
class _Distance(GraphCost):
    """Guide of the search for steps: the distance of a network's ops from the chosen ones; infinite if one of them is
    not in the e-graph.
    """

    egraph: EGraph
    levels: dict[str, int]

    def us(self, network: Network) -> float:
        nodes = self.of_nodes(network)
        return sum(nodes.values()) if nodes else inf

    def of_nodes(self, network: Network) -> dict[str, float]:
        """Distance of each node; empty if one is not there."""
        nodes = self.egraph.nodes_of(network.graph)
        if nodes is None:
            return {}
        far = 1 + max(self.levels.values())
        return {
            node.name: float(self.levels.get(name, far)) for node, name in zip(network.graph.nodes, nodes, strict=True)
        }
