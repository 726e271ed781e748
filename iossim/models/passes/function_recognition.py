"""Recognition of activations that exporters write as several ops, such as GELU by the error function.

Libraries compute an activation in the call of the product before it; its parts are a kernel of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from iossim.ir.graph import Graph, Node
from iossim.ir.op import Array
from iossim.ir.ops.functions import UNARY, Unary
from iossim.ir.types import DType
from iossim.models.passes.graph_pass import GraphPass, with_nodes

#: Length of the longest one: the approximation of GELU by the hyperbolic tangent takes eight ops.
_LONGEST = 9
#: Names of the functions, in :data:`iossim.ir.ops.functions.UNARY`.
FUNCTIONS = ("gelu", "gelu_tanh", "swish", "hard_swish", "mish", "softplus", "softsign")
#: The ops of these, and the approximation of GELU by a logistic function (arXiv:1606.08415, section 2), as in CLIP.
_OPS = (
    *(Unary(name, tuple(usual for _, usual in UNARY[name].parameters)) for name in FUNCTIONS),
    Unary("swish", (1.702,)),
)
#: Points at which a function is recognised by its values, and how far these may be off in fp32, and in 16 bits.
_POINTS = np.linspace(-6.0, 6.0, 97, dtype=np.float32)
_TOLERANCE, _OF_16_BITS = 1e-4, 5e-3


class FunctionRecognition(GraphPass):
    """Turns element-wise ops that compute a known function of one value into one op.

    Invariant: the outputs are unchanged up to rounding.
    """

    def apply(self, graph: Graph) -> Graph:
        makers, gone = dict(graph.producer), set[str]()
        for node in graph.nodes:
            found = _spelt_function(graph, node, makers)
            if found is not None:
                function, x, parts = found
                makers[node.outputs[0]] = replace(node, op=function, inputs=(x,))
                gone.update(parts)
        kept = [makers.get(node.outputs[0], node) for node in graph.nodes if node.name not in gone]
        return with_nodes(graph, kept, graph.constants) if gone else graph


def _spelt_function(graph: Graph, last: Node, makers: Mapping[str, Node]) -> tuple[Unary, str, list[str]] | None:
    """The function that a node completes, its argument, and the names of the other nodes; None if it is none."""
    members, names = [last], {last.name}
    free = set(last.inputs) - graph.constants.keys()
    while _is_part(graph, last, last) and len(members) <= _LONGEST:
        if len(free) == 1 and len(members) > 1 and (function := _function(graph, members, *free)):
            return function, next(iter(free)), [node.name for node in members[1:]]
        before = [
            makers[value]
            for value in free - graph.returned
            if value in makers
            and _is_part(graph, makers[value], last)
            and all(reader.name in names for reader in graph.consumers[value])
        ]
        if not before:
            break
        members.append(max(before, key=lambda node: graph.position[node.name]))
        names.add(members[-1].name)
        free = (free - set(members[-1].outputs)) | (set(members[-1].inputs) - graph.constants.keys())
    return None


def _is_part(graph: Graph, node: Node, last: Node) -> bool:
    """True for an element-wise op of the type that ``last`` makes, whose constants are single numbers at hand."""
    whole = graph.types[last.outputs[0]]
    constants = [graph.constants[value] for value in node.inputs if value in graph.constants]
    if not node.op.is_elementwise or graph.types[node.outputs[0]] != whole or not whole.dtype.is_floating:
        return False
    return all(each.type.elements == 1 and each.is_at_hand and not each.is_absent for each in constants)


def _function(graph: Graph, members: Iterable[Node], x: str) -> Unary | None:
    """The function of ``x`` that ops compute, the last one first, by its values at points beside zero."""
    values: dict[str, Array] = {x: _POINTS}
    with np.errstate(all="ignore"):
        for node in sorted(members, key=lambda each: graph.position[each.name]):
            for value in set(node.inputs) & graph.constants.keys():
                values[value] = graph.constants[value].load().reshape(()).astype(np.float32)
            values[node.outputs[0]] = computed = node.op.evaluate([values[value] for value in node.inputs])[0]
    expected = _expected()
    off = np.abs(computed - expected) / (1 + np.abs(expected))
    nearest = int(off.max(axis=1).argmin())
    within = _TOLERANCE if graph.types[x].dtype is DType.FLOAT32 else _OF_16_BITS
    return _OPS[nearest] if off[nearest].max() <= within else None


@cache
def _expected() -> Array:
    """The values of each of the functions at the points, shape ``[functions, points]``."""
    return np.stack([each.evaluate([_POINTS])[0] for each in _OPS])
