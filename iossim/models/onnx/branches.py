"""Nodes that run graphs of their own. Of an ONNX ``If`` whose condition is known at import, the branch taken stands for it.

Exporters write them around a squeeze or a default, on shapes that are fixed by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from iossim.base.errors import ModelError
from iossim.ir.onnx_node import graphs_in


def runs_graphs(node: NodeProto) -> bool:
    """Whether a node runs graphs of its own: control flow, mostly."""
    return any(attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for attribute in node.attribute)


def values_read(nodes: Iterable[NodeProto]) -> Iterator[str]:
    """The values that nodes read, and those that the graphs inside them read or return."""
    for node in nodes:
        yield from node.input
        for graph in graphs_in(node):
            yield from values_read(graph.node)
            yield from (value.name for value in graph.output)


def taken_branch(
    node: NodeProto, condition: bool, prefix: str, where: str
) -> tuple[list[TensorProto], list[NodeProto]]:
    """The weights and nodes of the branch that an ``If`` takes, then identities that make its outputs.

    What the branch defines is called ``prefix`` and its name, so that it meets no name outside. ``where`` begins the message of
    a ModelError.
    """
    wanted = "then_branch" if condition else "else_branch"
    branch = next((attribute.g for attribute in node.attribute if attribute.name == wanted), None)
    if branch is None or len(branch.output) != len(node.output) or branch.sparse_initializer:
        raise ModelError(f"{where} has no {wanted} that makes its outputs; the file is damaged")
    names = {value: prefix + value for value in _defined(branch)}
    weights: list[TensorProto] = []
    for tensor in branch.initializer:
        weights.append(deepcopy(tensor))
        weights[-1].name = names[tensor.name]
    nodes = [_renamed(inner, names, prefix) for inner in branch.node]
    for made, value in zip(branch.output, node.output, strict=True):
        if value:
            nodes.append(helper.make_node("Identity", [names.get(made.name, made.name)], [value], f"{prefix}{value}"))
    return weights, nodes


def unrolled(
    body: GraphProto, given: Sequence[str], prefix: str, where: str
) -> tuple[list[NodeProto], tuple[str, ...]]:
    """The nodes of one run of a body on given values, its weights constants among them, and the names of its outputs.

    Names and errors are as with :func:`taken_branch`.
    """
    if len(body.input) != len(given) or body.sparse_initializer:
        raise ModelError(f"{where} has a body that does not take its inputs; the file is damaged")
    names = {value: prefix + value for value in _defined(body)}
    names |= {value.name: outside for value, outside in zip(body.input, given, strict=True)}
    weights = [helper.make_node("Constant", [], [names[each.name]], value=each) for each in body.initializer]
    nodes = [_renamed(node, names, prefix) for node in body.node]
    return [*weights, *nodes], tuple(names.get(value.name, value.name) for value in body.output)


def with_weights_outside(node: NodeProto, prefix: str, where: str) -> tuple[NodeProto, list[TensorProto]]:
    """The node with the weights of its graphs taken out of them: tensors called ``prefix`` and their number, and names.

    ``where`` begins the message of a ModelError.
    """
    kept = deepcopy(node)
    weights: list[TensorProto] = []
    for graph in graphs_in(kept):
        names: dict[str, str] = {}
        for tensor in graph.initializer:
            weights.append(deepcopy(tensor))
            weights[-1].name = names[tensor.name] = f"{prefix}{len(weights)}.{tensor.name}"
        if graph.sparse_initializer:
            raise ModelError(f"{where} runs a graph with sparse weights; store them as dense tensors")
        del graph.initializer[:]
        for place, inner in enumerate(graph.node):
            outside, more = with_weights_outside(inner, f"{prefix}{len(weights)}.", where)
            weights += more
            graph.node[place].CopyFrom(_renamed(outside, names, ""))
        for value in graph.output:
            value.name = names.get(value.name, value.name)
    return kept, weights


def _defined(graph: GraphProto) -> Iterator[str]:
    yield from (tensor.name for tensor in graph.initializer)
    yield from (value for node in graph.node for value in node.output if value)


def _renamed(node: NodeProto, names: Mapping[str, str], prefix: str) -> NodeProto:
    """The node with other value names, those that the graphs inside it read from outside included."""
    kept = deepcopy(node)
    for operands in (kept.input, kept.output):
        renamed = [names.get(value, value) for value in operands]
        del operands[:]
        operands.extend(renamed)
    kept.name = prefix + node.name if node.name else ""
    for graph in graphs_in(kept):
        inner = set(_defined(graph)) | {value.name for value in graph.input}
        outer = {name: new for name, new in names.items() if name not in inner}
        nodes = [_renamed(each, outer, "") for each in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)
    return kept
