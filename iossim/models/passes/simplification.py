"""Passes that remove work: constants are folded, dead ops dropped, identities bypassed, repetitions computed once.

Identities are bypassed in imported models only: those of the benchmark networks are units that the published engine
runs, and are kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from iossim.base.errors import GraphError
from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.op import Array, Op
from iossim.ir.ops.foreign import Foreign
from iossim.ir.ops.functions import Nary
from iossim.ir.ops.gather import Gather, GatherND
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.reshape import Expand, Pad, Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice
from iossim.ir.ops.unary import Cast, Identity
from iossim.ir.types import TensorType
from iossim.models.passes.graph_pass import local_pass, with_nodes


@dataclass(frozen=True, eq=False)
class FoldedConstant(Constant):
    """Output ``position`` of an op on constants, computed at each load."""

    type: TensorType
    op: Op
    inputs: tuple[Constant, ...]
    position: int = 0

    @property
    def is_at_hand(self) -> bool:
        few = all(each.type.elements <= _SMALL for each in (self, *self.inputs))
        return few and self.op.kind != "foreign" and all(each.is_at_hand for each in self.inputs)

    @property
    def is_absent(self) -> bool:
        return any(constant.is_absent for constant in self.inputs)

    def load(self) -> Array:
        return self.op.evaluate([constant.load() for constant in self.inputs])[self.position]

    @property
    def origin(self) -> Constant:
        """The rearranged constant, such as an embedding table that is also the last layer's weight."""
        if len(self.inputs) != 1 or self.inputs[0].type.elements != self.type.elements:
            return self
        return self.inputs[0].origin


@dataclass(frozen=True, eq=False)
class RetypedConstant(Constant):
    """A constant rounded to another element type at each load; numbers beyond its range become its largest ones.

    A mask of fp32's least number stays finite: of infinities alone a softmax makes NaN.
    """

    type: TensorType
    source: Constant

    @property
    def is_at_hand(self) -> bool:
        return self.source.is_at_hand

    @property
    def is_absent(self) -> bool:
        return self.source.is_absent

    def load(self) -> Array:
        if not self.type.dtype.is_floating:
            raise GraphError(
                f"weights in {self.type.dtype} need scales that the model does not have: "
                f"a graph retyped to {self.type.dtype} can be scheduled and priced, not executed"
            )
        array, dtype = self.source.load(), self.type.dtype.numpy
        with np.errstate(over="ignore"):
            rounded = array.astype(dtype, copy=False)
        beyond = np.isinf(rounded) & np.isfinite(array)
        return np.where(beyond, np.nextafter(rounded, np.zeros_like(rounded)), rounded) if beyond.any() else rounded

    @property
    def origin(self) -> Constant:
        return self.source.origin

    @property
    def loadable(self) -> Constant:
        return self if self.type.dtype.is_floating else self.source


def folded(op: Op, *constants: Constant) -> FoldedConstant:
    """The output of an op with one output."""
    (made,) = op.infer([constant.type for constant in constants])
    return FoldedConstant(made, op, constants)


def is_constant(graph: Graph, value: str) -> bool:
    """True if a value does not depend on the network's inputs."""
    left, seen = [value], {value}
    while left:
        one = left.pop()
        if one in graph.constants:
            continue
        if one not in graph.producer:
            return False
        fresh = {*graph.producer[one].inputs} - seen
        left += fresh
        seen |= fresh
    return True


def known_array(graph: Graph, value: str) -> Array | None:
    """The elements of a small constant; None for a large one, one without values, and any other value."""
    constant = graph.constants.get(value)
    is_known = constant is not None and constant.type.elements <= LARGEST_INSPECTED and not constant.is_absent
    return constant.load() if constant is not None and is_known else None


