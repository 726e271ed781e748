"""What e-nodes cost: each op as a unit of its own, and what is saved where two neighbours are fused.

All are priced together: as one graph of all distinct ops and pairs that touch nowhere, fused by the policy most like the network's. Two ops
that are a unit of the network are priced as that, since a unit that no step touches stays as its author made it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from iossim.ir.constants import AbsentConstant, Constant
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Block, Network
from iossim.ir.op import Role
from iossim.ir.types import TensorType
from iossim.models.passes.unit_fusion import UnitPolicy
from iossim.transforms.rewriting.egraph import EGraph
from iossim.transforms.rewriting.graph_costs import SumOfOperators
from iossim.transforms.rewriting.rewritten import policy_like

_Key = tuple[object, ...]


@dataclass(frozen=True)
class OperatorPrices:
    """Microseconds of each e-node as a unit, and what is saved where the second of a pair is fused to the first, which it reads."""

    alone_us: Mapping[str, float]
    saved_us: Mapping[tuple[str, str], float]


def operator_prices(
    egraph: EGraph, network: Network, cost: SumOfOperators, policy: UnitPolicy | None = None
) -> OperatorPrices:
    """The prices of all e-nodes, ``network`` among them, fused by the policy given, or the one most like the network's."""
    work = _Pieces(egraph)
    alone = {node.name: work.add((node,)) for node in egraph.nodes}
    pairs = {
        (first.name, second.name): work.add((first, second))
        for second in egraph.nodes
        for value in dict.fromkeys(second.inputs)
        if not egraph.is_given(value)
        for first in egraph.makers(value)
        if _may_fuse(first, second) and set(second.outputs).isdisjoint(first.inputs)
    }
    piece_us = work.priced(network, cost, policy or policy_like(network))
    alone_us = {name: piece_us[piece] for name, piece in alone.items()}
    saved_us = {
        (first, second): alone_us[first] + alone_us[second] - piece_us[piece]
        for (first, second), piece in pairs.items()
    }
    for pair, unit_us in _units_of_two(egraph, network, cost):
        saved_us[pair] = alone_us[pair[0]] + alone_us[pair[1]] - unit_us
    return OperatorPrices(alone_us, {pair: us for pair, us in saved_us.items() if us > 0})


def _units_of_two(egraph: EGraph, network: Network, cost: SumOfOperators) -> Iterator[tuple[tuple[str, str], float]]:
    """The e-nodes of each unit of two ops of which the second alone reads the first, and its price with the boundary before it."""
    names = egraph.nodes_of(network.graph) or []
    between_us = cost.cost_model.price_boundary(False, False)
    for unit, us in zip(network.units, cost.units.of(network), strict=True):
        if names and len(unit.nodes) == 2:
            first, second = unit.nodes
            if set(network.graph.nodes[first].outputs) & set(network.graph.nodes[second].inputs):
                yield (names[first], names[second]), us + between_us


def _may_fuse(first: Node, second: Node) -> bool:
    """Policies fuse what is element-wise, views, depthwise convolutions with what reads them, and sums into concats."""
    if len(first.outputs) != 1:
        return False
    either = (first.op, second.op)
    return any(op.is_elementwise or op.role is Role.VIEW for op in either) or (
        first.op.kind == second.op.kind == "conv"
    )


class _Pieces:
    """Parts of a graph, each of an op or two, alike ones once."""

    def __init__(self, egraph: EGraph) -> None:
        self._egraph = egraph
        self._number: dict[_Key, int] = {}
        self._inputs: dict[str, TensorType] = {}
        self._constants: dict[str, Constant] = {}
        self._nodes: list[Node] = []
        self._piece_of: dict[str, int] = {}

    def add(self, nodes: tuple[Node, ...]) -> int:
        """The number of the part that looks like these e-nodes together."""
        local: dict[str, int] = {}
        for node in nodes:
            for value in (*node.inputs, *node.outputs):
                local.setdefault(value, len(local))
        looks = tuple((self._egraph.types[value], value in self._egraph.constants) for value in local)
        wiring = tuple(
            (
                node.op.signature,
                tuple(local[value] for value in node.inputs),
                tuple(local[value] for value in node.outputs),
            )
            for node in nodes
        )
        key = (looks, wiring)
        if key in self._number:
            return self._number[key]
        piece = self._number[key] = len(self._number)
        made = {value for node in nodes for value in node.outputs}
        names = {value: f"piece {piece} value {index}" for value, index in local.items()}
        for value, name in names.items():
            value_type = self._egraph.types[value]
            if value not in made and value in self._egraph.constants:
                self._constants[name] = AbsentConstant(value_type)
            elif value not in made:
                self._inputs[name] = value_type
        for place, node in enumerate(nodes):
            name = f"piece {piece} op {place}"
            self._piece_of[name] = piece
            inputs, outputs = (tuple(names[value] for value in values) for values in (node.inputs, node.outputs))
            self._nodes.append(Node(name, node.op, inputs, outputs))
        return piece

    def priced(self, network: Network, cost: SumOfOperators, policy: UnitPolicy) -> list[float]:
        """Microseconds of each part, the boundary before each of its units included."""
        read = {value for node in self._nodes for value in node.inputs}
        outputs = [value for node in self._nodes for value in node.outputs if value not in read]
        graph = Graph.create(self._inputs, outputs, self._nodes, self._constants)
        units = policy(graph)
        whole = replace(network, graph=graph, units=units, blocks=(Block("all", tuple(range(len(units)))),))
        between_us = cost.cost_model.price_boundary(False, False)
        found = [0.0] * len(self._number)
        for unit, us in zip(whole.units, cost.units.of(whole), strict=True):
            found[self._piece_of[graph.nodes[unit.nodes[0]].name]] += us + between_us
        return found
