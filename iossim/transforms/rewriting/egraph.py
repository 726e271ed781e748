"""An e-graph: many graphs that compute the same in one, each shared part once (Y. Yang et al., Equality saturation
for tensor graph superoptimization, MLSys 2021: TENSAT).

A *class* is a set of values that are equal; an *e-node* is an op that reads classes and makes classes. Two e-nodes
with the same op and inputs are one (hash-consing), so that values found equal make what is computed of them equal too
(congruence). An op of several outputs makes a class for each, where TENSAT has one class of a tuple and projections
of it.

Ops of constants alone make a constant, folded when it is loaded, and are no e-nodes. Concatenations of constants along
one axis are flattened, so that weights that were joined in other steps are one. Matching sees an e-graph as a
graph in which a value may have several makers.

E-nodes are priced together, as one graph of all distinct ops and pairs of neighbours that touch nowhere, fused by the
policy most like the network's. Two ops that are a unit of the network are priced as that, since a unit that no step
touches stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from iossim.base.errors import GraphError
from iossim.ir.constants import AbsentConstant, Constant, FilledConstant, IdentityConstant
from iossim.ir.graph import Graph, Node, inferred_types
from iossim.ir.network import Network
from iossim.ir.op import Op, Role
from iossim.ir.ops.slice import Concat
from iossim.ir.types import TensorType
from iossim.models.passes.blocks import one_block
from iossim.models.passes.simplification import FoldedConstant
from iossim.models.passes.unit_fusion import UnitPolicy
from iossim.transforms.rewriting.graph_costs import SumOfOperators
from iossim.transforms.rewriting.rewritten import policy_like


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of an e-node.

    ``node`` is the node of the model that it is named after; ``roots`` are the e-nodes of the graph whose results it
    replaces; ``made_of`` are the e-nodes of the match that it was made by, none for those of the graph.
    """

    node: str
    roots: frozenset[str]
    made_of: tuple[str, ...] = ()


class ENodes(Graph):
    """E-nodes as a graph whose values are classes, each of which may have several makers."""

    @cached_property
    def _makers(self) -> Mapping[str, tuple[Node, ...]]:
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.outputs):
                found.setdefault(value, []).append(node)
        return {value: tuple(nodes) for value, nodes in found.items()}

    def makers(self, value: str) -> tuple[Node, ...]:
        return self._makers.get(value, ())


