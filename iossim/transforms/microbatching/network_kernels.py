"""The convolution kernels of a network: one a convolution for inference, up to three for training."""

from __future__ import annotations

from typing import NamedTuple

from iossim.ir.graph import Node
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.models.passes.gradients import BACKWARD
from iossim.transforms.microbatching.conv_kernel import ConvKernel

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
    """The kernels in the order of the graph; with ``training`` each convolution's gradients beside it.

    What reads an input of the network needs no gradient of its data.
    """
    graph = network.graph
    found: dict[KernelName, ConvKernel] = {}
    for node in graph.nodes:
        op = node.op
        if not isinstance(op, Conv):
            continue
        x, weight = (graph.types[value] for value in node.inputs[:2])
        (y,) = graph.output_types(node)
        own = op.strides, op.pads, op.dilations, op.groups
        found[KernelName(node.name, FORWARD)] = ConvKernel(op, (x, weight), network.precision)
        if not training:
            continue
        if node.inputs[0] in graph.producer:
            data = ConvBackwardData(*own, input_size=x.shape[2:])
            found[KernelName(node.name, BACKWARD_DATA)] = ConvKernel(data, (y, weight), network.precision)
        gradient = ConvBackwardFilter(*own, kernel_size=weight.shape[2:])
        found[KernelName(node.name, BACKWARD_FILTER)] = ConvKernel(gradient, (x, y), network.precision)
    return found
