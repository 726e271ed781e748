"""Recognition of layers that exporters write as parts: linear layers of flattened rows, and rotary positions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.gather import Gather
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.models.passes.graph_pass import GraphPass, with_nodes

_NEGATION = Unary("neg")


class FlatProductRecognition(GraphPass):
    """Turns a Gemm between reshapes that flatten rows and restore them into a MatMul and a sum, so that no reshape
    separates these from a residual sum, an activation or a split after them.

    Invariant: the outputs are unchanged up to rounding.
    """

    def apply(self, graph: Graph) -> Graph:
        found = {gemm.name: _unflattened(graph, gemm) for gemm in graph.of_kind.get("gemm", ())}
        made = {last.name: nodes for last, nodes in filter(None, found.values())}
        gone = {name for name, each in found.items() if each is not None}
        nodes = [each for node in graph.nodes if node.name not in gone for each in made.get(node.name, [node])]
        return with_nodes(graph, nodes, graph.constants) if made else graph


def _unflattened(graph: Graph, gemm: Node) -> tuple[Node, list[Node]] | None:
    """The reshape that restores the rows, and the ops that replace it and the product; None if there is none."""
    op = gemm.op
    before, readers = graph.producer.get(gemm.inputs[0]), graph.consumers[gemm.outputs[0]]
    assert isinstance(op, Gemm)
    if before is None or len(readers) != 1 or gemm.outputs[0] in graph.returned:
        return None
    (last,), (_, columns) = readers, graph.types[gemm.outputs[0]].shape
    if not isinstance(before.op, Reshape) or not isinstance(last.op, Reshape):
        return None
    x, weight, *bias = before.inputs[0], *gemm.inputs[1:]
    *leading, inner = graph.types[x].shape
    flattens = len(leading) > 1 and inner == graph.types[gemm.inputs[0]].shape[1]
    restores = graph.types[last.outputs[0]].shape == (*leading, columns)
    plain = (op.alpha, op.beta, op.trans_a) == (1.0, 1.0, False)
    if not (flattens and restores and plain) or any(graph.types[each].shape != (columns,) for each in bias):
        return None
    nodes: list[Node] = []
    if op.trans_b:
        turned = free_name(f"{gemm.name}.weight", graph.types)
        nodes.append(Node(turned, Transpose((1, 0)), (weight,), (turned,)))
        weight = turned
    product = free_name(f"{gemm.name}.rows", graph.types)
    nodes.append(Node(gemm.name, MatMul(), (x, weight), (product,) if bias else last.outputs))
    if bias:
        nodes.append(Node(last.name, Add(), (product, *bias), last.outputs))
    return last, nodes


class RotationRecognition(GraphPass):
    """Turns ``concat(-x[half:], x[:half])`` along the last axis into a lookup of pairs and a product with their signs.

    Two kernels then do the work of five: the product is fused with those by cosines and sines (Su et al., 2021,
    arXiv:2104.09864, as in Llama's code). Unused parts are left to dead op elimination.

    Invariant: the outputs are unchanged to the last bit.
    """

    def apply(self, graph: Graph) -> Graph:
        constants, nodes = dict(graph.constants), list[Node]()
        for node in graph.nodes:
            nodes += _turned(graph, node, constants) if isinstance(node.op, Concat) else [node]
        return graph if len(nodes) == len(graph.nodes) else with_nodes(graph, nodes, constants)


class _Part(NamedTuple):
    """Entries ``places`` of the last axis of ``whole``, and their sign."""

    whole: str
    places: range
    sign: int


def _turned(graph: Graph, node: Node, constants: dict[str, Constant]) -> list[Node]:
    """The lookup and the product that replace a concat of all parts of one value, some negated; else the node."""
    assert isinstance(node.op, Concat)
    shape = graph.types[node.outputs[0]].shape
    parts = [_part(graph, value) for value in node.inputs] if node.op.axis % len(shape) == len(shape) - 1 else []
    found = [part for part in parts if part is not None]
    places = [place for part in found for place in part.places]
    whole = {part.whole for part in found}
    if len(found) < len(node.inputs) or len(whole) > 1 or sorted(places) != list(range(shape[-1])):
        return [node]
    if graph.types[found[0].whole].shape != shape or all(part.sign > 0 for part in found):
        return [node]
    signs = np.repeat([part.sign for part in found], [len(part.places) for part in found])
    indices, factors, pairs = (free_name(f"{node.name}.{name}", graph.types) for name in ("places", "signs", "pairs"))
    constants[indices] = ArrayConstant(np.array(places, dtype=np.int64))
    constants[factors] = ArrayConstant(signs.astype(graph.types[node.outputs[0]].dtype.numpy))
    lookup = Node(pairs, Gather(len(shape) - 1), (found[0].whole, indices), (pairs,))
    return [lookup, Node(node.name, Mul(), (pairs, factors), node.outputs)]


def _part(graph: Graph, value: str, sign: int = 1) -> _Part | None:
    """A split's output, or a slice, along the last axis, negated or not."""
    node = graph.producer.get(value)
    if node is None:
        return None
    if node.op == _NEGATION:
        return _part(graph, node.inputs[0], -sign)
    size, last = graph.types[node.inputs[0]].shape[-1], len(graph.types[node.inputs[0]].shape) - 1
    match node.op:
        case Split() if node.op.axis % (last + 1) == last:
            begin = sum(node.op.sizes[: node.outputs.index(value)])
            return _Part(node.inputs[0], range(begin, begin + graph.types[value].shape[-1]), sign)
        case Slice() if [axis % (last + 1) for axis in node.op.axes] == [last] and node.op.steps == (1,):
            return _Part(node.inputs[0], range(size)[slice(node.op.starts[0], node.op.ends[0])], sign)
        case _:
            return None
