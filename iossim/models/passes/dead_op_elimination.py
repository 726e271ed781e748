"""Dead op elimination: what no output of the graph depends on is not computed."""

from __future__ import annotations

from dataclasses import dataclass

from iossim.ir.graph import Graph
from iossim.models.passes.graph_pass import GraphPass, with_nodes


@dataclass(frozen=True)
class DeadOpElimination(GraphPass):
    """Drops every op without a path to an output of the graph.

    Invariant: afterwards each op has such a path, and the outputs are unchanged to the last bit.
    """

    def apply(self, graph: Graph) -> Graph:
        needed = set(graph.outputs)
        for node in reversed(graph.nodes):
            if not needed.isdisjoint(node.outputs):
                needed.update(node.inputs)
        nodes = [node for node in graph.nodes if not needed.isdisjoint(node.outputs)]
        return graph if len(nodes) == len(graph.nodes) else with_nodes(graph, nodes, graph.constants)
