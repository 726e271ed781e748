"""The search of a large network in parts, one after another (MetaFlow, section 5: flow-based graph split).

A part is searched as a network of its own. Steps found there are repeated in the whole network, and in every equal
part. The seams come last: at places that a cut broke, two neighbouring parts are searched together, starting from these
places.

MetaFlow cuts operators whose capacity is the number of substitutions that span them. Here a place where a rule
matches is a hyperedge of capacity 1 over all that it holds, so that the minimum cut is exactly the least number of
places that are lost (E. Ihler, D. Wagner, F. Wagner, Modeling hypergraphs by graphs with the same mincut properties,
Inf. Process. Lett. 45, 1993).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from iossim.base.errors import OptionError, ignore
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Network
from iossim.models.passes.block_parts import units_alone
from iossim.transforms.choices import GraphCost
from iossim.transforms.rewriting.application import ReplayError, Step, apply, match_of
from iossim.transforms.rewriting.backtracking import (
    AHEAD,
    ALPHA,
    Candidate,
    Found,
    RewriteBudget,
    RewriteProgress,
    Search,
    cheaper,
)
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.rewritten import rewritten_network
from iossim.transforms.rewriting.rule import Rule

#: Parts are cut until they have at most this many ops (MetaFlow's threshold), if they can be.
MOST_OPS = 30
#: Weight of a broken place; that of a value that crosses the cut is 1.
_PLACE = 1000


def split(
    network: Network, together: Sequence[Sequence[int]], places: Iterable[Iterable[str]], most_ops: int = MOST_OPS
) -> tuple[tuple[int, ...], ...]:
    """The network's units in parts of up to ``most_ops`` ops, in topological order.

    ``together`` are units that stay in one part, in topological order: each alone, or the blocks of the network. A
    part may have more ops than the limit if they stay together. ``places`` are the nodes, by name, of each place
    where a rule matches.
    """
    group_of_unit = {unit: group for group, units in enumerate(together) for unit in units}
    group_of_node = {
        network.graph.nodes[node].name: group_of_unit[index]
        for index, unit in enumerate(network.units)
        for node in unit.nodes
    }
    spanned = [frozenset(group_of_node[node] for node in place if node in group_of_node) for place in places]
    edges = {
        (group_of_unit[before], group_of_unit[unit])
        for unit, reads in enumerate(network.predecessors)
        for before in reads
        if group_of_unit[before] != group_of_unit[unit]
    }
    ops = [sum(len(network.units[unit].nodes) for unit in units) for units in together]
    waiting = [list(range(len(together)))]
    parts: list[tuple[int, ...]] = []
    while waiting:
        groups = waiting.pop()
        if len(groups) == 1 or sum(ops[group] for group in groups) <= most_ops:
            parts.append(tuple(sorted(unit for group in groups for unit in together[group])))
            continue
        before = minimum_cut(groups, ops, sorted(edges), spanned)
        waiting += [[group for group in groups if group not in before], sorted(before)]
    return tuple(parts)


def minimum_cut(
    groups: Sequence[int], weights: Sequence[int], edges: Sequence[tuple[int, int]], spanned: Sequence[frozenset[int]]
) -> frozenset[int]:
    """The groups before the cut that breaks the fewest hyperedges ``spanned``, then the fewest ``edges``.

    ``groups`` are at least two, in topological order. About the first third by weight stand before the cut and the
    last third after it; no edge leads back over it.
    """
    position = {group: index for index, group in enumerate(groups)}
    inside = [(position[a], position[b]) for a, b in edges if a in position and b in position]
    broken = [[position[group] for group in hyperedge if group in position] for hyperedge in spanned]
    broken = [sorted(members) for members in broken if len(members) > 1]
    first, last = len(groups), len(groups) + 1
    never = _PLACE * len(broken) + len(inside) + 1
    flows: dict[tuple[int, int], int] = {}
    for a, b in inside:
        flows[a, b] = flows.get((a, b), 0) + 1
        flows[b, a] = never
    for index, members in enumerate(broken):
        enter, leave = last + 1 + 2 * index, last + 2 + 2 * index
        flows[enter, leave] = _PLACE
        for member in members:
            flows[member, enter] = flows[leave, member] = never
    for index in _ends(groups, weights):
        flows[first, index] = never
    for index in _ends(groups[::-1], weights):
        flows[len(groups) - 1 - index, last] = never
    size = last + 1 + 2 * len(broken)
    rows, columns = np.array(list(flows), dtype=np.int32).T
    capacity = csr_array((np.array(list(flows.values()), dtype=np.int32), (rows, columns)), shape=(size, size))
    left = capacity - maximum_flow(capacity, first, last).flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    reached = breadth_first_order(left, first, return_predecessors=False)
    return frozenset(groups[index] for index in reached.tolist() if index < len(groups))


def _ends(groups: Sequence[int], weights: Sequence[int]) -> list[int]:
    """The first places that have up to a third of the weight; at least one."""
    third = sum(weights[group] for group in groups) / 3
    found, sum_of = [0], weights[groups[0]]
    for index, group in enumerate(groups[1:-1], 1):
        sum_of += weights[group]
        if sum_of > third:
            break
        found.append(index)
    return found


#: Function that proposes a graph of a part, for the search of it to begin with.
Proposes = Callable[[Network], Found]
#: Fraction of the budget for the parts; the rest, and what they leave, is for the seams.
_PARTS_SHARE = 0.9


def search_in_parts(
    network: Network,
    rules: Sequence[Rule],
    cost: GraphCost,
    *,
    alpha: float = ALPHA,
    budget: RewriteBudget | None = None,
    guides: Sequence[GraphCost] = (),
    proposes: Proposes | None = None,
    blocks_whole: bool = False,
    most_ops: int = MOST_OPS,
    progress: RewriteProgress = ignore,
) -> Found:
    """The cheapest network that the rules make of this one, as far as alpha and the budget reach, by a
    :class:`~iossim.transforms.rewriting.backtracking.Search` of each part of up to ``most_ops`` ops; never worse than
    the network as it is. Raises OptionError for an alpha below 1; ``inf`` searches everything.

    The parts share the budget. Each is first searched under the costs of ``guides``; what is best there is a seed of
    the search under ``cost``, and so is what is proposed for it. ``blocks_whole`` cuts only between blocks, since the
    schedule of a part of a block says little about the whole.
    """
    if not alpha >= 1:
        raise OptionError(f"`alpha` {alpha:g} is not possible: give 1 or more")
    begun = Candidate(network, (), cost.us(network))
    work = _PartSearch(network, rules, cost, guides, proposes, alpha, budget or RewriteBudget(), progress, begun)
    try:
        work.run(blocks_whole, most_ops)
    except KeyboardInterrupt:
        work.interrupted, work.complete = True, False
    return Found(work.best, begun.cost_us, work.seen, work.expanded, work.complete, work.interrupted, work.matched)


@dataclass(eq=False)
class _PartSearch:
    original: Network
    rules: Sequence[Rule]
    cost: GraphCost
    guides: Sequence[GraphCost]
    proposes: Proposes | None
    alpha: float
    budget: RewriteBudget
    progress: RewriteProgress
    best: Candidate
    seen: int = 1
    expanded: int = 0
    complete: bool = True
    interrupted: bool = False
    matched: bool = False
    started: float = field(default_factory=perf_counter)
    #: The searches of parts, equal ones once.
    _known: dict[str, Search] = field(default_factory=dict)

    def run(self, blocks_whole: bool, most_ops: int) -> None:
        network = self.original
        places = self._places(network.graph)
        self.matched = bool(places)
        if not places:
            return
        alone = [(unit,) for unit in range(len(network.units))]
        together = [block.units for block in network.blocks] if blocks_whole else alone
        parts = [units_alone(network, units, network.name) for units in split(network, together, places, most_ops)]
        self._search(parts, _PARTS_SHARE if len(parts) > 1 else 1.0)
        part_of: dict[str, int] = {}
        for index, part in enumerate(parts):
            part_of |= dict.fromkeys([node.name for node in part.graph.nodes], index)
            part_of |= dict.fromkeys(self._keep(part), index)
        for seam in range(len(parts) - 1):
            self._join(seam, part_of)
        self.complete = not self.interrupted and all(work.complete for work in self._known.values())

    def _places(self, graph: Graph) -> list[tuple[str, ...]]:
        return [match.nodes for rule in self.rules for match in find_matches(graph, rule)]

    def _search(self, parts: Sequence[Network], share: float, focus: frozenset[str] | None = None) -> None:
        """Search parts in turn, a graph of each, until ``share`` of the budget is spent; equal ones once."""
        distinct = {looks: part for part in parts if (looks := _looks(part, focus)) not in self._known}
        seeds: dict[str, list[Candidate]] = {looks: [] for looks in distinct}
        if self.proposes is not None and focus is None:
            for looks, part in distinct.items():
                if not self.interrupted:
                    proposed = self.proposes(part)
                    self.seen, self.interrupted = self.seen + proposed.seen - 1, proposed.interrupted
                    seeds[looks].append(proposed.best)
        for number, cost in enumerate((*self.guides, self.cost), 1):
            # Guides are cheap, so that only they look ahead; what they find are seeds.
            ahead = 0 if self.guides and cost is self.cost else AHEAD
            searches = {
                looks: Search(part, self.rules, cost, alpha=self.alpha, seeds=seeds[looks], focus=focus, ahead=ahead)
                for looks, part in distinct.items()
            }
            for looks, work in searches.items():
                seeds[looks].append(work.best)
            self._advance(list(searches.values()), share * number / (len(self.guides) + 1))
            for looks, work in searches.items():
                seeds[looks].append(work.best)
        self._known |= searches

    def _advance(self, searches: Sequence[Search], share: float) -> None:
        going = deque(searches)
        before = sum(work.seen for work in searches)
        try:
            while going and not self.interrupted:
                if self.budget.is_spent(self.expanded, perf_counter() - self.started, share):
                    break
                work = going.popleft()
                if not work.complete:
                    work.expand()
                    self.expanded += 1
                    going.append(work)
                self.progress(self.seen + sum(work.seen for work in searches) - before, self.best.cost_us)
        except KeyboardInterrupt:
            self.interrupted = True
        self.seen += sum(work.seen for work in searches) - before

    def _keep(self, part: Network, focus: frozenset[str] | None = None) -> list[str]:
        """Repeat the steps found for a part in the best network so far, if it then costs less: a step that gains in a
        part need not gain in the whole. Returns the names of the nodes that the part then consists of.
        """
        try:
            whole, steps, names = _followed(self._known[_looks(part, focus)], part.graph, self.best, self.rules)
        except ReplayError:
            return []  # names that the part does not see led elsewhere
        if steps != self.best.steps:
            network = rewritten_network(self.original, whole)
            self.best = cheaper(self.best, Candidate(network, steps, self.cost.us(network)))
            self.progress(self.seen, self.best.cost_us)
        return names

    def _join(self, seam: int, part_of: dict[str, int]) -> None:
        """Search two neighbouring parts together, starting from the places that contain nodes of both."""
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
        focus = frozenset(name for place in across for name in place)
        self._search([part], 1.0, focus)
        before = {node.name: node for node in part.graph.nodes}
        names = set(self._keep(part, focus))
        # New nodes may replace ops of both parts, so that they belong to the later one.
        changed = (node.name for node in self.best.network.graph.nodes if before.get(node.name) != node)
        part_of |= dict.fromkeys(names.intersection(changed), seam + 1)


def _looks(network: Network, focus: frozenset[str] | None) -> str:
    """Hash that is equal for networks that differ only in names and weights, node by node in order."""
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
    known: Search, part: Graph, best: Candidate, rules: Sequence[Rule]
) -> tuple[Graph, tuple[Step, ...], list[str]]:
    """Repeat in the whole the steps found for a part that equals ``part``; raises ReplayError if that is impossible.

    Both are rewritten side by side, so that each new node of one has its counterpart in the other. Returns the whole,
    the steps to it, and the names of the part's nodes in it.
    """
    whole, steps = best.network.graph, best.steps
    named = {rule.name: rule for rule in rules}
    graph = known.network.graph
    nodes = {mine.name: its.name for mine, its in zip(graph.nodes, part.nodes, strict=True)}
    values: dict[str, str] = dict(zip(_values(graph), _values(part), strict=True))
    for step in known.best.steps:
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
        nodes |= zip(_added(graph, made.graph), _added(whole, made_there.graph), strict=True)
        for node in _changed(graph, made.graph):
            # An input that replaces an output: a part that returns it renames its maker, the whole its readers.
            its_node = made_there.graph.nodes[made_there.graph.position[nodes[node.name]]]
            values |= zip((*node.outputs, *node.inputs), (*its_node.outputs, *its_node.inputs), strict=True)
        graph, whole, steps = made.graph, made_there.graph, (*steps, made_there.step)
    return whole, steps, [nodes[node.name] for node in graph.nodes]


def _added(before: Graph, after: Graph) -> Iterator[str]:
    """The names of the nodes that are new, in order."""
    return (node.name for node in after.nodes if node.name not in before.position)


def _changed(before: Graph, after: Graph) -> Iterator[Node]:
    """The nodes that are new, or read something else, in order."""
    known = {node.name: node for node in before.nodes}
    return (node for node in after.nodes if known.get(node.name) != node)
