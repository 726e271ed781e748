"""Base of passes: functions from graph to graph, with options as fields, and a documented and tested invariant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Node


@dataclass(frozen=True)
class GraphPass(ABC):
    """Base of all passes, which are frozen dataclasses whose fields are their options.

    Unless a pass says otherwise, the graph that it returns has the same inputs, and computes the same outputs under
    the same names; unaffected nodes keep their names, values and order.
    """

    @abstractmethod
    def apply(self, graph: Graph) -> Graph:
        """The graph, rewritten; ``graph`` itself if there is nothing to do."""


class LocalPass(GraphPass):
    """Base of passes that look at each node of some kinds by itself, and replace it or nodes around it."""

    kinds: ClassVar[tuple[str, ...]]

    def apply(self, graph: Graph) -> Graph:
        constants, made = dict(graph.constants), dict[str, Sequence[Node]]()
        for node in (each for kind in self.kinds for each in graph.of_kind.get(kind, ())):
            made |= self.replaced(graph, node, constants)
        nodes = [each for node in graph.nodes for each in made.get(node.name, (node,))]
        return with_nodes(graph, nodes, constants) if made else graph

    @abstractmethod
    def replaced(self, graph: Graph, node: Node, constants: dict[str, Constant]) -> Mapping[str, Sequence[Node]]:
        """The nodes in place of others, by the names of those, for one node; their constants are added to the given."""


def with_nodes(graph: Graph, nodes: Iterable[Node], constants: Mapping[str, Constant]) -> Graph:
    """A graph of other nodes and constants with the same inputs and outputs."""
    return Graph.create({name: graph.types[name] for name in graph.inputs}, graph.outputs, nodes, constants)
