"""An operator: a schedule unit of a network whose output is computed box by box.

The demand of a box is derived backwards from the output through the unit's ops: the boxes of feature maps that it reads
and in which order, the boxes of parameters, and the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from iossim.edge.access import AS_IT_LIES, Order, ParameterPart, Piece, is_known, piece
from iossim.execution.plan import Box
from iossim.ir.graph import Node
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Read:
    """A box of a feature map, and the order in which it is visited."""

    value: str
    box: Box
    order: Order


@dataclass(frozen=True, slots=True)
class Call:
    """One op of a unit on slices."""

    node: Node
    box: Box
    piece: Piece


@dataclass(frozen=True, slots=True)
class Demand:
    """Inputs and work of a box of an operator's output. ``calls`` are in execution order."""

    box: Box
    calls: tuple[Call, ...]
    reads: tuple[Read, ...]
    parameters: Mapping[str, Box]
    multiply_adds: int
    other_flops: int

    @property
    def read_boxes(self) -> dict[str, Box]:
        """Smallest box of each feature map that contains all that is read of it."""
        found: dict[str, Box] = {}
        for read in self.reads:
            found[read.value] = read.box.hull(found.get(read.value, read.box))
        return found


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator, of the network's unit ``index``; ``signature`` is equal for those that compute the same."""

    network: Network
    index: int
    name: str
    kind: str
    signature: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self.network.unit_nodes(self.network.units[self.index]))

    @property
    def output(self) -> TensorType:
        return self.network.graph.types[self.outputs[0]]

    @cached_property
    def unknown(self) -> str:
        """Reason why the operator runs whole on one unit; empty if it can be split."""
        if len(self.outputs) != 1:
            return "several outputs"
        kinds = dict.fromkeys(node.op.kind for node in self.nodes if not is_known(node.op) or len(node.outputs) > 1)
        return f"no known access pattern of {', '.join(kinds)}" if kinds else ""

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Constants that it reads."""
        constants = self.network.graph.constants
        return tuple(dict.fromkeys(name for node in self.nodes for name in node.inputs if name in constants))

    @cached_property
    def anchor(self) -> Node | None:
        """The product that can be split into partial sums: the only one with weights, on outside inputs."""
        constants = self.network.graph.constants
        found = [
            node
            for node in self.nodes
            if isinstance(node.op, Conv | ConvTranspose | Gemm | MatMul) and node.inputs[1] in constants
        ]
        return found[0] if len(found) == 1 and found[0].inputs[0] in self.inputs else None

    @cached_property
    def channel_quantum(self) -> int:
        """Output channels that a split must not cross: the filters of a group, if there are several such groups."""
        for node in self.nodes:
            if isinstance(node.op, Conv) and node.op.groups > 1:
                filters = self.network.graph.types[node.inputs[1]].shape[0] // node.op.groups
                if filters > 1 and not self.unknown:
                    return filters
        return 0

    def demand(self, box: Box) -> Demand | None:
        """Demand of a box of the output; None if it cannot be computed alone, as no part of an unknown operator can."""
        if box not in self._demands:
            self._demands[box] = _trace(self, box) if not self.unknown else _whole(self, box)
        return self._demands[box]

    def needed(self, box: Box) -> Demand:
        """Demand of a box that can be computed alone, as those of every split can."""
        demand = self.demand(box)
        assert demand is not None
        return demand

    @cached_property
    def _demands(self) -> dict[Box, Demand | None]:
        return {}

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """Axes of the output that can be split, in priority order: outC, inH, inW."""
        shape = self.output.shape
        rank = len(shape)
        roles = {0: (), 1: (0,), 2: (1, 0), 3: (2, 1)}.get(rank, (1, 2, 3, *range(4, rank)))
        whole = Box.whole(shape)
        found = []
        for axis in roles:
            if shape[axis] > 1:
                size = self.channel_quantum if axis == roles[0] and self.channel_quantum else 1
                if self.demand(whole.along(axis, 0, size)) is not None:
                    found.append(axis)
        return tuple(found)

    def axis_name(self, axis: int) -> str:
        """Name of an axis in splits."""
        rank = len(self.output.shape)
        names = {2: ("inH", "outC"), 3: ("batch", "inH", "outC")}.get(rank, ("batch", "outC", "inH", "inW"))
        return names[axis] if axis < len(names) else f"axis {axis}"

    def boxes(self, box: Box) -> dict[str, Box]:
        """Box of each output, where that of the first is ``box``; several outputs are made whole."""
        types = self.network.graph.types
        return {name: box if len(self.outputs) == 1 else Box.whole(types[name].shape) for name in self.outputs}

    def bytes_of(self, value: str, box: Box) -> int:
        return math.prod(box.shape) * self.network.graph.types[value].dtype.bytes

    def parameter_bytes(self, demand: Demand) -> int:
        return sum([self.bytes_of(name, box) for name, box in demand.parameters.items()])


@lru_cache(maxsize=16)
def operators(network: Network) -> tuple[Operator, ...]:
    """Units of a network, in order; the same objects for the same network, so that results stay memoised."""
    pairs = enumerate(zip(network.units, network.signatures, strict=True))
    return tuple(
        Operator(network, index, unit.name, unit.kind, signature, unit.inputs, unit.outputs)
        for index, (unit, signature) in pairs
    )


def _trace(operator: Operator, box: Box) -> Demand | None:
    graph = operator.network.graph
    makers = {value: node for node in operator.nodes for value in node.outputs}
    position = {node.name: index for index, node in enumerate(operator.nodes)}
    calls: dict[tuple[str, Box], Call] = {}
    reads: dict[Read, None] = {}
    parameters: dict[str, Box] = {}
    todo = [(operator.outputs[0], box)]
    multiply_adds = other = 0
    while todo:
        value, wanted = todo.pop()
        node = makers[value]
        if (node.name, wanted) in calls:
            continue
        types = graph.input_types(node)
        found = piece(node.op, types, wanted)
        if found is None:
            return None
        calls[node.name, wanted] = Call(node, wanted, found)
        sliced = [TensorType(part.shape, each.dtype) for each, part in zip(types, found.inputs, strict=True)]
        made = [TensorType(wanted.shape, graph.types[value].dtype)]
        products = node.op.multiply_adds(sliced, made)
        multiply_adds += products
        other += node.op.flops(sliced, made) - 2 * products
        for name, (part, order) in zip(node.inputs, found.reads, strict=True):
            if name in graph.constants:
                parameters[name] = part.hull(parameters.get(name, part))
            elif name in makers:
                todo.append((name, part))
            elif all(part.shape):
                reads[Read(name, part, order)] = None
    ordered = sorted(calls.values(), key=lambda call: position[call.node.name])
    return Demand(box, tuple(ordered), tuple(reads), parameters, multiply_adds, other)


def _whole(operator: Operator, box: Box) -> Demand | None:
    """Demand of all of an operator of unknown access: every op on whole values."""
    graph = operator.network.graph
    whole = {name: Box.whole(kind.shape) for name, kind in graph.types.items()}
    if box != whole[operator.outputs[0]]:
        return None
    calls, multiply_adds, other = [], 0, 0
    for node in operator.nodes:
        types, made = graph.input_types(node), graph.output_types(node)
        products = node.op.multiply_adds(types, made)
        multiply_adds, other = multiply_adds + products, other + node.op.flops(types, made) - 2 * products
        calls.append(Call(node, whole[node.outputs[0]], Piece(node.op, tuple(whole[name] for name in node.inputs))))
    reads = tuple(Read(name, whole[name], AS_IT_LIES) for name in operator.inputs)
    parameters = {name: whole[name] for name in operator.parameters}
    return Demand(box, tuple(calls), reads, parameters, multiply_adds, other)


def with_part(operator: Operator, demand: Demand, part: ParameterPart) -> Demand:
    """Demand of the same box with a part of the parameters: a partial sum, without the ops after the anchor."""
    anchor = operator.anchor
    assert anchor is not None
    (call,) = (each for each in demand.calls if each.node is anchor)
    graph, weight = operator.network.graph, anchor.inputs[1]
    sliced = piece(anchor.op, graph.input_types(anchor), call.box, part=part)
    assert sliced is not None
    boxes = dict(zip(anchor.inputs, sliced.inputs, strict=False))
    reads = tuple(
        replace(read, box=boxes[read.value])
        if read.value == anchor.inputs[0] and read.box == call.piece.inputs[0]
        else read
        for read in demand.reads
    )
    whole, own = math.prod(demand.parameters[weight].shape), math.prod(boxes[weight].shape)
    return Demand(
        demand.box,
        (Call(anchor, call.box, sliced),),
        reads,
        {**demand.parameters, weight: boxes[weight]},
        demand.multiply_adds * own // whole,
        demand.other_flops * own // whole + math.prod(demand.box.shape),
    )


#: Function that reads a box of a value in an order.
Reader = Callable[[str, Box, Order], Array]


def run_calls(calls: Iterable[Call], read: Reader, known: dict[tuple[str, Box], Array]) -> None:
    """Compute calls in order into ``known``, by value and box; missing boxes are read."""
    for call in calls:
        wanted = zip(call.node.inputs, call.piece.reads, strict=False)  # a partial sum has no bias
        arrays = [known[name, box] if (name, box) in known else read(name, box, order) for name, (box, order) in wanted]
        first, *others = call.piece.evaluate(arrays)
        known[call.node.outputs[0], call.box] = first
        for name, made in zip(call.node.outputs[1:], others, strict=True):
            known[name, Box.whole(made.shape)] = made
