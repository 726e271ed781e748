"""Batch norms as training has them: mean and variance are those of the batch, not those that the network was given.

The running mean and variance, which a file holds for inference, are neither read nor updated: that is for the
training loop, as are the loss and the update of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iossim.ir.graph import Graph, Node
from iossim.ir.ops.batch_norm import BatchNorm
from iossim.ir.ops.mul import Mul
from iossim.ir.ops.nary import Nary
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Reshape
from iossim.models.passes.graph_pass import GraphPass, free_name, with_nodes


@dataclass(frozen=True)
class BatchStatistics(GraphPass):
    """Computes the mean and the (biased) variance that each batch norm with constant ones reads.

    The outputs change: they are those of a network in training.
    """

    def apply(self, graph: Graph) -> Graph:
        taken = {*graph.types, *(node.name for node in graph.nodes)}
        nodes: list[Node] = []
        for node in graph.nodes:
            if isinstance(node.op, BatchNorm) and graph.constants.keys() >= set(node.inputs[3:]):
                statistics = _statistics(graph, node, taken)
                nodes += statistics
                made = (statistics[0].outputs[0], statistics[-1].outputs[0])
                nodes.append(replace(node, inputs=(*node.inputs[:3], *made)))
            else:
                nodes.append(node)
        return graph if len(nodes) == len(graph.nodes) else with_nodes(graph, nodes, graph.constants)


def _statistics(graph: Graph, node: Node, taken: set[str]) -> list[Node]:
    """The ops that make the mean of the batch, first, and its variance, last."""
    shape = graph.types[node.inputs[0]].shape
    mean = mean_of_batch(len(shape))
    names = []
    for part in ("mean", "broadcast_mean", "centred", "squares", "variance"):
        names.append(free_name(f"{node.name}.{part}", taken))
        taken.add(names[-1])
    (x, *_), (average, broadcast, centred, squares, variance) = node.inputs, names
    per_channel = Reshape((1, shape[1], *[1] * (len(shape) - 2)))
    return [
        Node(average, mean, (x,), (average,)),
        Node(broadcast, per_channel, (average,), (broadcast,)),
        Node(centred, Nary("sub"), (x, broadcast), (centred,)),
        Node(squares, Mul(), (centred, centred), (squares,)),
        Node(variance, mean, (squares,), (variance,)),
    ]


def mean_of_batch(rank: int) -> Reduce:
    """The mean of each channel over a batch."""
    return Reduce("mean", tuple(axis for axis in range(rank) if axis != 1), keepdims=False)