class Derived:
    """Values computed of given ones: constants of constants, which are added to these, others by ``nodes``."""

    def __init__(self, types: Mapping[str, TensorType], constants: dict[str, Constant], name: str) -> None:
        self.nodes: list[Node] = []
        self.types, self._constants, self._name = dict(types), constants, name

    def add(self, op: Op, *values: str, name: str = "") -> str:
        """The output of an op with one output; both have the ``name`` of this op, or that of all."""
        if self._constants.keys() >= set(values):
            return self.constant(folded(op, *(self._constants[value] for value in values)))
        name = free_name(name or self._name, self.types)
        (self.types[name],) = op.infer([self.types[value] for value in values])
        self.nodes.append(Node(name, op, values, (name,)))
        return name

    def constant(self, constant: Constant) -> str:
        name = free_name(self._name, self.types)
        self._constants[name], self.types[name] = constant, constant.type
        return name

    def reshaped(self, value: str, node: Node) -> list[Node]:
        """All the nodes, and that which makes the output of a ``node`` by reshaping a value."""
        shape = self.types[node.outputs[0]].shape
        return [*self.nodes, Node(node.name, Reshape(shape), (value,), node.outputs)]


def constant_folding(graph: Graph, kept: frozenset[str] = frozenset()) -> Graph:
    """Replaces every op that reads only constants by constants; nothing is computed before it is loaded.

    Constants in ``kept`` count as variables: ops that depend on them are kept.

    Invariant: afterwards each op depends on an input of the graph, or on a ``kept`` constant, or is PyTorch's; outputs
    are unchanged to the last bit.
    """
    constants = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        is_torchs = node.op.unit_kind.startswith("torch.")  # which ONNX cannot compute
        if is_torchs or not all(name in constants and name not in kept for name in node.inputs):
            nodes.append(node)
            continue
        inputs = tuple(constants[name] for name in node.inputs)
        for position, name in enumerate(node.outputs):
            constants[name] = FoldedConstant(graph.types[name], node.op, inputs, position)
    return with_nodes(graph, nodes, constants)


def dead_op_elimination(graph: Graph) -> Graph:
    """Drops every op without a path to an output of the graph.

    Invariant: afterwards each op has such a path, and the outputs are unchanged to the last bit.
    """
    needed = set(graph.outputs)
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
    nodes = [node for node in graph.nodes if not needed.isdisjoint(node.outputs)]
    return with_nodes(graph, nodes, graph.constants)


def identity_elimination(graph: Graph) -> Graph:
    """Removes ops that change nothing: identities (dropout), sums and concats of one input, reshapes, slices, pads,
    casts, products with one, quotients by it and sums with zero.

    A transpose that moves only axes of size one becomes a reshape, which moves no data, and a reshape of another one
    reads what that one reads. Outputs of the graph keep
    their names: the producer of the value takes the name over. An identity is kept if that is impossible, because
    the value is an input, a constant or an output itself.

    Invariant: the outputs are unchanged to the last bit, up to the sign of zero.
    """
    source: dict[str, str] = {}  # replacement for the output of a removed op
    viewed: dict[str, tuple[str, ...]] = {}  # what a series of reshapes reads
    renamed: dict[str, str] = {}  # values that take over the name of an output of the graph
    kept: list[Node] = []
    for node in (_as_view(graph, _without_neutral(graph, node)) for node in graph.nodes):
        inputs = tuple(source.get(name, name) for name in node.inputs)
        if isinstance(node.op, Reshape):
            inputs = viewed[node.outputs[0]] = viewed.get(inputs[0], inputs)
        if not _is_identity(graph, replace(node, inputs=inputs)):
            kept.append(replace(node, inputs=inputs))
            continue
        (value,), (output,) = inputs, node.outputs
        if output not in graph.returned:
            source[output] = value
        elif value in graph.producer and value not in graph.returned and value not in renamed:
            renamed[value] = output
            source[output] = value
        else:
            kept.append(replace(node, inputs=inputs))
    if tuple(kept) == graph.nodes:
        return graph
    nodes = [
        replace(
            node,
            inputs=tuple(renamed.get(name, name) for name in node.inputs),
            outputs=tuple(renamed.get(name, name) for name in node.outputs),
        )
        for node in kept
    ]
    return with_nodes(graph, nodes, graph.constants)


