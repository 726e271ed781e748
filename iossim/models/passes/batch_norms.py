"""Batch norms and scales of imported graphs, folded for inference.

A scale and shift per channel after a convolution is moved into its weight and bias:
``m * (w * x + b) + s = (m * w) * x + (m * b + s)``. Older exporters write a batch norm as a normalisation, a product
and a sum with constants per channel; each of them folds too, into a batch norm if there is no convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.op import Array, Op, as_float32
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import BatchNorm, multiplier_and_shift
from iossim.ir.ops.reshape import Reshape
from iossim.ir.types import TensorType
from iossim.models.passes.graph_pass import GraphPass, with_nodes
from iossim.models.passes.simplification import folded


@dataclass(frozen=True, eq=False)
class ChannelAffine:
    """``y = multiplier * x + shift`` per channel, the effect of ``op`` with ``parameters``."""

    op: Op
    parameters: tuple[Constant, ...]
    channels: int

    def load(self) -> tuple[Array, Array]:
        """Multiplier and shift, each fp32 ``[channels]``."""
        arrays = [as_float32(constant.load()) for constant in self.parameters]
        if isinstance(self.op, BatchNorm):
            scale, bias, mean, variance = arrays
            return multiplier_and_shift(scale, bias, mean, variance, self.op.epsilon)
        given = np.broadcast_to(arrays[0].reshape(-1), (self.channels,))
        if isinstance(self.op, Mul):
            return given, np.zeros(self.channels, dtype=np.float32)
        return np.ones(self.channels, dtype=np.float32), given


@dataclass(frozen=True, eq=False)
class AffineConstant(Constant):
    """A weight ``[channels, ...]`` after the scale, or a bias ``[channels]`` (zero, if None) after scale and shift."""

    type: TensorType
    given: Constant | None
    affine: ChannelAffine
    is_bias: bool
    is_at_hand = False

    @property
    def is_absent(self) -> bool:
        return any(constant.is_absent for constant in (*filter(None, [self.given]), *self.affine.parameters))

    def load(self) -> Array:
        multiplier, made = self.affine.load()
        if self.given is not None:
            given = as_float32(self.given.load())
            scaled = given * multiplier.reshape(-1, *[1] * (given.ndim - 1))
            made = scaled + made if self.is_bias else scaled
        return made.astype(self.type.dtype.numpy, copy=False)


class BatchNormFolding(GraphPass):
    """Folds a scale and shift into the preceding convolution or batch norm, if nothing else reads that one's output.

    The op keeps its name and makes the output of the folded op; its weights get new names.

    Invariant: the outputs are unchanged up to rounding.
    """

    def apply(self, graph: Graph) -> Graph:
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
        return graph if len(nodes) == len(graph.nodes) else with_nodes(graph, nodes, constants)


class LayerScaleFolding(GraphPass):
    """Folds a factor for each column, or one, into the constant matrix before it, and into a bias between them.

    Vision transformers scale the output of each branch so (layer scale; Touvron et al., 2021, arXiv:2103.17239), and
    Whisper its queries.

    Invariant: the outputs are unchanged up to rounding.
    """

    def apply(self, graph: Graph) -> Graph:
        constants, made, gone = dict(graph.constants), dict[str, Node](), set[str]()
        for scale in graph.of_kind.get("mul", ()):
            data, *factors = sorted(scale.inputs, key=constants.__contains__)
            if len(factors) != 1 or not (nodes := _scaled(graph, data, factors[0])):
                continue
            vector = folded(Reshape((constants[factors[0]].type.elements,)), constants[factors[0]])
            for node in nodes:
                weight = next(value for value in node.inputs if value in constants)
                name = free_name(f"{node.name}.scaled", {*graph.types, *constants})
                constants[name] = folded(Mul(), constants[weight], vector)
                inputs = tuple(name if value == weight else value for value in node.inputs)
                made[node.name] = replace(node, inputs=inputs)
            made[nodes[0].name] = replace(made[nodes[0].name], outputs=scale.outputs)
            gone.add(scale.name)
        kept = [made.get(node.name, node) for node in graph.nodes if node.name not in gone]
        return with_nodes(graph, kept, constants) if gone else graph


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


def _channel_affine(graph: Graph, node: Node) -> tuple[str, ChannelAffine | None]:
    """The value that a node scales and shifts by constants, and the parameters; None for any other node."""
    if isinstance(node.op, BatchNorm):
        data, parameters = node.inputs[0], node.inputs[1:]
    elif isinstance(node.op, Mul | Add) and len(node.inputs) == 2:
        data, parameters = node.inputs[0], node.inputs[1:]
        if data in graph.constants:
            data, parameters = node.inputs[1], node.inputs[:1]
        if graph.types[data] != graph.types[node.outputs[0]]:
            return "", None
    else:
        return "", None
    shape = graph.types[data].shape
    if len(shape) < 2 or any(name not in graph.constants for name in parameters):
        return "", None
    if not isinstance(node.op, BatchNorm) and not _per_channel(graph.types[parameters[0]].shape, shape):
        return "", None
    return data, ChannelAffine(node.op, tuple(graph.constants[name] for name in parameters), shape[1])


def _per_channel(parameter: Sequence[int], shape: Sequence[int]) -> bool:
    """True if a parameter, broadcast to ``shape``, has one number per channel (or a single one)."""
    aligned = [1] * (len(shape) - len(parameter)) + list(parameter)
    return all(size == 1 for axis, size in enumerate(aligned) if axis != 1)


def _absorb(
    host: Node, affine: ChannelAffine, outputs: tuple[str, ...], constants: dict[str, Constant], graph: Graph
) -> Node:
    """The host with ``affine`` folded into its weight (or scale) and bias, which are added to ``constants``."""
    x, weight, *rest = host.inputs
    folded_weight = free_name(f"{host.name}.folded_weight", {*graph.types, *constants})
    constants[folded_weight] = AffineConstant(constants[weight].type, constants[weight], affine, False)
    folded_bias = free_name(f"{host.name}.folded_bias", {*graph.types, *constants})
    bias = constants[rest[0]] if rest else None
    bias_type = TensorType((affine.channels,), constants[weight].type.dtype)
    constants[folded_bias] = AffineConstant(bias_type, bias, affine, True)
    return replace(host, inputs=(x, folded_weight, folded_bias, *rest[1:]), outputs=outputs)
