"""Units as drawn in the papers, patterns of a few ops.

A pattern ends with one op, the unit's *last*, and the outputs of its other ops are read only inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iossim.ir.attention import spelt_attention
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Unit, make_unit
from iossim.ir.op import Role
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu

#: The unit's kind and its nodes besides the last, or None if a pattern does not match.
Match = tuple[str, list[Node]] | None
Pattern = Callable[[Graph, Node], Match]


def no_fusion(graph: Graph) -> tuple[Unit, ...]:
    """Each op a unit of its own."""
    return _fuse(graph, ())


def conv_relu(graph: Graph) -> tuple[Unit, ...]:
    """Conv-Relu (or another activation) and concat-of-adds: the units of Inception and SqueezeNet."""
    return _fuse(graph, (_conv_activation, _concat_of_adds))


def relu_sepconv(graph: Graph) -> tuple[Unit, ...]:
    """Relu-SepConv with the sum before it, Relu-Conv and concat-of-adds: the units of NasNet and RandWire."""
    return _fuse(graph, (relu_separable_convolution, _relu_conv, _concat_of_adds))


def _fuse(graph: Graph, patterns: Sequence[Pattern]) -> tuple[Unit, ...]:
    """Units by the first pattern that matches an op and finds its ops free; an unmatched op is a unit alone."""
    taken: set[str] = set()
    units: list[Unit] = []
    for pattern in patterns:
        for node in graph.nodes:
            match = pattern(graph, node) if node.name not in taken else None
            if match is not None and taken.isdisjoint(other.name for other in match[1]):
                kind, others = match
                members = [node, *others]
                taken.update(member.name for member in members)
                units.append(make_unit(graph, node.name, kind, [graph.position[member.name] for member in members]))
    units += [
        make_unit(graph, node.name, node.op.unit_kind, [index])
        for index, node in enumerate(graph.nodes)
        if node.name not in taken
    ]
    return tuple(sorted(units, key=lambda unit: unit.nodes[-1]))


def relu_separable_convolution(graph: Graph, node: Node) -> Match:
    """[Sum,] ReLU, depthwise, pointwise."""
    separable = separable_convolution(graph, node)
    if separable is None:
        return None
    (depthwise,) = separable[1]
    relu = graph.private_producer(depthwise.inputs[0])
    if relu is None or not isinstance(relu.op, Relu):
        return None
    return "Relu-SepConv", [depthwise, relu, *private_sums(graph, relu)]


def separable_convolution(graph: Graph, node: Node) -> Match:
    """Depthwise, pointwise."""
    if not (isinstance(node.op, Conv) and node.op.groups == 1 and set(graph.types[node.inputs[1]].shape[2:]) == {1}):
        return None
    depthwise = graph.private_producer(node.inputs[0])
    if depthwise is None or not isinstance(depthwise.op, Conv):
        return None
    channels = graph.types[depthwise.inputs[0]].shape[1]
    filters = graph.types[depthwise.inputs[1]].shape[0]
    is_depthwise = depthwise.op.groups == channels == filters and channels > 1
    return ("SepConv", [depthwise]) if is_depthwise else None


def attention_before(graph: Graph, node: Node) -> Match:
    """The ops of a fused attention kernel that ends with a product, or with the transpose that joins its heads."""
    attention = spelt_attention(graph, node)
    return ("Attention", list(attention.nodes[1:])) if attention else None


def _conv_activation(graph: Graph, node: Node) -> Match:
    is_activation = node.op.role is Role.ACTIVATION
    producer = graph.private_producer(node.inputs[0]) if is_activation else None
    if producer is None or producer.op.kind not in ("conv", "conv_transpose", "conv_nhwc"):
        return None
    return f"{producer.op.unit_kind}-{node.op.unit_kind}", [producer]


def _relu_conv(graph: Graph, node: Node) -> Match:
    producer = graph.private_producer(node.inputs[0]) if isinstance(node.op, Conv) else None
    return ("Relu-Conv", [producer]) if producer is not None and isinstance(producer.op, Relu) else None


def _concat_of_adds(graph: Graph, node: Node) -> Match:
    return ("Concat", private_sums(graph, node)) if isinstance(node.op, Concat) else None


def private_sums(graph: Graph, node: Node) -> list[Node]:
    """The sums of values of one shape that only ``node`` reads."""
    producers = (graph.private_producer(value) for value in dict.fromkeys(node.inputs))
    return [producer for producer in producers if producer is not None and _is_plain_sum(graph, producer)]


def _is_plain_sum(graph: Graph, node: Node) -> bool:
    """Whether this is a sum without broadcasting, of values computed at run time."""
    shapes = {graph.types[value].shape for value in (*node.inputs, *node.outputs)}
    return isinstance(node.op, Add) and len(shapes) == 1 and graph.constants.keys().isdisjoint(node.inputs)
