"""The search of a large network in parts, one after another (MetaFlow, section 5: flow-based graph split).

A part is searched as a network of its own. What is found there is done again in the whole, and in every part that looks the same.
Then the seams: at places that a cut broke, two neighbouring parts are searched together, from these places on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from iossim.ir.graph import Graph, Node
from iossim.ir.network import Network
from iossim.passes.single_block import units_alone
from iossim.rewriting.application import ReplayError, Step, apply, match_of
from iossim.rewriting.backtracking import (
    ALPHA,
    Candidate,
    Found,
    RewriteBudget,
    RewriteProgress,
    cheaper,
    check_alpha,
    ignore,
    search,
)
from iossim.rewriting.graph_costs import GraphCost
from iossim.rewriting.matching import find_matches
from iossim.rewriting.rewritten import rewritten_network
from iossim.rewriting.rule import Rule
from iossim.rewriting.splitting import MOST_OPS, split


def search_in_parts(
    network: Network,
    rules: Sequence[Rule],
    cost: GraphCost,
    *,
    alpha: float = ALPHA,
    budget: RewriteBudget | None = None,
    blocks_whole: bool = False,
    most_ops: int = MOST_OPS,
    progress: RewriteProgress = ignore,
) -> Found:
    """As :func:`~iossim.rewriting.backtracking.search`, in parts of up to ``most_ops`` ops; never worse than the network as it is.

    A budget of graphs is one for each part that is searched, one of seconds for all. ``blocks_whole`` cuts between blocks
    alone, since the schedule of a part of a block says little of the whole.
    """
    check_alpha(alpha)
    begun = Candidate(network, (), cost.us(network))
    work = _PartSearch(network, rules, cost, alpha, budget or RewriteBudget(), progress, begun)
    try:
        work.run(blocks_whole, most_ops)
    except KeyboardInterrupt:
        work.interrupted = True
    complete = work.complete and not work.interrupted
    return Found(work.best, begun.cost_us, work.seen, work.expanded, complete, work.interrupted, work.matched)


@dataclass(frozen=True, eq=False)
class _Known:
    """A part that was searched: its graph, and the steps that were found for it."""

    graph: Graph
    steps: tuple[Step, ...]


@dataclass(eq=False)
class _PartSearch:
    original: Network
    rules: Sequence[Rule]
    cost: GraphCost
    alpha: float
    budget: RewriteBudget
    progress: RewriteProgress
    best: Candidate
    seen: int = 1
    expanded: int = 0
    complete: bool = True
    interrupted: bool = False
    matched: bool = False
    _known: dict[str, _Known] = field(default_factory=dict)
    _started: float = field(default_factory=perf_counter)

    def run(self, blocks_whole: bool, most_ops: int) -> None:
        network = self.original
        places = self._places(network.graph)
        self.matched = bool(places)
        if not places:
            return
        alone = [(unit,) for unit in range(len(network.units))]
        parts = split(network, [block.units for block in network.blocks] if blocks_whole else alone, places, most_ops)
        part_of: dict[str, int] = {}
        for index, units in enumerate(parts):
            part = units_alone(network, units, network.name)
            part_of |= dict.fromkeys([node.name for node in part.graph.nodes], index)
            part_of |= dict.fromkeys(self._improve(part, len(parts) - index), index)
        for seam in range(len(parts) - 1):
            self._join(seam, part_of, len(parts) - 1 - seam)

    def _places(self, graph: Graph) -> list[tuple[str, ...]]:
        return [match.nodes for rule in self.rules for match in find_matches(graph, rule)]

    def _improve(self, part: Network, left: int, focus: frozenset[str] | None = None) -> list[str]:
        """Search a part, and do in the best network so far what was found; returns the names of the nodes it is made of then.

        ``left``: the parts still to be searched, this one included, that share the seconds which are left.
        """
        looks = _looks(part, focus)
        interrupted = False
        if looks not in self._known:
            found = search(part, self.rules, self.cost, alpha=self.alpha, budget=self._share(left), focus=focus)
            self.seen += found.seen - 1
            self.expanded += found.expanded
            self.complete &= found.complete
            interrupted = found.interrupted
            self._known[looks] = _Known(part.graph, found.best.steps)
        try:
            whole, steps, names = _followed(self._known[looks], part.graph, self.best, self.rules)
            self._keep(whole, steps)
        except ReplayError:
            # Names that the part does not see led elsewhere: what was found for it is left out.
            self.complete, names = False, []
        if interrupted:
            raise KeyboardInterrupt
        self.progress(self.seen, self.best.cost_us)
        return names

    def _share(self, left: int) -> RewriteBudget:
        if self.budget.seconds is None:
            return self.budget
        rest = self.budget.seconds - (perf_counter() - self._started)
        return RewriteBudget(seconds=max(rest / left, 1e-6))

    def _keep(self, graph: Graph, steps: tuple[Step, ...]) -> None:
        """The whole with what was found, if it costs less: parts may cost less alone that do not together."""
        if steps != self.best.steps:
            network = rewritten_network(self.original, graph)
            self.best = cheaper(self.best, Candidate(network, steps, self.cost.us(network)))

    def _join(self, seam: int, part_of: dict[str, int], left: int) -> None:
        """Search two neighbouring parts together, from the places on that hold nodes of both."""
        network = self.best.network
        index_of: list[int] = []
        for unit, reads in zip(network.units, network.predecessors, strict=True):
            own = [part_of.get(node.name, 0) for node in network.unit_nodes(unit)]
            index_of.append(max([*own, *(index_of[before] for before in reads)]))
        units = [unit for unit, index in enumerate(index_of) if index in (seam, seam + 1)]
        if not units:
            return
        part = units_alone(network, units, network.name)
        across = [place for place in self._places(part.graph) if len({part_of.get(name, 0) for name in place}) > 1]
        if not across:
            return
        names = self._improve(part, left, frozenset(name for place in across for name in place))
        for name in names:
            part_of.setdefault(name, seam + 1)


def _looks(network: Network, focus: frozenset[str] | None) -> str:
    """Equal for networks that are the same but for names and weights, node by node in order."""
    graph = network.graph
    numbers = {value: number for number, value in enumerate(_values(graph))}
    lines = [f"{graph.types[value]} {value in graph.constants}" for value in numbers]
    lines += [
        f"{node.op.signature} {[numbers[value] for value in (*node.inputs, *node.outputs)]} "
        f"{focus is None or node.name in focus}"
        for node in graph.nodes
    ]
    lines += [f"{[unit.nodes for unit in network.units]} {[block.units for block in network.blocks]}"]
    lines += [f"{[numbers[value] for value in (*graph.inputs, *graph.outputs)]}"]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _values(graph: Graph) -> list[str]:
    """All values, in the order in which the nodes name them."""
    named = (value for node in graph.nodes for value in (*node.inputs, *node.outputs))
    return list(dict.fromkeys((*graph.inputs, *named)))


def _followed(
    known: _Known, part: Graph, best: Candidate, rules: Sequence[Rule]
) -> tuple[Graph, tuple[Step, ...], list[str]]:
    """The steps found for a part taken in the whole, where ``part`` looks as it did; raises ReplayError where that cannot be.

    Both are rewritten side by side, so that what is new in one is known by its name in the other. Returns the whole, the steps to it, and
    the names of the part's nodes in it.
    """
    whole, steps = best.network.graph, best.steps
    named = {rule.name: rule for rule in rules}
    graph = known.graph
    nodes = {mine.name: its.name for mine, its in zip(graph.nodes, part.nodes, strict=True)}
    values: dict[str, str] = dict(zip(_values(graph), _values(part), strict=True))
    for step in known.steps:
        rule = named[step.rule]
        inputs = tuple(
            tuple(values[each] for each in value) if isinstance(value, tuple) else value and values[value]
            for value in step.inputs
        )
        there = replace(step, nodes=tuple(nodes[name] for name in step.nodes), inputs=inputs)
        mine, its = match_of(graph, step, rule), match_of(whole, there, rule)
        made = None if mine is None else apply(graph, mine)
        made_there = None if its is None else apply(whole, its)
        if made is None or made_there is None:
            raise ReplayError(f"the rule {rule.name!r} does not apply at {', '.join(there.nodes)}")
        for new, new_there in zip(_new(graph, made.graph), _new(whole, made_there.graph), strict=True):
            nodes[new.name] = new_there.name
            values |= zip(new.outputs, new_there.outputs, strict=True)
            values |= zip(new.inputs, new_there.inputs, strict=True)
        graph, whole, steps = made.graph, made_there.graph, (*steps, made_there.step)
    return whole, steps, [nodes[node.name] for node in graph.nodes]


def _new(before: Graph, after: Graph) -> Iterator[Node]:
    """The nodes that are new, or read something else, in order."""
    known = {node.name: node for node in before.nodes}
    return (node for node in after.nodes if known.get(node.name) != node)
