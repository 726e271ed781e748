"""A graph derived from another by changing a few nodes, in time that mostly depends on the size of the change.

A search over rewritten graphs makes thousands. New nodes are inferred, validated and sorted together with the nodes
between them; the rest is reused, and with it the graph's tables of producers and consumers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from iossim.base.errors import GraphError
from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Node, check_names, inferred_types, sorted_nodes


def spliced(graph: Graph, gone: Collection[str], made: Sequence[Node], constants: Mapping[str, Constant]) -> Graph:
    """The graph without the nodes named ``gone``, with ``made``, and with the new ``constants`` that are read.

    A node of ``made`` replaces the one of its name. Equal to the result of :meth:`Graph.create` for these nodes; raises
    GraphError as that does, and if a remaining value would change its type.
    """
    position = graph.position
    instead = {node.name: node for node in made}
    out = [graph.nodes[position[name]] for name in (*gone, *(name for name in instead if name in position))]
    lost = {value for node in out for value in node.outputs}
    types = {name: value for name, value in graph.types.items() if name not in lost}
    for name, constant in constants.items():
        if name in types:
            raise GraphError(f"the constant {name!r} has the name of something else")
        types[name] = constant.type
    check_names(made, types)
    begin, end = _stretch(graph, out, made)
    between = _between(graph.nodes[begin:end], gone, instead)
    for node in between:
        if node.name in instead:
            types.update(zip(node.outputs, inferred_types(node, types), strict=True))
    consumers = _consumers(graph, out, between, begin, end)
    for value in lost:
        if value not in types:
            readers = consumers.pop(value)
            if readers or value in graph.returned:
                what = f"op {readers[0].name!r} ({readers[0].op.kind}) reads" if readers else "the graph returns"
                raise GraphError(f"{what} {value!r}, which nothing makes")
        elif types[value] != graph.types[value]:
            raise GraphError(f"{value!r} would be {types[value]}, not {graph.types[value]}")
    kept = {**graph.constants, **constants}
    for value in {value for node in out for value in node.inputs if value in kept} | constants.keys():
        if not consumers.get(value) and value not in graph.returned:
            del kept[value], types[value]
            consumers.pop(value, None)
    producer = {value: node for value, node in graph.producer.items() if value not in lost}
    producer.update({value: node for node in made for value in node.outputs})
    result = Graph(graph.inputs, graph.outputs, (*graph.nodes[:begin], *between, *graph.nodes[end:]), types, kept)
    # Fill in the graph's cached properties.
    vars(result).update(returned=graph.returned, producer=producer, consumers=consumers)
    return result


def _stretch(graph: Graph, out: Sequence[Node], made: Sequence[Node]) -> tuple[int, int]:
    """The range that contains all removed nodes, producers for the new nodes and consumers of them; end exclusive."""
    position = graph.position
    places = [position[node.name] for node in out]
    makers = [position[graph.producer[value].name] for node in made for value in node.inputs if value in graph.producer]
    readers = [graph.consumers.get(value, ()) for node in made for value in node.outputs]
    end = max((*places, *makers), default=-1) + 1
    return min((end, *places, *(position[nodes[0].name] for nodes in readers if nodes))), end


def _between(nodes: Sequence[Node], gone: Collection[str], made: Mapping[str, Node]) -> tuple[Node, ...]:
    """A range of nodes after the change, in topological order; raises GraphError for a cycle."""
    staying = [made.get(node.name, node) for node in nodes if node.name not in gone]
    names = {node.name for node in staying}
    staying += [node for node in made.values() if node.name not in names]
    return sorted_nodes(staying, {value for node in staying for value in node.outputs})


def _consumers(
    graph: Graph, out: Sequence[Node], between: Sequence[Node], begin: int, end: int
) -> dict[str, tuple[Node, ...]]:
    """The consumers of each value, with ``between`` in place of the nodes from ``begin`` to ``end``."""
    inside: dict[str, list[Node]] = {value: [] for node in out for value in (*node.inputs, *node.outputs)}
    for node in between:
        for value in node.outputs:
            inside.setdefault(value, [])
        for value in dict.fromkeys(node.inputs):
            inside.setdefault(value, []).append(node)
    consumers = dict(graph.consumers)
    position = graph.position
    for value, readers in inside.items():
        others = graph.consumers.get(value, ())
        before = (node for node in others if position[node.name] < begin)
        after = (node for node in others if position[node.name] >= end)
        consumers[value] = (*before, *readers, *after)
    return consumers