def expand_elimination(graph: Graph) -> Graph:
    """Lets element-wise ops read what an expand repeats, if they broadcast it themselves, and drops unread expands.

    Invariant: the outputs are unchanged to the last bit.
    """
    source = {node.outputs[0]: node.inputs[0] for node in graph.of_kind.get("expand", ())}
    read, kept = set(graph.returned), list[Node]()
    for node in reversed(graph.nodes if source else ()):
        if node.outputs[0] in read or node.outputs[0] not in source:
            kept.append(_broadcasting(graph, node, source))
            read.update(kept[-1].inputs)
    kept.reverse()
    return with_nodes(graph, kept, graph.constants) if source else graph


def _broadcasting(graph: Graph, node: Node, source: Mapping[str, str]) -> Node:
    """The node, reading sources of expands, one after the other, as long as its output keeps its shape."""
    pending = list(node.inputs if node.op.is_elementwise else ())
    while pending:
        value = pending.pop(0)
        inputs = tuple(source.get(each, each) if each == value else each for each in node.inputs)
        fits = node.op.infer([graph.types[each] for each in inputs]) == tuple(graph.output_types(node))
        if inputs != node.inputs and fits:
            node = replace(node, inputs=inputs)
            pending.append(source[value])
    return node


@local_pass("gather", "gather_nd")
def gather_slicing(graph: Graph, node: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns lookups at constant, neighbouring indices into slices, which are views where lookups are copies.

    Exporters pick queries, keys and values, or the first token, in this way, and a mask by the indices of all its rows
    and keys, or of a flattened one by places in several axes.

    Invariant: the outputs are unchanged to the last bit.
    """
    indices = constants.get(node.inputs[1])
    if indices is None or indices.type.elements > _SMALL or not indices.is_at_hand:
        return {}
    shape, given = graph.types[node.inputs[0]].shape, indices.load()
    match node.op:
        case GatherND(0):
            axis, looked = 0, shape[: given.shape[-1]]
        case Gather():
            axis = node.op.axis % len(shape)
            looked, given = shape[axis : axis + 1], given.reshape(-1, 1)
        case _:
            return {}
    if (rows := _neighbours(looked, given)) is None:
        return {}
    made, x = Derived(graph.types, constants, f"{node.name}.slice"), node.inputs[0]
    if len(looked) > 1:
        x = made.add(Reshape((math.prod(looked), *shape[len(looked) :])), x)
    part = Slice((rows.start,), (rows.stop,), (axis,), (1,))
    if isinstance(node.op, Gather) and len(indices.type.shape) == 1:
        return {node.name: [replace(node, op=part, inputs=(x,))]}
    return {node.name: made.reshaped(made.add(part, x), node)}


def _neighbours(looked: Sequence[int], given: Array) -> range | None:
    """The flat places that several indices each select of axes of these sizes, if each is the one before and one."""
    if not given.size or (given < np.negative(looked)).any() or (given >= looked).any():
        return None
    places = np.ravel_multi_index(tuple(np.moveaxis(given % looked, -1, 0)), tuple(looked)).reshape(-1)
    return range(places[0], places[-1] + 1) if (np.diff(places) == 1).all() else None


@local_pass("foreign")
def scatter_elimination(graph: Graph, node: Node[Foreign], constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Turns a scatter to all places in order into what it writes, as exporters write a mask to all of another.

    Invariant: the outputs are unchanged to the last bit.
    """
    indices = known_array(graph, node.inputs[1]) if node.op.op_type == "ScatterND" else None
    if indices is None:
        return {}
    looked = graph.types[node.outputs[0]].shape[: indices.shape[-1]]
    is_whole = _neighbours(looked, indices) == range(math.prod(looked))
    if not is_whole or any(each.s != b"none" for each in node.op.parsed().attribute):  # it may add what it writes
        return {}
    return {node.name: Derived(graph.types, constants, node.name).reshaped(node.inputs[2], node)}


def _without_neutral(graph: Graph, node: Node) -> Node:
    """A product of two factors, one of which is all 1, a quotient by 1, or a sum with a scalar 0, as an identity."""
    factors = node.inputs if isinstance(node.op, Mul | Add) else node.inputs[1:] if node.op == Nary("div") else ()
    for value in factors if len(node.inputs) == 2 else ():
        others = [each for each in node.inputs if each != value]
        keeps_type = [graph.types[each] for each in others] == graph.output_types(node)
        # A zero with axes may be a bias that training starts from.
        neutral = 1 if not isinstance(node.op, Add) else 0 if graph.types[value].shape == () else None
        is_at_hand = value in graph.constants and graph.constants[value].is_at_hand
        array = known_array(graph, value) if keeps_type and neutral is not None and is_at_hand else None
        if array is not None and (array.size == 1 or neutral == 1) and (array == neutral).all():
            return replace(node, op=Identity(), inputs=tuple(others))
    return node


def _is_identity(graph: Graph, node: Node) -> bool:
    if len(node.inputs) != 1 or graph.types[node.inputs[0]] != graph.types[node.outputs[0]]:
        return False
    if isinstance(node.op, Slice):
        return set(node.op.steps) <= {1}
    if isinstance(node.op, Pad):
        return not any(node.op.pads)
    return isinstance(node.op, Identity | Add | Concat | Reshape | Expand | Cast)


def _as_view(graph: Graph, node: Node) -> Node:
    """A transpose that keeps the order of all axes longer than one, converted to a reshape."""
    if not isinstance(node.op, Transpose):
        return node
    shape = graph.types[node.inputs[0]].shape
    moved = [axis for axis in node.op.permutation if shape[axis] > 1]
    return replace(node, op=Reshape(graph.types[node.outputs[0]].shape)) if moved == sorted(moved) else node


#: Largest number of elements of a mask, or of indices, that is inspected.
LARGEST_INSPECTED = 1 << 24
#: Up to this number of elements constants are compared by contents; larger and computed ones by identity.
_SMALL = 65_536


def common_subexpression_elimination(graph: Graph, unequal: frozenset[str] = frozenset()) -> Graph:
    """Drops every op for which there is another of the same kind, attributes and inputs.

    An op that makes an output of the graph is kept. Products are equal only if their weights are the same constant:
    in a model whose weights were replaced by fills, layers have equal contents. A constant is loaded only to
    distinguish otherwise equal ops; those in ``unequal`` are compared by identity. (No op draws random numbers: import
    refuses those.)

    Invariant: the outputs are unchanged to the last bit.
    """
    constants = {name: each for name, each in graph.constants.items() if name not in unequal}

    @cache
    def contents(name: str) -> str:
        small = constants[name].type.elements <= _SMALL and constants[name].is_at_hand
        return hashlib.sha256(constants[name].load().tobytes()).hexdigest() if small else name

    def are_equal(some: Iterable[str], others: Iterable[str]) -> bool:
        """True if values that are equal except for constants of equal types are equal altogether."""
        pairs = zip(some, others, strict=True)
        return all(one == other or contents(one) == contents(other) for one, other in pairs)

    stands_for: dict[str, str] = {}
    alike: dict[tuple[str | TensorType, ...], list[Node]] = {}
    kept: list[Node] = []
    outputs = set(graph.outputs)
    for node in graph.nodes:
        inputs = tuple(stands_for.get(name, name) for name in node.inputs)
        multiplies = graph.multiply_adds(node) > 0
        read = [constants[name].type if name in constants and not multiplies else name for name in inputs]
        key = (node.op.signature, *read)
        earlier = alike.setdefault(key, [])
        first = next((other for other in earlier if are_equal(other.inputs, inputs)), None)
        if first is None or not outputs.isdisjoint(node.outputs):
            kept.append(node if inputs == node.inputs else replace(node, inputs=inputs))
            if first is None:
                earlier.append(kept[-1])
        else:
            stands_for.update(zip(node.outputs, first.outputs, strict=True))
    return with_nodes(graph, kept, graph.constants)
