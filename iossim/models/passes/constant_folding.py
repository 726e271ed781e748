"""Constant folding: what depends on weights alone becomes a weight."""

from __future__ import annotations

from dataclasses import dataclass

from iossim.ir.constants import Constant
from iossim.ir.graph import Graph
from iossim.ir.op import Array, Op
from iossim.ir.types import TensorType
from iossim.models.passes.graph_pass import GraphPass, with_nodes


@dataclass(frozen=True, eq=False)
class FoldedConstant(Constant):
    """Output ``position`` of an op on constants, computed whenever it is loaded."""

    type: TensorType
    op: Op
    inputs: tuple[Constant, ...]
    position: int = 0

    @property
    def is_at_hand(self) -> bool:
        return False

    def load(self) -> Array:
        return self.op.evaluate([constant.load() for constant in self.inputs])[self.position]

    @property
    def origin(self) -> Constant:
        """What was turned or reshaped, as a table of embeddings that is the last layer's weight too."""
        if len(self.inputs) != 1 or self.inputs[0].type.elements != self.type.elements:
            return self
        return self.inputs[0].origin


@dataclass(frozen=True)
class ConstantFolding(GraphPass):
    """Replaces every op that reads constants only by constants; nothing is computed before it is loaded.

    Those in ``kept`` count as values that change: what depends on them stays.

    Invariant: afterwards each op depends on an input of the graph, or on what is kept, and the outputs are
    unchanged to the last bit.
    """

    kept: frozenset[str] = frozenset()

    def apply(self, graph: Graph) -> Graph:
        constants = dict(graph.constants)
        nodes = []
        for node in graph.nodes:
            if not all(name in constants and name not in self.kept for name in node.inputs):
                nodes.append(node)
                continue
            inputs = tuple(constants[name] for name in node.inputs)
            for position, name in enumerate(node.outputs):
                constants[name] = FoldedConstant(graph.types[name], node.op, inputs, position)
        return graph if len(nodes) == len(graph.nodes) else with_nodes(graph, nodes, constants)
