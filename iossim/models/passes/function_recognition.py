"""Recognition of activations that exporters write as several ops, such as GELU by the error function.

Libraries compute an activation in the call of the product before it; its parts are a kernel of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from iossim.ir.graph import Graph, Node
from iossim.ir.op import Array
from iossim.ir.ops.functions import UNARY, Unary
from iossim.ir.ops.unary import Cast
from iossim.ir.types import DType
from iossim.models.passes.graph_pass import with_nodes

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


def function_recognition(graph: Graph) -> Graph:
    """Turns element-wise ops that compute a known function of one value into one op.

    Invariant: the outputs are unchanged up to rounding.
    """
    made: dict[str, list[Node]] = {}
    for last in reversed(graph.nodes):
        fits = partial(_is_part, graph, last)
        for x, members in parts_before(graph, last, _LONGEST, fits) if last.name not in made else ():
            names = {node.name for node in members}
            values = [value for node in members[1:] for value in node.outputs]
            is_private = graph.returned.isdisjoint(values) and all(
                reader.name in names for value in values for reader in graph.consumers[value]
            )
            if len(members) > 1 and is_private and (function := _function(graph, members, x)):
                made |= {name: [] for name in names} | {last.name: [replace(last, op=function, inputs=(x,))]}
                break
    nodes = [each for node in graph.nodes for each in made.get(node.name, (node,))]
    return with_nodes(graph, nodes, graph.constants)


def parts_before(
    graph: Graph, last: Node, most: int, is_part: Callable[[Node], bool]
) -> Iterator[tuple[str, list[Node]]]:
    """The values of which alone at most so many parts compute the output of ``last``, from the nearest on, each with
    these parts, the last one first.
    """
    members, free = list[Node](), set(last.outputs)
    while len(members) < most:
        makers = [graph.producer[value] for value in free if value in graph.producer]
        node = max(makers, key=lambda each: graph.position[each.name], default=None)
        if node is None or not is_part(node):
            return
        members.append(node)
        free = (free - set(node.outputs)) | (set(node.inputs) - graph.constants.keys())
        if len(free) == 1:
            yield next(iter(free)), members


def computed_by(parts: Sequence[Node], arrays: dict[str, Array]) -> Array:
    """The output of ops, the last one first, of given operands; casts keep the numbers as they are."""
    with np.errstate(all="ignore"):
        for node in reversed(parts):
            read = [arrays[value] for value in node.inputs]
            arrays[node.outputs[0]] = read[0] if isinstance(node.op, Cast) else node.op.evaluate(read)[0]
    return arrays[parts[0].outputs[0]]


def _is_part(graph: Graph, last: Node, node: Node) -> bool:
    """True for an element-wise op of the type that ``last`` makes, whose constants are single numbers at hand."""
    whole = graph.types[last.outputs[0]]
    constants = [graph.constants[value] for value in node.inputs if value in graph.constants]
    if not node.op.is_elementwise or graph.types[node.outputs[0]] != whole or not whole.dtype.is_floating:
        return False
    return all(each.type.elements == 1 and each.is_at_hand and not each.is_absent for each in constants)


def _function(graph: Graph, members: Sequence[Node], x: str) -> Unary | None:
    """The function of ``x`` that ops compute, the last one first, by its values at points beside zero."""
    known = {value for node in members for value in node.inputs if value in graph.constants}
    numbers = {value: np.asarray(number, np.float32) for value in known if (number := graph.number(value)) is not None}
    computed, expected = computed_by(members, {x: _POINTS, **numbers}), _expected()
    off = np.abs(computed - expected) / (1 + np.abs(expected))
    nearest = int(off.max(axis=1).argmin())
    within = _TOLERANCE if graph.types[x].dtype is DType.FLOAT32 else _OF_16_BITS
    return _OPS[nearest] if off[nearest].max() <= within else None


@cache
def _expected() -> Array:
    """The values of each of the functions at the points, shape ``[functions, points]``."""
    return np.stack([each.evaluate([_POINTS])[0] for each in _OPS])