class EGraph:
    """An e-graph. After changes, call :meth:`rebuild` before reading anything but types and :meth:`find`."""

    def __init__(self, graph: Graph) -> None:
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, Constant] = {}
        #: The e-nodes that are of use, in which rules are matched.
        self.graph = ENodes((), (), (), self.types, self.constants)
        self.origins: dict[str, Origin] = {}
        self._leader: dict[str, str] = {}
        self._number: dict[str, int] = {}
        self._known: dict[tuple[str, tuple[str, ...]], Node] = {}
        #: Class of each constant; the constants are kept, so that no other takes the identity of one.
        self._class_of_constant: dict[object, tuple[str, Constant]] = {}
        self.inputs: dict[str, str] = {name: self._new_class(graph.types[name]) for name in graph.inputs}
        self._inputs = set(self.inputs.values())
        #: The class of each value of the graph when it was added; :meth:`find` tells which that is now.
        self.class_of: dict[str, str] = self.add_graph(graph)
        self.rebuild()

    def find(self, value: str) -> str:
        """The class that a class has become part of."""
        while (leader := self._leader[value]) != value:
            self._leader[value] = self._leader[leader]
            value = leader
        return value

    def is_given(self, value: str) -> bool:
        """True for a class that needs no op: an input of the graph, or a constant."""
        return value in self.constants or value in self._inputs

    def add_graph(self, graph: Graph) -> dict[str, str]:
        """The classes of a graph's values; it has the inputs of the first."""
        classes = dict(self.inputs)
        classes |= {name: self.add_constant(constant) for name, constant in graph.constants.items()}
        for node in graph.nodes:
            made = self.add(node.op, [classes[value] for value in node.inputs], Origin(node.name, frozenset()))
            classes |= zip(node.outputs, made, strict=True)
        return classes

    def nodes_of(self, graph: Graph) -> list[str] | None:
        """The e-nodes that a graph is made of; None if one of its nodes is not there."""
        classes = {name: self.find(value) for name, value in self.inputs.items()}
        classes |= {name: self.find(self.add_constant(constant)) for name, constant in graph.constants.items()}
        found = []
        for node in graph.nodes:
            known = self._known.get((node.op.signature, tuple(classes[value] for value in node.inputs)))
            if known is None:
                return None
            classes |= {name: self.find(value) for name, value in zip(node.outputs, known.outputs, strict=True)}
            found.append(known.name)
        return found

    def add(self, op: Op, inputs: Sequence[str], origin: Origin) -> tuple[str, ...]:
        """The classes that an op makes of others; raises GraphError where it does not take them."""
        read = tuple(map(self.find, inputs))
        known = self._known.get((op.signature, read))
        if known is not None:
            return tuple(map(self.find, known.outputs))
        base = origin.node.partition("~")[0]  # the node of the model
        name = f"{base}#{len(self.origins)}"
        types = op.infer([self.types[value] for value in read])
        outputs = tuple(map(self._new_class, types))
        node = Node(name, op, read, outputs)
        inferred_types(node, self.types)
        if all(value in self.constants for value in read):
            constants = tuple(self.constants[value] for value in read)
            for place, value in enumerate(outputs):
                self._set_constant(value, FoldedConstant(types[place], op, constants, place))
        self.origins[name] = Origin(base, origin.roots or frozenset({name}), origin.made_of)
        self._known[op.signature, read] = node
        return outputs

    def add_constant(self, constant: Constant) -> str:
        """The class of a constant. Folded ones are told apart by what they fold, fills by value, others by identity."""
        by_value = isinstance(constant, FilledConstant | IdentityConstant)
        key: object = constant if by_value else id(constant)
        if key in self._class_of_constant:
            return self.find(self._class_of_constant[key][0])
        if isinstance(constant, FoldedConstant):
            flat = _flattened(constant)
            read = [self.add_constant(each) for each in flat.inputs]
            value = self.add(flat.op, read, Origin("constant", frozenset()))[flat.position]
        else:
            value = self._new_class(constant.type)
            self._set_constant(value, constant)
        self._class_of_constant[key] = (value, constant)
        return value

    def union(self, some: str, other: str) -> bool:
        """Make two classes one; False where they are already. Raises GraphError for different types."""
        first, second = self.find(some), self.find(other)
        if first == second:
            return False
        if self.types[first] != self.types[second]:
            raise GraphError(f"{self.types[first]} and {self.types[second]} are not equal")
        # Classes that need no op lead, then older ones.
        leader, follower = sorted((first, second), key=lambda each: (not self.is_given(each), self._number[each]))
        self._leader[follower] = leader
        return True

    def rebuild(self) -> frozenset[str]:
        """Restore congruence; returns the e-nodes that are new, or make or read other classes than before, by name."""
        changed = True
        while changed:
            changed = False
            known: dict[tuple[str, tuple[str, ...]], Node] = {}
            for node in self._known.values():
                inputs, outputs = (tuple(map(self.find, values)) for values in (node.inputs, node.outputs))
                first = known.setdefault((node.op.signature, inputs), node)
                if first is node:
                    if (inputs, outputs) != (node.inputs, node.outputs):
                        known[node.op.signature, inputs] = Node(node.name, node.op, inputs, outputs)
                    continue
                for one, other in zip(first.outputs, outputs, strict=True):
                    changed |= self.union(one, other)
            changed |= any(self.find(value) != value for node in known.values() for value in node.outputs)
            self._known = known
        before = {node.name: node for node in self.graph.nodes}
        self._inputs = set(map(self.find, self.inputs.values()))
        nodes = tuple(node for node in self._known.values() if self._is_of_use(node))
        self.graph = ENodes((), (), nodes, self.types, self.constants)
        return frozenset(node.name for node in nodes if before.get(node.name) != node)

    def _is_of_use(self, node: Node) -> bool:
        """True unless a node makes only constants, or reads its own result, which no acyclic graph has."""
        return not all(value in self.constants for value in node.outputs) and set(node.outputs).isdisjoint(node.inputs)

    def _new_class(self, value_type: TensorType) -> str:
        name = f"class {len(self._leader)}"
        self._number[name] = len(self._leader)
        self._leader[name] = name
        self.types[name] = value_type
        return name

    def _set_constant(self, value: str, constant: Constant) -> None:
        self.constants[value] = constant
        self._class_of_constant[id(constant)] = (value, constant)


