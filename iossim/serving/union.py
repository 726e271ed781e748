"""Several networks as one: disjoint, with every name prefixed by the label of its network."""

from __future__ import annotations

from collections.abc import Mapping

from iossim.base.errors import GraphError
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Block, ModelSource, Network, Unit

#: Separator between the label of a network and the names in it.
BEHIND = "/"


def union(networks: Mapping[str, Network]) -> Network:
    """The disjoint union of networks by label, with one block: the name ``x`` of network ``a`` is ``a/x``.

    Raises GraphError if they compute in different precisions.
    """
    precisions = {network.precision for network in networks.values()}
    if len(precisions) > 1:
        named = ", ".join(f"{label!r} in {network.precision}" for label, network in networks.items())
        raise GraphError(f"the networks compute in different precisions ({named}); load them with the same dtype")
    nodes: list[Node] = []
    units: list[Unit] = []
    for label, network in networks.items():
        first = len(nodes)
        graph = network.graph
        nodes += [
            Node(_of(label, node.name), node.op, _all_of(label, node.inputs), _all_of(label, node.outputs))
            for node in graph.nodes
        ]
        units += [
            Unit(
                _of(label, unit.name),
                unit.kind,
                tuple(first + node for node in unit.nodes),
                _all_of(label, unit.inputs),
                _all_of(label, unit.outputs),
            )
            for unit in network.units
        ]
    graphs = {label: network.graph for label, network in networks.items()}
    whole = Graph(
        tuple(_of(label, name) for label, graph in graphs.items() for name in graph.inputs),
        tuple(_of(label, name) for label, graph in graphs.items() for name in graph.outputs),
        tuple(nodes),
        {_of(label, name): kind for label, graph in graphs.items() for name, kind in graph.types.items()},
        {_of(label, name): constant for label, graph in graphs.items() for name, constant in graph.constants.items()},
    )
    name = " + ".join(networks)
    return Network(name, whole, tuple(units), Block.of_all(units), precisions.pop(), ModelSource(name))


def label_of(name: str) -> str:
    """The label of the network that a name of a union belongs to."""
    return name.partition(BEHIND)[0]


def _of(label: str, name: str) -> str:
    return f"{label}{BEHIND}{name}"


def _all_of(label: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_of(label, name) for name in names)
