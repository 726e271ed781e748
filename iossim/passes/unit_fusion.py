"""Unit policies: how the ops of a graph are fused into schedule units.

A policy is a function from a graph to units. Every unit it makes is a tree of ops that drains into one of them, its
*last* op: the outputs of all others are read inside the unit alone. Such units never wait for one another in a circle,
since whatever reaches a unit reaches its last op, so that a circle of units would be a circle of last ops; and the
order of their last ops in the graph is a topological order of the units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from iossim.errors import OptionError, did_you_mean
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Block, Network, Unit, make_unit
from iossim.ir.op import Op
from iossim.ir.ops.add import Add
from iossim.ir.ops.clip import Clip
from iossim.ir.ops.concat import Concat
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.foreign import Foreign
from iossim.ir.ops.gemm import Gemm
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Nary
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.relu import Relu
from iossim.ir.ops.sigmoid import Sigmoid
from iossim.ir.ops.unary import Unary

UnitPolicy = Callable[[Graph], tuple[Unit, ...]]

#: The units that the model's author gave; what an ONNX file, which gives none, is fused by is ``fused``.
MODEL = "model"

_ACTIVATIONS = frozenset(
    {
        "celu",
        "elu",
        "gelu",
        "gelu_tanh",
        "hard_sigmoid",
        "hard_swish",
        "leaky_relu",
        "mish",
        "selu",
        "softplus",
        "swish",
        "tanh",
    }
)

#: A pattern tells whether a unit ends with a node: the unit's kind and its other nodes, or None.
_Match = tuple[str, list[Node]]
_Pattern = Callable[[Graph, Node], _Match | None]


def no_fusion(graph: Graph) -> tuple[Unit, ...]:
    """Each op a unit of its own."""
    return _fuse(graph, ())


def conv_relu(graph: Graph) -> tuple[Unit, ...]:
    """Conv-Relu (clip and sigmoid too) and concat-of-adds: the units of Inception and SqueezeNet."""
    return _fuse(graph, (_conv_activation, _concat_of_adds))


def relu_sepconv(graph: Graph) -> tuple[Unit, ...]:
    """Relu-SepConv with the sum before it, Relu-Conv and concat-of-adds: the units of NasNet and RandWire."""
    return _fuse(graph, (_relu_separable_convolution, _relu_conv, _concat_of_adds))


def fused(graph: Graph) -> tuple[Unit, ...]:
    """All that an inference engine fuses: separable convolutions, activations behind their producers, concat-of-adds."""
    return _fuse(
        graph,
        (
            _relu_separable_convolution,
            _separable_convolution,
            _conv_activation,
            _product_activation,
            _add_activation,
            _concat_of_adds,
        ),
    )


_POLICIES: dict[str, UnitPolicy] = {
    "conv-relu": conv_relu,
    "relu-sepconv": relu_sepconv,
    "fused": fused,
    "none": no_fusion,
}
#: The names that :func:`unit_policy` and :func:`with_units` know.
UNIT_POLICIES: tuple[str, ...] = (MODEL, *_POLICIES)


def unit_policy(name: str) -> UnitPolicy:
    """The policy of that name, ``model`` being ``fused`` for a bare graph; raises OptionError for an unknown one."""
    if name == MODEL:
        return fused
    if name not in _POLICIES:
        raise OptionError(f"unknown unit policy {name!r}; {did_you_mean(name, UNIT_POLICIES)}")
    return _POLICIES[name]


def with_units(network: Network, policy: str) -> Network:
    """The network fused by another policy; a unit belongs to the block that its last op was in.

    The blocks stay in topological order, since an op is never in an earlier block than what it reads.
    """
    if policy == MODEL:
        return network
    units = unit_policy(policy)(network.graph)
    block_of_unit = {unit: index for index, block in enumerate(network.blocks) for unit in block.units}
    block_of_node = {node: block_of_unit[index] for index, unit in enumerate(network.units) for node in unit.nodes}
    members: list[list[int]] = [[] for _ in network.blocks]
    for index, unit in enumerate(units):
        members[block_of_node[unit.nodes[-1]]].append(index)
    blocks = tuple(
        Block(block.name, tuple(inside)) for block, inside in zip(network.blocks, members, strict=True) if inside
    )
    return replace(network, units=units, blocks=blocks)


def _fuse(graph: Graph, patterns: Sequence[_Pattern]) -> tuple[Unit, ...]:
    """Units by the first pattern that fits an op and finds its ops free; an op that none fits is a unit alone."""
    position = {node.name: index for index, node in enumerate(graph.nodes)}
    taken: set[str] = set()
    units: list[Unit] = []
    for pattern in patterns:
        for node in graph.nodes:
            match = pattern(graph, node) if node.name not in taken else None
            if match is not None and taken.isdisjoint(other.name for other in match[1]):
                kind, others = match
                members = [node, *others]
                taken.update(member.name for member in members)
                units.append(make_unit(graph, node.name, kind, [position[member.name] for member in members]))
    units += [
        make_unit(graph, node.name, _kind(node.op), [index])
        for index, node in enumerate(graph.nodes)
        if node.name not in taken
    ]
    return tuple(sorted(units, key=lambda unit: unit.nodes[-1]))


def _relu_separable_convolution(graph: Graph, node: Node) -> _Match | None:
    """[Sum,] ReLU, depthwise, pointwise."""
    separable = _separable_convolution(graph, node)
    if separable is None:
        return None
    (depthwise,) = separable[1]
    relu = _private_producer(graph, depthwise.inputs[0])
    if relu is None or not isinstance(relu.op, Relu):
        return None
    return "Relu-SepConv", [depthwise, relu, *_private_sums(graph, relu)]


def _separable_convolution(graph: Graph, node: Node) -> _Match | None:
    """Depthwise, pointwise."""
    if not (isinstance(node.op, Conv) and node.op.groups == 1 and set(_kernel(graph, node)) == {1}):
        return None
    depthwise = _private_producer(graph, node.inputs[0])
    if depthwise is None or not isinstance(depthwise.op, Conv):
        return None
    channels = graph.types[depthwise.inputs[0]].shape[1]
    filters = graph.types[depthwise.inputs[1]].shape[0]
    is_depthwise = depthwise.op.groups == channels == filters and channels > 1
    return ("SepConv", [depthwise]) if is_depthwise else None


def _conv_activation(graph: Graph, node: Node) -> _Match | None:
    if not _is_activation(node.op):
        return None
    producer = _private_producer(graph, node.inputs[0])
    if producer is None or not isinstance(producer.op, Conv | ConvTranspose):
        return None
    return f"{_kind(producer.op)}-{_kind(node.op)}", [producer]


def _product_activation(graph: Graph, node: Node) -> _Match | None:
    producer = _private_producer(graph, node.inputs[0]) if _is_activation(node.op) else None
    if producer is None or not isinstance(producer.op, Gemm | MatMul):
        return None
    return f"{_kind(producer.op)}-{_kind(node.op)}", [producer]


def _add_activation(graph: Graph, node: Node) -> _Match | None:
    sums = _private_sums(graph, node) if _is_activation(node.op) else []
    return (f"Add-{_kind(node.op)}", sums) if sums else None


def _is_activation(op: Op) -> bool:
    """Whether an op is what engines compute in the epilogue of a product."""
    return isinstance(op, Relu | Clip | Sigmoid) or (isinstance(op, Unary) and op.function in _ACTIVATIONS)


def _relu_conv(graph: Graph, node: Node) -> _Match | None:
    producer = _private_producer(graph, node.inputs[0]) if isinstance(node.op, Conv) else None
    return ("Relu-Conv", [producer]) if producer is not None and isinstance(producer.op, Relu) else None


def _concat_of_adds(graph: Graph, node: Node) -> _Match | None:
    if not isinstance(node.op, Concat):
        return None
    return "Concat", _private_sums(graph, node)


def _private_sums(graph: Graph, node: Node) -> list[Node]:
    """The sums of values of one shape that ``node`` alone reads."""
    found = dict.fromkeys(node.inputs)
    producers = (_private_producer(graph, value) for value in found)
    return [producer for producer in producers if producer is not None and _is_plain_sum(graph, producer)]


def _is_plain_sum(graph: Graph, node: Node) -> bool:
    """A sum without broadcasting, of values computed at run time."""
    shapes = {graph.types[value].shape for value in (*node.inputs, *node.outputs)}
    return isinstance(node.op, Add) and len(shapes) == 1 and graph.constants.keys().isdisjoint(node.inputs)


def _private_producer(graph: Graph, value: str) -> Node | None:
    """The node that makes ``value``, if that is its one output and one node alone reads it."""
    producer = graph.producer.get(value)
    if producer is None or len(producer.outputs) != 1 or value in graph.outputs:
        return None
    return producer if len(graph.consumers[value]) == 1 else None


def _kernel(graph: Graph, node: Node) -> Iterator[int]:
    return iter(graph.types[node.inputs[1]].shape[2:])


def _kind(op: Op) -> str:
    """The kind of a unit of one op."""
    if isinstance(op, MaxPool | AveragePool | GlobalAveragePool):
        return "Pool"
    if isinstance(op, Foreign):
        return op.op_type
    if isinstance(op, Unary | Nary | Reduce):
        return op.to_onnx()[0]
    return "-".join(part.capitalize() for part in op.kind.split("_"))
