"""Kinds of units: a list of their ops, such as ``Conv-Add-Relu``, or the function that a few of them compute (an
unfused GELU).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from iossim.ir.graph import Graph, Node
from iossim.ir.op import Array, Role
from iossim.ir.types import DType

if TYPE_CHECKING:
    from iossim.ir.attention import SpeltAttention

#: A unit of more parts than this is described as having element-wise ops, without listing them.
_MOST_PARTS = 5
#: Length of the longest recognised decomposition: the approximation of GELU takes eight ops.
_LONGEST = 9
#: Functions that exporters decompose into several ops. They are recognised by their values at these points.
_SPELT_OUT = ("gelu", "gelu_tanh", "swish", "hard_swish", "mish", "softplus", "softsign")
_POINTS = np.linspace(-6.0, 6.0, 97, dtype=np.float32)


def unit_kind(graph: Graph, nodes: Sequence[Node]) -> str:
    """The kind of a unit of several ops, in order, such as ``Matmul-Bias-Gelu``; views are omitted.

    ``SepConv`` is depthwise and pointwise, ``Bias`` a sum with a constant; a recognised function, and an attention,
    has its own name.
    """
    attentions: Mapping[str, SpeltAttention] = {}
    if any(node.op.kind == "softmax" for node in nodes):
        from iossim.ir.attention import attentions_in  # other units hold none

        attentions = attentions_in(graph, nodes)
    inside = {node.name for attention in attentions.values() for node in attention.nodes[1:]}
    working = [node for node in nodes if node.op.role is not Role.VIEW and node.name not in inside]
    if len(working) < 2:
        return "Attention" if attentions else (working or nodes)[-1].op.unit_kind
    parts: list[str] = []
    anchors: list[bool] = []
    begin = 0
    while begin < len(working):
        node = working[begin]
        end, name = _spelt_out(graph, working, begin)
        is_anchor = not node.op.is_elementwise
        if parts and is_anchor and node.op.kind == "conv" and anchors[-1] and parts[-1] == "Conv":
            parts[-1], name = "SepConv", ""
        elif not name:
            is_bias = node.op.kind == "add" and any(value in graph.constants for value in node.inputs)
            name = "Bias" if is_bias else node.op.unit_kind
            name = "Attention" if node.name in attentions else name
        if name:
            parts.append(name)
            anchors.append(is_anchor)
        begin = end
    if len(parts) > _MOST_PARTS:
        parts = _without_details(parts, anchors)
    return "-".join(parts)


def _without_details(parts: Sequence[str], anchors: Sequence[bool]) -> list[str]:
    found: list[str] = []
    for part, is_anchor in zip(parts, anchors, strict=True):
        if is_anchor:
            found.append(part)
        elif found[-1:] != ["Elementwise"]:
            found.append("Elementwise")
    return found


def _spelt_out(graph: Graph, nodes: Sequence[Node], begin: int) -> tuple[int, str]:
    """End of the longest run from ``begin`` that computes a known function, and its name; or one op, unnamed.

    The run is recognised by its values: the ops are evaluated at points on both sides of zero.
    """
    for end in range(min(len(nodes), begin + _LONGEST), begin + 1, -1):
        computed = _evaluate(graph, nodes[begin:end])
        if computed is None:
            continue
        expected, names = _expected()
        same = (np.abs(computed - expected) <= 1e-4 + 1e-4 * np.abs(expected)).all(axis=1)
        if same.any():
            return end, names[int(same.argmax())]
    return begin + 1, ""


@cache
def _expected() -> tuple[Array, list[str]]:
    """The values of each of the functions at the points, shape ``[functions, points]``, and their names in kinds."""
    from iossim.ir.ops.functions import UNARY  # few units have such runs

    functions = [UNARY[name] for name in _SPELT_OUT]
    values = np.stack([each.compute(_POINTS, *(value for _, value in each.parameters)) for each in functions])
    names = ["GeluTanh" if name == "gelu_tanh" else UNARY[name].onnx_type for name in _SPELT_OUT]
    return values, names


def _evaluate(graph: Graph, nodes: Sequence[Node]) -> Array | None:
    """A run of element-wise ops at the points, or None if it is not a function of one value with no other readers."""
    made = {value for node in nodes for value in node.outputs}
    free = {value for node in nodes for value in node.inputs} - made - graph.constants.keys()
    scalars = [value for node in nodes for value in node.inputs if value in graph.constants]
    names = {node.name for node in nodes}
    passed_on = [value for node in nodes[:-1] for value in node.outputs]
    if (
        len(free) != 1
        or any(graph.types[value].elements != 1 or not graph.constants[value].is_at_hand for value in scalars)
        or not all(node.op.is_elementwise for node in nodes)
        or any(graph.types[value].dtype is not DType.FLOAT32 for value in (*free, *made, *scalars))
        or any(value in graph.returned for value in passed_on)
        or any(reader.name not in names for value in passed_on for reader in graph.consumers[value])
    ):
        return None
    values: dict[str, Array] = dict.fromkeys(free, _POINTS)
    values.update({value: graph.constants[value].load().reshape(()) for value in scalars})
    with np.errstate(all="ignore"):
        for node in nodes:
            values.update(zip(node.outputs, node.op.evaluate([values[value] for value in node.inputs]), strict=True))
    return values[nodes[-1].outputs[0]]
