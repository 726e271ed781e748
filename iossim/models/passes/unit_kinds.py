"""Kinds of units: a list of their ops, such as ``Conv-Add-Relu``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from iossim.ir.graph import Graph, Node
from iossim.ir.op import Role

if TYPE_CHECKING:
    from iossim.ir.attention import SpeltAttention

#: A unit of more parts than this is described as having element-wise ops, without listing them.
_MOST_PARTS = 5


def unit_kind(graph: Graph, nodes: Sequence[Node]) -> str:
    """The kind of a unit of several ops, in order, such as ``Matmul-Bias-Gelu``; views are omitted.

    ``SepConv`` is depthwise and pointwise, ``Bias`` a sum with a constant; an attention has its own name.
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
    for node in working:
        is_anchor = not node.op.is_elementwise
        if parts and is_anchor and node.op.kind == "conv" and anchors[-1] and parts[-1] == "Conv":
            parts[-1] = "SepConv"
            continue
        is_bias = node.op.kind == "add" and any(value in graph.constants for value in node.inputs)
        parts.append("Attention" if node.name in attentions else "Bias" if is_bias else node.op.unit_kind)
        anchors.append(is_anchor)
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