def _flattened(constant: FoldedConstant) -> FoldedConstant:
    """A concatenation of concatenations along the same axis as one."""
    if not isinstance(constant.op, Concat):
        return constant
    inputs: list[Constant] = []
    for each in constant.inputs:
        flat = _flattened(each) if isinstance(each, FoldedConstant) else each
        inner = isinstance(flat, FoldedConstant) and flat.op == constant.op
        inputs.extend(flat.inputs if isinstance(flat, FoldedConstant) and inner else (flat,))
    return FoldedConstant(constant.type, constant.op, tuple(inputs), 0)


_Key = tuple[object, ...]


@dataclass(frozen=True)
class OperatorPrices:
    """Microseconds of each e-node as a unit, and the saving if the second of a pair is fused to the first."""

    alone_us: Mapping[str, float]
    saved_us: Mapping[tuple[str, str], float]


def operator_prices(
    egraph: EGraph, network: Network, cost: SumOfOperators, policy: UnitPolicy | None = None
) -> OperatorPrices:
    """The prices of all e-nodes, ``network`` among them, fused by the given policy or the network's own."""
    work = _Pieces(egraph)
    alone = {node.name: work.add((node,)) for node in egraph.graph.nodes}
    pairs = {
        (first.name, second.name): work.add((first, second))
        for second in egraph.graph.nodes
        for value in dict.fromkeys(second.inputs)
        if not egraph.is_given(value)
        for first in egraph.graph.makers(value)
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
    """The e-nodes of each unit of two ops whose second alone reads the first, and its price with a boundary."""
    names = egraph.nodes_of(network.graph) or []
    between_us = cost.cost_model.price_boundary(False, False)
    for unit, us in zip(network.units, cost.of_units(network), strict=True):
        if names and len(unit.nodes) == 2:
            first, second = unit.nodes
            if set(network.graph.nodes[first].outputs) & set(network.graph.nodes[second].inputs):
                yield (names[first], names[second]), us + between_us


def _may_fuse(first: Node, second: Node) -> bool:
    """True for pairs that policies may fuse: with an element-wise op or a view, or of two convolutions."""
    if len(first.outputs) != 1:
        return False
    either = (first.op, second.op)
    are_convolutions = first.op.kind == second.op.kind == "conv"
    return are_convolutions or any(op.is_elementwise or op.role is Role.VIEW for op in either)


class _Pieces:
    """Pieces of one or two ops, equal ones kept once."""

    def __init__(self, egraph: EGraph) -> None:
        self._egraph = egraph
        self._number: dict[_Key, int] = {}
        self._inputs: dict[str, TensorType] = {}
        self._constants: dict[str, Constant] = {}
        self._nodes: list[Node] = []
        self._piece_of: dict[str, int] = {}

    def add(self, nodes: tuple[Node, ...]) -> int:
        """Number of the piece that equals these e-nodes together."""
        local: dict[str, int] = {}
        for node in nodes:
            for value in (*node.inputs, *node.outputs):
                local.setdefault(value, len(local))
        looks = tuple((self._egraph.types[value], value in self._egraph.constants) for value in local)
        wiring = tuple(
            (node.op.signature, *(tuple(map(local.__getitem__, each)) for each in (node.inputs, node.outputs)))
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
        """Microseconds of each piece, including the boundary before each of its units."""
        read = {value for node in self._nodes for value in node.inputs}
        outputs = [value for node in self._nodes for value in node.outputs if value not in read]
        graph = Graph.create(self._inputs, outputs, self._nodes, self._constants)
        units = policy(graph)
        whole = one_block(network, units, graph)
        between_us = cost.cost_model.price_boundary(False, False)
        found = [0.0] * len(self._number)
        for unit, us in zip(whole.units, cost.of_units(whole), strict=True):
            found[self._piece_of[graph.nodes[unit.nodes[0]].name]] += us + between_us
        return found
