"""Topological order of nodes, which ONNX requires and runtimes do not: they load a graph in any order, and sort it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto

from iossim.base.errors import ModelError
from iossim.ir.onnx_node import graphs_in


def sort_nodes(model: ModelProto, path: Path) -> None:
    """Sort the nodes of all graphs and functions of a model topologically, in place; sorted ones are unchanged.

    Raises ModelError for cyclic dependencies.
    """
    for holder in (model.graph, *model.functions):
        ordered = _ordered(holder.node, path)
        if ordered is not None:
            del holder.node[:]
            holder.node.extend(ordered)


def _ordered(nodes: Sequence[NodeProto], path: Path) -> list[NodeProto] | None:
    """The nodes in topological order, also inside them; ties keep the given order. None if they are sorted already."""
    for node in nodes:
        for graph in graphs_in(node):
            inside = _ordered(graph.node, path)
            if inside is not None:
                del graph.node[:]
                graph.node.extend(inside)
    maker = {value: place for place, node in reversed(list(enumerate(nodes))) for value in node.output if value}
    before = [{maker[value] for value in _read(node) if value in maker} for node in nodes]
    if all(place > max(made, default=-1) for place, made in enumerate(before)):
        return None
    readers: list[list[int]] = [[] for _ in nodes]
    for place, made in enumerate(before):
        for each in made:
            readers[each].append(place)
    waiting = [len(made) for made in before]
    ready = [place for place, count in enumerate(waiting) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready))
        for reader in readers[order[-1]]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, reader)
    if len(order) < len(nodes):
        raise ModelError(f"{path}: {_circle(nodes, before, waiting)}; the file is damaged")
    return [NodeProto.FromString(nodes[place].SerializeToString()) for place in order]


def _circle(nodes: Sequence[NodeProto], before: Sequence[set[int]], waiting: Sequence[int]) -> str:
    """A dependency cycle as text: from a waiting node back along its dependencies."""
    place, seen = next(place for place, count in enumerate(waiting) if count), list[int]()
    while place not in seen:
        seen.append(place)
        place = min(each for each in before[place] if waiting[each])
    names = [f"{nodes[each].op_type} {nodes[each].name!r}" for each in reversed(seen[seen.index(place) :])]
    if len(names) == 1:
        return f"{names[0]} reads what it makes"
    return f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''} depend on one another"


def _read(node: NodeProto) -> Iterator[str]:
    """The outer values that a node reads, including captures of its subgraphs."""
    yield from node.input
    for graph in graphs_in(node):
        yield from _read_outside(graph)


def _read_outside(graph: GraphProto) -> Iterator[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {value for node in graph.node for value in node.output}
    yield from (value for node in graph.node for value in _read(node) if value not in own)
    yield from (value.name for value in graph.output if value.name not in own)
