"""Convolutions in one of three directions, as kernels whose batch may be divided: up to three each in training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from iossim.hardware.lowering.step import Operand, Step
from iossim.ir.graph import Node
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.ir.types import Precision, TensorType
from iossim.microbatching.gradients import BACKWARD, convolution_gradients


@dataclass(frozen=True)
class ConvKernel:
    """The op says the direction; ``inputs`` are those of the whole batch."""

    op: Conv | ConvBackwardData | ConvBackwardFilter
    inputs: tuple[TensorType, ...]
    precision: Precision = Precision.FP32

    @property
    def batch(self) -> int:
        """Images of the whole batch."""
        return self.inputs[0].shape[0]

    @property
    def with_images(self) -> int:
        """Number of leading inputs that are images; the rest are weights."""
        return 2 if isinstance(self.op, ConvBackwardFilter) else 1

    def of_batch(self, batch: int) -> ConvKernel:
        """The same kernel with another number of images."""
        count = self.with_images
        divided = (replace(value, shape=(batch, *value.shape[1:])) for value in self.inputs[:count])
        return replace(self, inputs=(*divided, *self.inputs[count:]))

    def step(self) -> Step:
        """Step to be lowered: the op alone."""
        outputs = self.op.infer(self.inputs)
        operands = tuple(Operand(value, is_weight=place >= self.with_images) for place, value in enumerate(self.inputs))
        return Step(self.op, operands, outputs, self.op.flops(self.inputs, outputs), self.precision)


FORWARD, BACKWARD_DATA, BACKWARD_FILTER = "forward", "backward_data", "backward_filter"
_DIRECTIONS = {Conv.kind: FORWARD, ConvBackwardData.kind: BACKWARD_DATA, ConvBackwardFilter.kind: BACKWARD_FILTER}


class KernelName(NamedTuple):
    """A convolution of a network, and its direction."""

    layer: str
    direction: str

    def __str__(self) -> str:
        return f"{self.layer} {self.direction}"


def kernel_name(node: Node) -> KernelName | None:
    """The kernel that an op is, in a network or in the graph of its training; None where it is no convolution."""
    direction = _DIRECTIONS.get(node.op.kind)
    return None if direction is None else KernelName(node.name.partition(BACKWARD)[0], direction)


def convolution_kernels(network: Network, training: bool = False) -> dict[KernelName, ConvKernel]:
    """The kernels in the order of the graph; with ``training``, its gradients follow each convolution. A reader of
    an input of the network needs no gradient of its data.
    """
    graph = network.graph
    found: dict[KernelName, ConvKernel] = {}
    for node in graph.nodes:
        op = node.op
        if not isinstance(op, Conv):
            continue
        x, weight = (graph.types[value] for value in node.inputs[:2])
        (y,) = graph.output_types(node)
        found[KernelName(node.name, FORWARD)] = ConvKernel(op, (x, weight), network.precision)
        if not training:
            continue
        data, gradient = convolution_gradients(op, x, weight)
        if node.inputs[0] in graph.producer:
            found[KernelName(node.name, BACKWARD_DATA)] = ConvKernel(data, (y, weight), network.precision)
        found[KernelName(node.name, BACKWARD_FILTER)] = ConvKernel(gradient, (x, y), network.precision)
    return found
