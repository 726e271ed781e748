"""Units as drawn in the papers, patterns of a few ops; and the kinds of units.

A pattern ends with one op, the unit's *last*, and the outputs of its other ops are read only inside it. A unit's kind
lists its ops, such as ``Conv-Add-Relu``, or names the function that a few of them compute (an unfused GELU).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from iossim.ir.attention import attentions_in, spelt_attention
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Unit, make_unit
from iossim.ir.op import Array, Role
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.ir.ops.unary_functions import FUNCTIONS
from iossim.ir.types import DType

#: A unit of more parts than this is described as having element-wise ops, without listing them.
_MOST_PARTS = 5
#: Length of the longest recognised decomposition: the approximation of GELU takes eight ops.
_LONGEST = 9
#: Functions that exporters decompose into several ops. They are recognised by their values at these points.
_SPELT_OUT = ("gelu", "gelu_tanh", "swish", "hard_swish", "mish", "softplus", "softsign")
_POINTS = np.linspace(-6.0, 6.0, 97, dtype=np.float32)


def unit_kind(graph: Graph, nodes: Sequence[Node]) -> str:
    """The kind of a unit of several ops, in order, such as ``Matmul-Bias-Gelu``; views are omitted.

    ``SepConv`` is depthwise and pointwise, ``Bias`` a sum with a constant; a recognised function, and an attention,
    has its own name.
    """
    attentions = attentions_in(graph, nodes)
    inside = {node.name for attention in attentions.values() for node in attention.nodes[1:]}
    working = [node for node in nodes if node.op.role is not Role.VIEW and node.name not in inside]
    if len(working) < 2:
        return "Attention" if attentions else (working or nodes)[-1].op.unit_kind
    parts: list[str] = []
    anchors: list[bool] = []
    begin = 0
    while begin < len(working):
        node = working[begin]
        end, name = _spelt_out(graph, working, begin)
        is_anchor = not node.op.is_elementwise
        if parts and is_anchor and isinstance(node.op, Conv) and anchors[-1] and parts[-1] == "Conv":
            parts[-1], name = "SepConv", ""
        elif not name:
            name = "Bias" if _is_bias(graph, node) else node.op.unit_kind
            name = "Attention" if node.name in attentions else name
        if name:
            parts.append(name)
            anchors.append(is_anchor)
        begin = end
    if len(parts) > _MOST_PARTS:
        parts = _without_details(parts, anchors)
    return "-".join(parts)


def _is_bias(graph: Graph, node: Node) -> bool:
    return isinstance(node.op, Add) and any(value in graph.constants for value in node.inputs)


def _without_details(parts: Sequence[str], anchors: Sequence[bool]) -> list[str]:
    found: list[str] = []
    for part, is_anchor in zip(parts, anchors, strict=True):
        if is_anchor:
            found.append(part)
        elif found[-1:] != ["Elementwise"]:
            found.append("Elementwise")
    return found


def _spelt_out(graph: Graph, nodes: Sequence[Node], begin: int) -> tuple[int, str]:
    """End of the longest run from ``begin`` that computes a known function, and its name; or one op, unnamed.

    The run is recognised by its values: the ops are evaluated at points on both sides of zero.
    """
    for end in range(min(len(nodes), begin + _LONGEST), begin + 1, -1):
        computed = _evaluate(graph, nodes[begin:end])
        if computed is None:
            continue
        expected = _expected()
        same = (np.abs(computed - expected) <= 1e-4 + 1e-4 * np.abs(expected)).all(axis=1)
        if same.any():
            name = _SPELT_OUT[int(same.argmax())]
            return end, "GeluTanh" if name == "gelu_tanh" else FUNCTIONS[name].onnx_type
    return begin + 1, ""


@cache
def _expected() -> Array:
    """The values of each of the functions at the points, shape ``[functions, points]``."""
    functions = (FUNCTIONS[name] for name in _SPELT_OUT)
    return np.stack([each.compute(_POINTS, *(value for _, value in each.parameters)) for each in functions])


def _evaluate(graph: Graph, nodes: Sequence[Node]) -> Array | None:
    """A run of element-wise ops at the points, or None if it is not a function of one value with no other readers."""
    made = {value for node in nodes for value in node.outputs}
    free = {value for node in nodes for value in node.inputs} - made - graph.constants.keys()
    scalars = [value for node in nodes for value in node.inputs if value in graph.constants]
    names = {node.name for node in nodes}
    passed_on = [value for node in nodes[:-1] for value in node.outputs]
    if (
        len(free) != 1
        or any(graph.types[value].elements != 1 or not graph.constants[value].is_at_hand for value in scalars)
        or not all(node.op.is_elementwise for node in nodes)
        or any(graph.types[value].dtype is not DType.FLOAT32 for value in (*free, *made, *scalars))
        or any(value in graph.returned for value in passed_on)
        or any(reader.name not in names for value in passed_on for reader in graph.consumers[value])
    ):
        return None
    values: dict[str, Array] = dict.fromkeys(free, _POINTS)
    values.update({value: graph.constants[value].load().reshape(()) for value in scalars})
    with np.errstate(all="ignore"):
        for node in nodes:
            values.update(zip(node.outputs, node.op.evaluate([values[value] for value in node.inputs]), strict=True))
    return values[nodes[-1].outputs[0]]


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
