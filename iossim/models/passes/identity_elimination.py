"""Identity elimination: ops that return their input unchanged are bypassed.

For imported models only: the identities of the benchmark networks are units that the published engine runs, and
stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iossim.ir.graph import Graph, Node
from iossim.ir.ops.add import Add
from iossim.ir.ops.cast import Cast
from iossim.ir.ops.concat import Concat
from iossim.ir.ops.expand import Expand
from iossim.ir.ops.identity import Identity
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.slice import Slice
from iossim.ir.ops.transpose import Transpose
from iossim.models.passes.graph_pass import GraphPass, with_nodes


@dataclass(frozen=True)
class IdentityElimination(GraphPass):
    """Removes identities (dropout at inference), sums and concatenations of one input, and reshapes, expansions, slices and casts
    that change nothing. A transpose that moves only axes of one element becomes a reshape, which moves no data.

    Outputs of the graph keep their names: the op that makes the value takes the name over. An identity stays where
    that cannot be, because the value is an input, a constant or an output itself.

    Invariant: the outputs are unchanged to the last bit.
    """

    def apply(self, graph: Graph) -> Graph:
        source: dict[str, str] = {}  # what stands for the output of a removed op
        renamed: dict[str, str] = {}  # values that take over the name of an output of the graph
        kept: list[Node] = []
        for node in (_as_view(graph, node) for node in graph.nodes):
            inputs = tuple(source.get(name, name) for name in node.inputs)
            if not _is_identity(graph, node):
                kept.append(replace(node, inputs=inputs))
                continue
            (value,), (output,) = inputs, node.outputs
            if output not in graph.returned:
                source[output] = value
            elif value in graph.producer and value not in graph.returned and value not in renamed:
                renamed[value] = output
                source[output] = value
            else:
                kept.append(replace(node, inputs=inputs))
        if tuple(kept) == graph.nodes:
            return graph
        nodes = [
            replace(
                node,
                inputs=tuple(renamed.get(name, name) for name in node.inputs),
                outputs=tuple(renamed.get(name, name) for name in node.outputs),
            )
            for node in kept
        ]
        return with_nodes(graph, nodes, graph.constants)


def _is_identity(graph: Graph, node: Node) -> bool:
    if len(node.inputs) != 1 or graph.types[node.inputs[0]] != graph.types[node.outputs[0]]:
        return False
    if isinstance(node.op, Slice):
        return set(node.op.steps) <= {1}
    return isinstance(node.op, Identity | Add | Concat | Reshape | Expand | Cast)


def _as_view(graph: Graph, node: Node) -> Node:
    """A transpose that keeps the order of all axes of more than one element as the reshape that it is."""
    if not isinstance(node.op, Transpose):
        return node
    shape = graph.types[node.inputs[0]].shape
    moved = [axis for axis in node.op.permutation if shape[axis] > 1]
    return replace(node, op=Reshape(graph.types[node.outputs[0]].shape)) if moved == sorted(moved) else node
