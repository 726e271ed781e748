"""A pass: a ReLU of a ReLU is one ReLU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from iossim.ir.graph import Graph
from iossim.ir.ops.unary import Relu
from iossim.models.passes.graph_pass import GraphPass, with_nodes


@dataclass(frozen=True)
class NoDoubleRelu(GraphPass):
    def apply(self, graph: Graph) -> Graph:
        found = {
            node.inputs[0]: graph.producer[node.inputs[0]].inputs[0]
            for node in graph.nodes
            if isinstance(node.op, Relu)
            and node.inputs[0] not in graph.outputs
            and len(graph.consumers[node.inputs[0]]) == 1
            and node.inputs[0] in graph.producer
            and isinstance(graph.producer[node.inputs[0]].op, Relu)
        }

        def source(name: str) -> str:
            return source(found[name]) if name in found else name

        kept = [
            replace(node, inputs=tuple(source(name) for name in node.inputs))
            for node in graph.nodes
            if found.keys().isdisjoint(node.outputs)
        ]
        return with_nodes(graph, kept, graph.constants) if found else graph


no_double_relu = NoDoubleRelu()
