"""The graph that a schedule computes: merged convolutions are stacked, followed by a split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Node
from iossim.ir.merging import merged_convolution, merged_graph
from iossim.ir.network import Network
from iossim.ir.ops.slice import Split
from iossim.schedule.schedule import StreamSchedule

#: Axis of channels in a tensor of images.
_CHANNELS = 1


@dataclass(frozen=True, eq=False)
class DeployedGraph:
    """A graph of standard ops, and the stream of the launch that makes each of its values."""

    graph: Graph
    stream_of: Mapping[str, int]


def deployed_graph(network: Network, streams: StreamSchedule) -> DeployedGraph:
    """The graph of ``network`` in which units merged by ``streams``, which fit it, are one convolution each.

    Outputs keep their names. Raises ScheduleError for units that do not merge.
    """
    gone: set[str] = set()
    made: list[Node] = []
    constants: dict[str, Constant] = dict(network.graph.constants)
    stream_of: dict[str, int] = {}
    for stream, own in enumerate(streams.streams):
        for launch in own:
            units = [network.units[network.unit_index[name]] for name in launch.units]
            replaced = [node for unit in units for node in network.unit_nodes(unit)]
            stream_of |= {value: stream for node in replaced for value in node.outputs}
            if len(units) == 1:
                continue
            indices = [network.unit_index[name] for name in launch.units]
            merged = merged_graph(network, indices)
            (whole,) = merged.outputs
            begins = merged_convolution(network, indices).channel_begin
            sizes = tuple(end - begin for begin, end in pairwise(begins))
            nodes = [replace(node, name=f"{whole}.{place}") for place, node in enumerate(merged.nodes)]
            split = Split(_CHANNELS, sizes)
            nodes.append(Node(f"{whole}.split", split, (whole,), tuple(unit.outputs[0] for unit in units)))
            stream_of |= {value: stream for node in nodes for value in node.outputs}
            gone.update(node.name for node in replaced)
            made += nodes
            constants |= merged.constants
    if not made:
        return DeployedGraph(network.graph, stream_of)
    graph = network.graph
    nodes = [*(node for node in graph.nodes if node.name not in gone), *made]
    inputs = {name: graph.types[name] for name in graph.inputs}
    return DeployedGraph(Graph.create(inputs, graph.outputs, nodes, constants), stream_of)
