"""Inlining of bodies in an ONNX model: local functions, and the branch that an ``If`` takes.

Functions that call functions twice each double the nodes with every level: a file of a few lines can expand beyond
memory. So the expansion is counted first. Exporters write an ``If`` around a squeeze or a default, on shapes that
are fixed by now, so that its condition is known at import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from iossim.base.errors import ModelError, last_line
from iossim.ir.onnx_node import graphs_in, nodes_within
from iossim.ir.op import Array
from iossim.models.onnx.constants import Known
from iossim.models.onnx.grouped_products import is_own

#: Limits on the nodes and bytes (names, and tensors in attributes) that functions may add to a model.
MOST_NODES, MOST_BYTES = 1 << 18, 1 << 28

_Key = tuple[str, str, str]


def inlined(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model with functions inlined, except those that stand for ops of iossim's, whose calls stay.

    Raises ModelError for functions that recurse, are too large, or fail.
    """
    others = [function for function in model.functions if not is_own(function.domain, function.name)]
    del model.functions[:]
    model.functions.extend(others)
    _check(model, path)
    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # the inliner passes on any C++ exception
        raise ModelError(
            f"{path} has functions that cannot be inlined: {last_line(error)}; export the model without"
        ) from None


def _check(model: onnx.ModelProto, path: Path) -> None:
    bodies = {_key(each.domain, each.name, each): each for each in model.functions}
    calls = {key: list(_called(body.node, bodies)) for key, body in bodies.items()}
    extents: dict[_Key, Array] = {}  # nodes and bytes of each inlined body
    try:
        for key in TopologicalSorter(calls).static_order():
            own = [sum(1 for _ in nodes_within(bodies[key].node)), bodies[key].ByteSize()]
            extents[key] = sum((extents[each] for each in calls[key]), np.array(own, dtype=object))
    except CycleError as error:
        raise ModelError(f"{path}: function {error.args[1][0][1]!r} calls itself; the file is damaged") from None
    nodes, size = sum((extents[each] for each in _called(model.graph.node, bodies)), np.zeros(2, dtype=object))
    if nodes > MOST_NODES or size > MOST_BYTES:
        raise ModelError(
            f"{path} has functions that stand for {nodes:,} nodes and {size:,} bytes; iossim takes "
            f"at most {MOST_NODES:,} and {MOST_BYTES:,}: export the model without functions"
        )


def _called(nodes: Sequence[NodeProto], bodies: dict[_Key, onnx.FunctionProto]) -> Iterator[_Key]:
    for node in nodes_within(nodes):
        key = _key(node.domain, node.op_type, node)
        if key in bodies:
            yield key


def _key(domain: str, name: str, of: onnx.FunctionProto | NodeProto) -> _Key:
    """Identity of a function; the oldest supported onnx has no overloads."""
    return "" if domain == "ai.onnx" else domain, name, getattr(of, "overload", "")


def runs_graphs(node: NodeProto) -> bool:
    """True if a node has subgraphs: control flow, mostly."""
    return any(attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for attribute in node.attribute)


def values_read(nodes: Iterable[NodeProto]) -> Iterator[str]:
    """The values that nodes read, and those that their subgraphs read or return."""
    for node in nodes_within(nodes):
        yield from (*node.input, *(value.name for graph in graphs_in(node) for value in graph.output))


def taken_branch(node: NodeProto, known: Known, prefix: str, where: str) -> list[NodeProto]:
    """The nodes of the branch that an ``If`` of a known condition takes, as in :func:`unrolled`, then identities that
    make its outputs.
    """
    held = [known.constants[name] for name in node.input[:1] if name]
    size = sum(each.type.elements for each in held)
    if size != 1:
        raise ModelError(f"{where} has a condition of {size} values; the file is damaged")
    wanted = "then_branch" if held[0].load().item() else "else_branch"
    branch = next((attribute.g for attribute in node.attribute if attribute.name == wanted), None)
    if branch is None or len(branch.output) != len(node.output):
        raise ModelError(f"{where} has no {wanted} that makes its outputs; the file is damaged")
    nodes, made = unrolled(branch, (), prefix, where)
    pairs = [(value, output) for value, output in zip(made, node.output, strict=True) if output]
    return nodes + [helper.make_node("Identity", [value], [output], prefix + output) for value, output in pairs]


def unrolled(
    body: GraphProto, given: Sequence[str], prefix: str, where: str
) -> tuple[list[NodeProto], tuple[str, ...]]:
    """The nodes of one run of a body without weights on given values, and the names of its outputs.

    Names defined in the body are prefixed by ``prefix``, to avoid clashes with outer names. A ModelError's message
    begins with ``where``.
    """
    if len(body.input) != len(given):
        raise ModelError(f"{where} has a body that does not take its inputs; the file is damaged")
    names = {value: prefix + value for node in body.node for value in node.output if value}
    names |= {value.name: outside for value, outside in zip(body.input, given, strict=True)}
    nodes = [_renamed(node, names, prefix) for node in body.node]
    return nodes, tuple(names.get(value.name, value.name) for value in body.output)


def with_weights_outside(node: NodeProto, prefix: str, where: str) -> tuple[NodeProto, list[TensorProto]]:
    """The node with the weights of its subgraphs extracted: tensors named ``prefix``, their number, and name."""
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


def _renamed(node: NodeProto, names: Mapping[str, str], prefix: str) -> NodeProto:
    """The node with other value names, including those that its subgraphs capture."""
    kept = deepcopy(node)
    for operands in (kept.input, kept.output):
        renamed = [names.get(value, value) for value in operands]
        del operands[:]
        operands.extend(renamed)
    kept.name = prefix + node.name if node.name else ""
    for graph in graphs_in(kept):
        inner = {value.name for value in (*graph.input, *graph.initializer)}
        inner |= {value for each in graph.node for value in each.output}
        outer = {name: new for name, new in names.items() if name not in inner}
        nodes = [_renamed(each, outer, "") for each in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)
    return kept
