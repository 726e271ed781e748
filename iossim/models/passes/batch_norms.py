"""Batch norms, scales and padding of imported graphs, folded for inference.

A scale and shift per channel after a convolution is moved into its weight and bias:
``m * (w * x + b) + s = (m * w) * x + (m * b + s)``. Older exporters write a batch norm as a normalisation, a product
and a sum with constants per channel; each of them folds too, into a batch norm if there is no convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import add

from iossim.ir.constants import Constant, FilledConstant
from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.op import Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import BatchNorm
from iossim.ir.ops.pool import MaxPool
from iossim.ir.ops.reshape import Expand, Pad, Reshape
from iossim.ir.ops.unary import Cast, Clip, Relu
from iossim.ir.types import DType, TensorType
from iossim.models.passes.graph_pass import local_pass, with_nodes
from iossim.models.passes.simplification import Derived, RetypedConstant, folded

#: A multiplier and a shift, in fp32, of one number per channel each.
_Affine = tuple[Constant, Constant]


def batch_norm_folding(graph: Graph) -> Graph:
    """Folds a scale and shift into the preceding convolution or batch norm, if nothing else reads that one's output.

    The op keeps its name and makes the output of the folded op; its weights get new names.

    Invariant: the outputs are unchanged up to rounding.
    """
    constants = dict(graph.constants)
    nodes: list[Node] = []
    maker: dict[str, int] = {}  # for each value the index in nodes of its producer
    for node in graph.nodes:
        data, affine = _channel_affine(graph, node)
        host = nodes[maker[data]] if affine and data in maker else None
        is_private = graph.consumers.get(data) == (node,) and data not in graph.returned
        is_known = host is not None and all(name in constants for name in host.inputs[1:])
        if host and affine and is_private and is_known and isinstance(host.op, Conv | BatchNorm):
            nodes[maker[data]] = _absorb(host, affine, node.outputs, constants, graph)
            maker[node.outputs[0]] = maker[data]
        else:
            maker.update(dict.fromkeys(node.outputs, len(nodes)))
            nodes.append(node)
    return with_nodes(graph, nodes, constants)


@local_pass("pad")
def pad_folding(graph: Graph, pad: Node[Pad], constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Folds zeros around images into the padding of the convolution that alone reads them, or of the maximum if none of
    their numbers is negative. Keras pads images before it convolves or pools them in strides.

    Invariant: the outputs are unchanged up to rounding.
    """
    x, sides, reader = pad.inputs[0], pad.op.pads, graph.private_consumer(pad.outputs[0])
    before, after = sides[: len(sides) // 2], sides[len(sides) // 2 :]
    is_around = (pad.op.mode, pad.op.value) == ("constant", 0.0) and not any((*before[:2], *after[:2]))
    if reader is None or pad.outputs[0] in reader.inputs[1:] or min(sides) < 0 or not is_around:
        return {}
    op, makers = reader.op, [maker.op for maker in graph.makers(x)]
    is_positive = any(isinstance(maker, Relu) or (isinstance(maker, Clip) and maker.minimum == 0) for maker in makers)
    is_wide = isinstance(op, MaxPool) and max(*op.pads, *sides) * 2 > min(op.kernel)
    if not isinstance(op, Conv) and (is_wide or not is_positive or not isinstance(op, MaxPool) or op.ceil_mode):
        return {}
    folded_op = replace(op, pads=tuple(map(add, op.pads, (*before[2:], *after[2:]))))
    return {pad.name: [], reader.name: [replace(reader, op=folded_op, inputs=(x, *reader.inputs[1:]))]}


@local_pass("mul")
def layer_scale_folding(graph: Graph, scale: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    """Folds a factor for each column, or one, into the constant matrix before it, and into a bias between them.

    Vision transformers scale the output of each branch so (layer scale; Touvron et al., 2021, arXiv:2103.17239), and
    Whisper its queries.

    Invariant: the outputs are unchanged up to rounding.
    """
    data, *factors = sorted(scale.inputs, key=graph.constants.__contains__)
    is_known = len(factors) == 1 and factors[0] in graph.constants
    nodes = _scaled(graph, data, factors[0]) if is_known else []
    made: dict[str, list[Node]] = {scale.name: []} if nodes else {}
    for node in nodes:
        scaled = Derived(graph.types, constants, f"{node.name}.scaled")
        vector = scaled.add(Reshape((graph.types[factors[0]].elements,)), factors[0])
        inputs = tuple(scaled.add(Mul(), each, vector) if each in graph.constants else each for each in node.inputs)
        made[node.name] = [replace(node, inputs=inputs, outputs=scale.outputs if node is nodes[0] else node.outputs)]
    return made


def _scaled(graph: Graph, value: str, factors: str) -> list[Node]:
    """The product with a constant matrix that makes ``value``, after the sum with a constant bias if there is one; none
    if there is no such product, or if the ``factors`` are not one for each column.
    """
    columns, nodes = graph.types[value].shape[-1:], list[Node]()
    node = graph.private_producer(value)
    if node is not None and isinstance(node.op, Add) and len(node.inputs) == 2:
        data, bias = sorted(node.inputs, key=graph.constants.__contains__)
        if bias in graph.constants and graph.types[bias].shape == columns:
            nodes, node = [node], graph.private_producer(data)
    if node is None or not isinstance(node.op, MatMul) or node.inputs[1] not in graph.constants:
        return []
    *ones, size = graph.types[factors].shape or (1,)
    is_row = size in (1, *columns) and columns == graph.types[node.inputs[1]].shape[1:] and set(ones) <= {1}
    return [*nodes, node] if is_row else []


def _channel_affine(graph: Graph, node: Node) -> tuple[str, _Affine | None]:
    """The value that a node scales and shifts by constants, and by what; None for any other node."""
    if not isinstance(node.op, BatchNorm) and not (isinstance(node.op, Mul | Add) and len(node.inputs) == 2):
        return "", None
    data, *parameters = sorted(node.inputs, key=graph.constants.__contains__)
    shape = graph.types[data].shape
    fits = graph.types[data] == graph.types[node.outputs[0]] and graph.constants.keys() >= set(parameters)
    if not fits or len(shape) < 2:
        return "", None
    if not isinstance(node.op, BatchNorm) and not per_channel(graph.types[parameters[0]].shape, shape):
        return "", None
    return data, _affine(node.op, [_wide(graph.constants[name]) for name in parameters], shape[1])


def _affine(op: Op, parameters: Sequence[Constant], channels: int) -> _Affine:
    """The effect of a batch norm, or of a product or sum with one number per channel or a single one."""
    zeros, ones = (FilledConstant(TensorType((channels,), DType.FLOAT32), number) for number in (0.0, 1.0))
    if not isinstance(op, BatchNorm):
        given = folded(Expand((channels,)), folded(Reshape((-1,)), parameters[0]))
        return (given, zeros) if isinstance(op, Mul) else (ones, given)
    scale, *_, variance = parameters
    row = Reshape((1, channels))
    multiplier = folded(op, folded(row, ones), scale, zeros, zeros, variance)
    shift = folded(op, folded(row, zeros), *parameters)
    return folded(Reshape((channels,)), multiplier), folded(Reshape((channels,)), shift)


def _wide(constant: Constant) -> Constant:
    return folded(Cast(str(DType.FLOAT32)), constant)


def per_channel(parameter: Sequence[int], shape: Sequence[int]) -> bool:
    """True if a parameter, broadcast to ``shape``, has one number per channel (or a single one)."""
    aligned = [1] * (len(shape) - len(parameter)) + list(parameter)
    return all(size == 1 for axis, size in enumerate(aligned) if axis != 1)


def _absorb(
    host: Node, affine: _Affine, outputs: tuple[str, ...], constants: dict[str, Constant], graph: Graph
) -> Node:
    """The host with ``affine`` folded into its weight (or scale) and bias, which are added to ``constants``."""
    (x, weight, *rest), (multiplier, shift) = host.inputs, affine
    own, of_filters = constants[weight].type, Reshape((-1, *[1] * (len(constants[weight].type.shape) - 1)))
    scaled = folded(Mul(), _wide(constants[weight]), folded(of_filters, multiplier))
    bias = folded(Add(), folded(Mul(), _wide(constants[rest[0]]), multiplier), shift) if rest else shift
    names = []
    for what, made in (("weight", scaled), ("bias", bias)):
        names.append(free_name(f"{host.name}.folded_{what}", {*graph.types, *constants}))
        constants[names[-1]] = RetypedConstant(replace(made.type, dtype=own.dtype), made)
    return replace(host, inputs=(x, *names, *rest[1:]), outputs=outputs)
