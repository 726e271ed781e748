"""Passes: functions from graph to graph, each with a documented and tested invariant.

Unless a pass says otherwise, the graph that it returns has the same inputs, and computes the same outputs under the
same names; unaffected nodes keep their names, values and order. It is ``graph`` itself if there is nothing to do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Node

Pass = Callable[[Graph], Graph]
#: Function from one node to replacements: new nodes by the name of the node that they replace. It adds their constants
#: to the given ones.
_Replacing = Callable[[Graph, Node[Any], dict[str, Constant]], Mapping[str, Sequence[Node]]]


@dataclass(frozen=True)
class GraphPass(ABC):
    """Base of passes of plugins, which are frozen dataclasses whose fields are their options."""

    @abstractmethod
    def apply(self, graph: Graph) -> Graph:
        """The graph, rewritten."""


def local_pass(*kinds: str) -> Callable[[_Replacing], Pass]:
    """Decorator that makes a pass of a function that looks at each node of some kinds by itself."""

    def on_graphs(replaced: _Replacing) -> Pass:
        @wraps(replaced)
        def rewrite(graph: Graph) -> Graph:
            constants, made = dict(graph.constants), dict[str, Sequence[Node]]()
            for node in (each for kind in kinds for each in graph.of_kind.get(kind, ())):
                made |= replaced(graph, node, constants)
            nodes = [each for node in graph.nodes for each in made.get(node.name, (node,))]
            return with_nodes(graph, nodes, constants)

        return rewrite

    return on_graphs


def with_nodes(graph: Graph, nodes: Iterable[Node], constants: Mapping[str, Constant]) -> Graph:
    """A graph of other nodes and constants with the same inputs and outputs; ``graph`` itself for its own nodes."""
    made = tuple(nodes)
    if made == graph.nodes:
        return graph
    return Graph.create({name: graph.types[name] for name in graph.inputs}, graph.outputs, made, constants)
