"""Values of a network stored with channels innermost, as read by cuDNN's kernels of 16-bit convolutions.

The layout is chosen once per network (:func:`suits_channels_last`), so that no value is converted between two
units: it applies to images, that is, all inputs and outputs of convolutions and pools, and of element-wise ops, concats
and slices of such values. Other tensors (such as the heads of an attention) are unchanged. Only storage differs:
shapes are those of the graph.
"""

from __future__ import annotations

from iossim.execution.plan import Plan
from iossim.ir.graph import Graph, Node
from iossim.ir.ops.conv import Conv
from iossim.ir.types import Precision
from iossim.schedule.batch import Strategy

_OF_IMAGES = {
    *("conv", "conv_transpose", "conv_backward_data", "max_pool", "average_pool", "global_average_pool"),
    *("global_max_pool", "resize", "grid_sample", "local_response_norm", "batch_norm", "group_norm"),
    *("depth_to_space", "space_to_depth"),
}
_CARRIES_ON = {"concat", "slice", "split", "identity"}


#: Multiple of channels for 16-bit vector access, and the share of the work that must satisfy it.
CHANNELS_AT_ONCE = 8
LEAST_SHARE = 2 / 3
#: Maximum channels of an input image, which libraries pad as they read it.
COLOURS = 4


def prefers_channels_last(precision: Precision) -> bool:
    """True if libraries convolve faster in that layout: their kernels for 16-bit numbers are written for it."""
    return precision.storage.bytes == 2


def suits_channels_last(graph: Graph) -> bool:
    """True if most of a graph's convolutions, by multiply-adds, have channels for which such kernels are written.

    Those are multiples of eight, for loads of 16 bytes. RandWire (78 channels and multiples) has them for half of its
    work; sequentially it took 2.07 ms with channels last on an H200, and 1.83 ms otherwise.
    """
    work, suited = 0, 0
    for node in graph.nodes:
        if isinstance(node.op, Conv):
            types = graph.input_types(node), graph.output_types(node)
            channels, filters = types[0][0].shape[1], types[1][0].shape[1]
            own = node.op.multiply_adds(*types)
            work += own
            if (channels % CHANNELS_AT_ONCE == 0 or channels <= COLOURS) and filters % CHANNELS_AT_ONCE == 0:
                suited += own
    return suited >= LEAST_SHARE * work


class ImageLayout:
    """The values of a graph stored channels last; none if ``wanted`` is false."""

    def __init__(self, graph: Graph, wanted: bool = True) -> None:
        self.wanted = wanted
        self.values = _images(graph) if wanted else frozenset()
        self._plan: Plan | None = None
        self._storages: frozenset[str] = frozenset()

    def storage(self, plan: Plan, name: str) -> bool:
        """True if a storage of a plan is channels last: it holds one of the values, or parts of a merged launch."""
        if self._plan is not plan:
            self._plan = plan
            merged = [launch.writes[0] for launch in plan.launches if launch.strategy is Strategy.MERGE]
            held = [*(each for each in plan.buffers if each in self.values), *(merged if self.wanted else [])]
            self._storages = frozenset(plan.region(each).storage for each in held)
        return name in self._storages


def _images(graph: Graph) -> frozenset[str]:
    found: set[str] = set()
    for node in graph.nodes:
        if node.op.kind in _OF_IMAGES:
            found.update(value for value in (node.inputs[0], node.outputs[0]) if len(graph.types[value].shape) > 2)
    before = -1
    while before != len(found):
        before = len(found)
        for node in (*graph.nodes, *reversed(graph.nodes)):
            alike = _alike(graph, node)
            if not found.isdisjoint(alike):
                found.update(alike)
    return frozenset(found - graph.constants.keys())


def _alike(graph: Graph, node: Node) -> list[str]:
    """The values of a node that should have the same layout."""
    if not (node.op.kind in _CARRIES_ON or node.op.is_elementwise):
        return []
    rank = len(graph.types[node.outputs[0]].shape)
    values = [value for value in (*node.inputs, *node.outputs) if value and value not in graph.constants]
    return [value for value in values if len(graph.types[value].shape) == rank > 2]
