"""Recognition of rotary positions' rotated halves, which exporters write as slices, a negation and a concat."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.graph import Graph, Node
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.gather import Gather
from iossim.ir.ops.nary import Mul
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.models.passes.graph_pass import GraphPass, with_nodes

_NEGATION = Unary("neg")


class RotationRecognition(GraphPass):
    """Turns ``concat(-x[half:], x[:half])`` along the last axis into a lookup of pairs and a product with their signs.

    So do two kernels what took five: the product is one with those of cosines and sines (Su et al., 2021,
    arXiv:2104.09864, as Llama's code has it). Unused parts are left to dead op elimination.

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
    """A concat of all parts of one value, of which some are negated, as a lookup and a product; else itself."""
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
    indices, factors, pairs = (f"{node.name}.{name}" for name in ("places", "signs", "pairs"))
    constants[indices] = ArrayConstant(np.array(places, dtype=np.int64))
    constants[factors] = ArrayConstant(signs.astype(graph.types[node.outputs[0]].dtype.numpy))
    lookup = Node(pairs, Gather(-1), (found[0].whole, indices), (pairs,))
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
