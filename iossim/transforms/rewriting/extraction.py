"""The cheapest graph of an e-graph, as a 0-1 program (TENSAT, section 5.1), solved by HiGHS.

Each e-node has a variable that says whether it is chosen. Each output of the graph, and each class that a chosen e-node
reads, has a chosen maker; classes in a cycle have numbers, each greater than those of the classes that its maker reads.
A pair of neighbours of which only the second reads the first saves what a unit policy gains by fusing them. So the cost
is exact if no unit has more than two ops, and an estimate for larger ones. A greedy extraction, which counts shared ops
once for each reader, needs no program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from scipy.optimize import Bounds, LinearConstraint
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from iossim.base.solvers import solve_integer_program
from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Node
from iossim.ir.ops.unary import Identity
from iossim.transforms.rewriting.egraph import EGraph, OperatorPrices


@dataclass(frozen=True)
class Extraction:
    """The e-node chosen for each class, and the cost by the prices that it was chosen by. No graph costs less than
    ``at_least_us``, which is below ``cost_us`` if the solver reached its limit.
    """

    makers: Mapping[str, Node]
    cost_us: float
    at_least_us: float


def extract_greedily(egraph: EGraph, outputs: Iterable[str], prices: OperatorPrices) -> Extraction:
    """Extraction of each class by the e-node that is cheapest with all its predecessors, without regard to sharing."""
    used = _used(egraph, outputs, _cheapest_makers(egraph, prices))
    chosen = {node.name for node in used.values()}
    saved: dict[str, float] = {}
    for (_, reader), us in prices.saved_us.items():
        if reader in chosen:
            saved[reader] = max(saved.get(reader, 0.0), us)
    cost_us = sum(prices.alone_us[name] for name in chosen)
    return Extraction(used, cost_us, cost_us - sum(saved.values()))


def _cheapest_makers(egraph: EGraph, prices: OperatorPrices) -> dict[str, Node]:
    """The cheapest maker of each class that can be made."""
    # Steps break ties where ops cost nothing, so that no class is made of itself.
    best: dict[str, tuple[float, int]] = {}
    makers: dict[str, Node] = {}
    changed = True
    while changed:
        changed = False
        for node in egraph.graph.nodes:
            read = [value for value in dict.fromkeys(node.inputs) if not egraph.is_given(value)]
            if not best.keys() >= set(read) or not isfinite(prices.alone_us[node.name]):
                continue
            before = [best[value] for value in read]
            cost = (
                prices.alone_us[node.name] + sum(us for us, _ in before),
                1 + max((steps for _, steps in before), default=0),
            )
            for value in node.outputs:
                if not egraph.is_given(value) and cost < best.get(value, (inf, 0)):
                    best[value], makers[value] = cost, node
                    changed = True
    return makers


def extract_cheapest(
    egraph: EGraph, outputs: Iterable[str], prices: OperatorPrices, branches: int, seconds: float = inf
) -> Extraction | None:
    """The cheapest extraction, or the best found in so many branches of the solver and seconds; None if none was."""
    return _Program(egraph, tuple(dict.fromkeys(outputs)), prices).solved(branches, seconds)


def extracted_graph(graph: Graph, egraph: EGraph, makers: Mapping[str, Node]) -> Graph:
    """The graph of chosen e-nodes, with the inputs and outputs of ``graph``, and its names for values in it."""
    names = {egraph.find(egraph.inputs[name]): name for name in graph.inputs}
    own = {egraph.find(egraph.class_of[value]): value for value in reversed((*graph.constants, *graph.producer))}
    outputs = {egraph.find(egraph.class_of[name]): name for name in reversed(graph.outputs)}
    returned = {value: name for value, name in outputs.items() if value not in egraph.constants}
    names = {**own, **returned, **names}
    taken = set(graph.types) | set(graph.position)
    constants: dict[str, Constant] = {}
    nodes: list[Node] = []

    def new(base: str) -> str:
        number = 1
        while (name := f"{base}~{number}") in taken:
            number += 1
        taken.add(name)
        return name

    def name_of(value: str, base: str) -> str:
        if value not in names:
            names[value] = new(base)
        if value in egraph.constants:
            # A value that the graph computes cannot name a constant.
            if names[value] in graph.producer and names[value] not in graph.returned:
                names[value] = new(base)
            constants[names[value]] = egraph.constants[value]
        return names[value]

    of_node = {(node.op.signature, node.inputs): node.name for node in reversed(graph.nodes)}
    for node in reversed(dict.fromkeys(makers.values())):
        base = egraph.origins[node.name].node
        inputs = tuple(name_of(value, base) for value in node.inputs)
        name = of_node.pop((node.op.signature, inputs), "") or new(base)
        made = tuple(name_of(value, name) if makers.get(value) is node else new(name) for value in node.outputs)
        nodes.append(Node(name, node.op, inputs, made))
    for name in dict.fromkeys(graph.outputs):
        value = egraph.find(egraph.class_of[name])
        if names.get(value) != name:
            base = graph.producer[name].name if name in graph.producer else name
            nodes.append(Node(new(base), Identity(), (name_of(value, base),), (name,)))
    return Graph.create({name: graph.types[name] for name in graph.inputs}, graph.outputs, nodes, constants)


def _used(egraph: EGraph, outputs: Iterable[str], makers: Mapping[str, Node]) -> dict[str, Node]:
    """Makers of all classes that the outputs need."""
    used: dict[str, Node] = {}
    pending = list(outputs)
    while pending:
        value = pending.pop()
        if value not in used and not egraph.is_given(value):
            used[value] = makers[value]
            pending.extend(makers[value].inputs)
    return used


class _Program:
    """Variables: e-nodes, then pairs, then numbers of classes in cycles."""

    def __init__(self, egraph: EGraph, outputs: tuple[str, ...], prices: OperatorPrices) -> None:
        self._egraph = egraph
        self._outputs = [value for value in outputs if not egraph.is_given(value)]
        self._prices = prices
        self._nodes = self._needed()
        self._index = {node.name: index for index, node in enumerate(self._nodes)}
        self._rows: list[tuple[list[tuple[int, float]], float]] = []
        self._costs = [prices.alone_us[node.name] for node in self._nodes]
        self._makers: dict[str, list[int]] = {}
        self._readers: dict[str, list[int]] = {}
        for index, node in enumerate(self._nodes):
            for value in dict.fromkeys(node.outputs):
                self._makers.setdefault(value, []).append(index)
            for value in dict.fromkeys(node.inputs):
                self._readers.setdefault(value, []).append(index)

    def _needed(self) -> list[Node]:
        """E-nodes that have a price, whose inputs can be made, and that the outputs may need."""
        made, is_given = _cheapest_makers(self._egraph, self._prices), self._egraph.is_given
        graph, alone_us = self._egraph.graph, self._prices.alone_us
        pending, needed = list(self._outputs), set[str]()
        while pending:
            for node in graph.makers(pending.pop()):
                can_be = all(value in made or is_given(value) for value in node.inputs)
                if can_be and isfinite(alone_us[node.name]) and node.name not in needed:
                    needed.add(node.name)
                    pending += [value for value in node.inputs if not is_given(value)]
        return [node for node in graph.nodes if node.name in needed]

    def solved(self, branches: int, seconds: float) -> Extraction | None:
        if not self._nodes:
            return Extraction({}, 0.0, 0.0)
        for value in self._outputs:
            self._at_least([(maker, 1.0) for maker in self._makers[value]], 1.0)
        for value, readers in self._readers.items():
            if not self._egraph.is_given(value):
                for reader in readers:
                    self._at_least([*((maker, 1.0) for maker in self._makers[value]), (reader, -1.0)], 0.0)
        pairs = self._add_pairs()
        binary = len(self._nodes)
        numbers = self._add_numbers(binary + pairs)
        count = binary + pairs + len(numbers)
        costs = np.array([*self._costs, *[0.0] * len(numbers)])
        entries = [(row, column, value) for row, (terms, _) in enumerate(self._rows) for column, value in terms]
        rows, columns, values = (np.array(each) for each in zip(*entries, strict=True))
        matrix = csr_array((values, (rows, columns)), shape=(len(self._rows), count))
        upper = np.array([1.0] * (binary + pairs) + numbers)
        found = solve_integer_program(
            costs,
            integrality=np.array([1] * binary + [0] * (count - binary)),
            bounds=Bounds(np.zeros(count), upper),
            constraints=LinearConstraint(matrix, np.array([least for _, least in self._rows]), np.inf),
            options={"node_limit": branches, "time_limit": seconds, "mip_rel_gap": 1e-9},
        )
        if found.x is None:
            return None
        makers: dict[str, Node] = {}
        for index, node in enumerate(self._nodes):
            if found.x[index] > 0.5:
                for value in node.outputs:
                    makers.setdefault(value, node)
        bound = found.mip_dual_bound
        return Extraction(
            _used(self._egraph, self._outputs, makers), float(found.fun), float(-inf if bound is None else bound)
        )

    def _at_least(self, terms: list[tuple[int, float]], least: float) -> None:
        """Require that the sum of variables times factors is at least a number."""
        self._rows.append((terms, least))

    def _add_pairs(self) -> int:
        """A variable for each pair that saves something: both are in no other pair, only the second reads the first."""
        begin = len(self._costs)
        of_first: dict[int, list[int]] = {}
        of_second: dict[int, list[int]] = {}
        for (first_name, second_name), us in self._prices.saved_us.items():
            if first_name not in self._index or second_name not in self._index or us <= 0:
                continue
            first, second = self._index[first_name], self._index[second_name]
            made = self._nodes[first].outputs
            if not set(made).isdisjoint(self._outputs):
                continue
            pair = len(self._costs)
            self._costs.append(-us)
            of_first.setdefault(first, []).append(pair)
            of_second.setdefault(second, []).append(pair)
            others = {reader for value in made for reader in self._readers.get(value, ())} - {second}
            for other in sorted(others):
                self._at_least([(pair, -1.0), (other, -1.0)], -1.0)
        for together in (of_first, of_second):
            for node, pairs in together.items():
                self._at_least([(node, 1.0), *((pair, -1.0) for pair in pairs)], 0.0)
        return len(self._costs) - begin

    def _add_numbers(self, begin: int) -> list[float]:
        """A number for each class in a cycle, and its greatest value."""
        classes = {value: index for index, value in enumerate(dict.fromkeys((*self._makers, *self._readers)))}
        edges = [
            (classes[read], classes[made])
            for node in self._nodes
            for read in node.inputs
            if not self._egraph.is_given(read)
            for made in node.outputs
        ]
        rows, columns = ([edge[end] for edge in edges] for end in (0, 1))
        matrix = csr_array((np.ones(len(edges)), (rows, columns)), shape=(len(classes), len(classes)))
        _, component = connected_components(matrix, directed=True, connection="strong")
        sizes = np.bincount(component)
        in_circle = [value for value, index in classes.items() if sizes[component[index]] > 1]
        variable = {value: begin + index for index, value in enumerate(in_circle)}
        size = {value: float(sizes[component[classes[value]]]) for value in in_circle}
        for index, node in enumerate(self._nodes):
            for made in dict.fromkeys(node.outputs):
                for read in dict.fromkeys(node.inputs):
                    together = made in variable and read in variable
                    if together and component[classes[made]] == component[classes[read]]:
                        most = size[made] + 1
                        self._at_least([(variable[made], 1.0), (variable[read], -1.0), (index, -most)], 1.0 - most)
        return [size[value] for value in in_circle]
