"""Inlining of bodies in an ONNX model: local functions, and the branch that an ``If`` takes.

Functions that call functions twice each double the nodes with every level: a file of a few lines can expand beyond
memory. So the expansion is counted first. Exporters write an ``If`` around a squeeze or a default, on shapes that
are fixed by now, so that its condition is known at import.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.inliner
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from iossim.base.errors import ModelError, last_line
from iossim.ir.onnx_node import graphs_in, nodes_within

#: Limits on the nodes and bytes (names, and tensors in attributes) that functions may add to a model.
MOST_NODES, MOST_BYTES = 1 << 18, 1 << 28

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class _Extent:
    """Size of an inlined body."""

    nodes: int
    bytes: int


def inlined(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model with functions inlined; raises ModelError for those that recurse, are too large, or fail."""
    _check(model, path)
    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # the inliner passes on any C++ exception
        raise ModelError(
            f"{path} has functions that cannot be inlined: {last_line(error)}; export the model without"
        ) from None


def _check(model: onnx.ModelProto, path: Path) -> None:
    bodies = {_key(each.domain, each.name, each): each for each in model.functions}
    calls = {key: Counter(_called(body.node, bodies)) for key, body in bodies.items()}
    extents: dict[_Key, _Extent] = {}
    for key in _innermost_first(calls, path):
        own = _Extent(sum(1 for _ in nodes_within(bodies[key].node)), bodies[key].ByteSize())
        extents[key] = _with_calls(own, calls[key], extents)
    made = _with_calls(_Extent(0, 0), Counter(_called(model.graph.node, bodies)), extents)
    if made.nodes > MOST_NODES or made.bytes > MOST_BYTES:
        raise ModelError(
            f"{path} has functions that stand for {made.nodes:,} nodes and {made.bytes:,} bytes; iossim takes "
            f"at most {MOST_NODES:,} and {MOST_BYTES:,}: export the model without functions"
        )


def _with_calls(own: _Extent, calls: Counter[_Key], extents: dict[_Key, _Extent]) -> _Extent:
    return _Extent(
        own.nodes + sum(count * extents[key].nodes for key, count in calls.items()),
        own.bytes + sum(count * extents[key].bytes for key, count in calls.items()),
    )


def _innermost_first(calls: dict[_Key, Counter[_Key]], path: Path) -> Iterator[_Key]:
    """Functions, each after all of its callees; raises ModelError if one calls itself."""
    done: set[_Key] = set()
    for first, within in calls.items():
        opened: dict[_Key, Iterator[_Key]] = {} if first in done else {first: iter(within)}
        while opened:
            key = next(reversed(opened))
            called = next((each for each in opened[key] if each not in done), None)
            if called is None:
                del opened[key]
                done.add(key)
                yield key
            elif called in opened:
                raise ModelError(f"{path}: function {called[1]!r} calls itself; the file is damaged")
            else:
                opened[called] = iter(calls[called])


def _called(nodes: Sequence[NodeProto], bodies: dict[_Key, onnx.FunctionProto]) -> Iterator[_Key]:
    for node in nodes_within(nodes):
        key = _key(node.domain, node.op_type, node)
        if key in bodies:
            yield key


def _key(domain: str, name: str, of: onnx.FunctionProto | NodeProto) -> _Key:
    """Identity of a function; the oldest supported onnx has no overloads."""
    return "" if domain == "ai.onnx" else domain, name, getattr(of, "overload", "")


def runs_graphs(node: NodeProto) -> bool:
    """Whether a node has subgraphs: control flow, mostly."""
    return any(attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for attribute in node.attribute)


def values_read(nodes: Iterable[NodeProto]) -> Iterator[str]:
    """The values that nodes read, and those that their subgraphs read or return."""
    for node in nodes:
        yield from node.input
        for graph in graphs_in(node):
            yield from values_read(graph.node)
            yield from (value.name for value in graph.output)


def taken_branch(
    node: NodeProto, condition: bool, prefix: str, where: str
) -> tuple[list[TensorProto], list[NodeProto]]:
    """The weights and nodes of the branch that an ``If`` takes, then identities that produce its outputs.

    Names defined in the branch are prefixed by ``prefix``, to avoid clashes with outer names. A ModelError's message
    begins with ``where``.
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
    """The nodes of one iteration of a body on given values, weights as constants among them, and the output names."""
    if len(body.input) != len(given) or body.sparse_initializer:
        raise ModelError(f"{where} has a body that does not take its inputs; the file is damaged")
    names = {value: prefix + value for value in _defined(body)}
    names |= {value.name: outside for value, outside in zip(body.input, given, strict=True)}
    weights = [helper.make_node("Constant", [], [names[each.name]], value=each) for each in body.initializer]
    nodes = [_renamed(node, names, prefix) for node in body.node]
    return [*weights, *nodes], tuple(names.get(value.name, value.name) for value in body.output)


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


def _defined(graph: GraphProto) -> Iterator[str]:
    yield from (tensor.name for tensor in graph.initializer)
    yield from (value for node in graph.node for value in node.output if value)


def _renamed(node: NodeProto, names: Mapping[str, str], prefix: str) -> NodeProto:
    """The node with other value names, including those that its subgraphs capture."""
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
