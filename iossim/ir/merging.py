"""Operator merge: several convolutions of one input as one stacked convolution (IOS thesis, section 3.1).

A kernel that is smaller, or padded differently, is embedded in a larger kernel of zeros. With stride ``s``,
dilation ``d`` and padding ``p`` a convolution computes ``out[o] = sum_k w[k] * x[o*s + k*d - p]``; placing ``w`` at
offset ``(P - p) / d`` of a larger kernel padded by ``P`` computes the same outputs, if ``d`` divides ``P - p``.
So convolutions merge exactly if they read the same input with the same strides and dilations, are dense
(one group), produce the same spatial size, apply the same activation, and their paddings agree modulo ``d``.
The published implementation matches paddings to kernel sizes instead, which shifts even kernels at stride 2,
and merges grouped with dense convolutions; both change the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from iossim.base.errors import ScheduleError
from iossim.ir.network import Network, Unit
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.types import TensorType

#: Unit shapes that may merge: a convolution, alone or followed by one of these element-wise ops.
_ACTIVATIONS = ("relu", "clip", "sigmoid")


@dataclass(frozen=True)
class MergedConvolution:
    """The stacked convolution of several units.

    ``op`` applies to the shared input and a weight of type ``weight``; part ``i`` has the output channels
    ``[channel_begin[i], channel_begin[i + 1])``, and its kernel is at ``offsets[i]``.
    """

    op: Conv
    input: str
    weight: TensorType
    output: TensorType
    has_bias: bool
    activation: str
    channel_begin: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]

    def stack(self, parts: Sequence[Sequence[Array]]) -> tuple[Array, Array | None]:
        """The merged weight ``[sum M, C, *kernel]`` and bias ``[sum M]`` from each ``[M, C, *smaller]`` and its bias.

        A part that has none has zeros; the merged bias is None if no part has one.
        """
        merged = np.zeros(self.weight.shape, dtype=parts[0][0].dtype)
        bias = np.zeros(self.weight.shape[0], dtype=merged.dtype)
        for part, (weight, *own) in enumerate(parts):
            rows = slice(self.channel_begin[part], self.channel_begin[part + 1])
            window = tuple(
                slice(offset, offset + size) for offset, size in zip(self.offsets[part], weight.shape[2:], strict=True)
            )
            merged[(rows, slice(None), *window)] = weight
            for part_bias in own:
                bias[rows] = part_bias
        return merged, bias if self.has_bias else None


def merge_keys(network: Network, units: Sequence[int]) -> list[str | None]:
    """Key of each unit, equal for units that may merge; None for a unit that merges with nothing."""
    return [_merge_key(network, network.units[unit]) for unit in units]


def merged_convolution(network: Network, units: Sequence[int]) -> MergedConvolution:
    """The convolution that computes all of ``units`` at once; raises ScheduleError if they do not merge."""
    parts = [network.units[unit] for unit in units]
    names = ", ".join(part.name for part in parts)
    keys = {_merge_key(network, part) for part in parts}
    if len(parts) < 2 or len(keys) != 1 or None in keys:
        raise ScheduleError(f"units {names} do not merge: they need one input, stride, dilation, size and activation")
    graph = network.graph
    nodes = [network.unit_nodes(part)[0] for part in parts]
    ops = [cast(Conv, node.op) for node in nodes]
    weights = [graph.types[node.inputs[1]] for node in nodes]
    x = graph.types[nodes[0].inputs[0]]
    y = graph.types[nodes[0].outputs[0]]
    rank = len(ops[0].strides)
    strides, dilations = ops[0].strides, ops[0].dilations
    before = tuple(max(op.pads[axis] for op in ops) for axis in range(rank))
    offsets = tuple(tuple((before[axis] - op.pads[axis]) // dilations[axis] for axis in range(rank)) for op in ops)
    kernel = tuple(
        max(offset[axis] + weight.shape[2 + axis] for offset, weight in zip(offsets, weights, strict=True))
        for axis in range(rank)
    )
    after = tuple(
        max(0, (y.shape[2 + axis] - 1) * strides[axis] + dilations[axis] * (kernel[axis] - 1) + 1
            - before[axis] - x.shape[2 + axis])
        for axis in range(rank)
    )  # fmt: skip
    channel_begin = [0]
    for weight in weights:
        channel_begin.append(channel_begin[-1] + weight.shape[0])
    op = Conv(strides, (*before, *after), dilations, 1)
    weight = TensorType((channel_begin[-1], weights[0].shape[1], *kernel), weights[0].dtype)
    (output,) = op.infer([x, weight])
    if output.shape[2:] != y.shape[2:]:
        raise ScheduleError(f"units {names} do not merge: the merged convolution has another output size")
    last = network.unit_nodes(parts[0])[-1].op
    return MergedConvolution(
        op,
        nodes[0].inputs[0],
        weight,
        output,
        any(len(node.inputs) > 2 for node in nodes),
        "" if isinstance(last, Conv) else last.signature,
        tuple(channel_begin),
        offsets,
    )


def _merge_key(network: Network, unit: Unit) -> str | None:
    nodes = network.unit_nodes(unit)
    if not nodes or not isinstance(nodes[0].op, Conv) or len(nodes) > 2 or unit.outputs != nodes[-1].outputs:
        return None
    if len(nodes) == 2 and (nodes[1].op.kind not in _ACTIVATIONS or nodes[1].inputs != nodes[0].outputs):
        return None
    graph, node, op = network.graph, nodes[0], nodes[0].op
    if op.groups != 1 or node.inputs[0] in graph.constants or any(v not in graph.constants for v in node.inputs[1:]):
        return None
    rank = len(op.strides)
    phase = tuple(pad % dilation for pad, dilation in zip(op.pads[:rank], op.dilations, strict=True))
    y = graph.types[node.outputs[0]]
    activation = nodes[1].op.signature if len(nodes) == 2 else ""
    return f"{node.inputs[0]}|{op.strides}|{op.dilations}|{phase}|{y.shape[2:]}|{y.dtype}|{activation}"
