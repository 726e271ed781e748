"""Inlining of bodies in an ONNX model: local functions, and the branch that an ``If`` takes.

Functions that call functions twice each double the nodes with every level: a file of a few lines can expand beyond
memory. So the expansion is counted first. Exporters write an ``If`` around a squeeze or a default, on shapes that
are fixed by now, so that its condition is known at import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper
from onnx.compose import add_prefix_graph

from iossim.base.errors import ModelError, last_line
from iossim.ir.onnx_node import graphs_in, nodes_within
from iossim.ir.op import Array
from iossim.models.onnx.constants import Known
from iossim.models.onnx.grouped_products import is_own

#: Limits on the nodes and bytes (names, and tensors in attributes) that functions may add to a model.
MOST_NODES, MOST_BYTES = 1 << 18, 1 << 28

#: What a renaming of nodes, and of given values, leaves out.
_KEPT = ("edges", "inputs", "outputs", "initializers", "value_infos")
_NODES_ALONE = {f"rename_{what}": False for what in _KEPT}

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
    """Identity of a function."""
    return "" if domain == "ai.onnx" else domain, name, of.overload


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
    named = add_prefix_graph(body, prefix, **_NODES_ALONE, name_map=names)
    return list(named.node), tuple(value.name for value in named.output)


def with_weights_outside(node: NodeProto, prefix: str, where: str) -> tuple[NodeProto, list[TensorProto]]:
    """The node with the weights of its subgraphs extracted: tensors named ``prefix``, their number, and name."""
    kept, weights = deepcopy(node), list[TensorProto]()
    for graph in graphs_in(kept):
        if graph.sparse_initializer:
            raise ModelError(f"{where} runs a graph with sparse weights; store them as dense tensors")
        numbered = enumerate(graph.initializer, len(weights) + 1)
        names = {tensor.name: f"{prefix}{number}.{tensor.name}" for number, tensor in numbered}
        add_prefix_graph(graph, "", **_NODES_ALONE, name_map=names, inplace=True)
        weights += map(deepcopy, graph.initializer)
        del graph.initializer[:]
        for inner in graph.node:
            outside, more = with_weights_outside(inner, f"{prefix}{len(weights)}.", where)
            inner.CopyFrom(outside)
            weights += more
    return kept, weights
