"""What a unit is called: its ops in words, as ``Conv-Add-Relu``, and what a handful of them compute by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from iossim.ir.graph import Graph, Node
from iossim.ir.op import Array, Op, Role
from iossim.ir.ops.add import Add
from iossim.ir.ops.channels_last import ChannelsLast
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.foreign import Foreign
from iossim.ir.ops.nary import Nary
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.unary import FUNCTIONS, Unary
from iossim.ir.types import DType

#: A unit of more parts than this says that it has element-wise ops, not which.
_MOST_PARTS = 5
#: The longest spelling that is looked at: the approximation of GELU takes eight ops.
_LONGEST = 9
#: Functions that exporters spell out in several ops. Known by their values at these points.
_SPELT_OUT = ("gelu", "gelu_tanh", "swish", "hard_swish", "mish", "softplus", "softsign")
_POINTS = np.linspace(-6.0, 6.0, 97, dtype=np.float32)


def op_kind(op: Op) -> str:
    """The kind of a unit of one op."""
    if isinstance(op, ChannelsLast):
        return f"{op_kind(op.channels_first)}Nhwc"
    if isinstance(op, MaxPool | AveragePool | GlobalAveragePool):
        return "Pool"
    if isinstance(op, Foreign):
        return op.op_type
    if isinstance(op, Unary | Nary | Reduce):
        return op.to_onnx()[0]
    return "-".join(part.capitalize() for part in op.kind.split("_"))


def unit_kind(graph: Graph, nodes: Sequence[Node]) -> str:
    """The kind of a unit of several ops, in order: views left out, ``SepConv`` for depthwise and pointwise, ``Bias`` for a sum
    with a constant, and one name for the ops that compute a known function, as ``Matmul-Bias-Gelu``."""
    working = [node for node in nodes if node.op.role is not Role.VIEW]
    if len(working) < 2:
        return op_kind((working or nodes)[-1].op)
    parts: list[str] = []
    anchors: list[bool] = []
    begin = 0
    while begin < len(working):
        node = working[begin]
        end, name = _spelt_out(graph, working, begin)
        is_anchor = not node.op.is_elementwise
        if parts and is_anchor and isinstance(node.op, Conv) and anchors[-1] and parts[-1] == "Conv":
            parts[-1], name = "SepConv", ""
        elif not name:
            name = "Bias" if _is_bias(graph, node) else op_kind(node.op)
        if name:
            parts.append(name)
            anchors.append(is_anchor)
        begin = end
    if len(parts) > _MOST_PARTS:
        parts = _without_details(parts, anchors)
    return "-".join(parts)


def _is_bias(graph: Graph, node: Node) -> bool:
    return isinstance(node.op, Add) and any(value in graph.constants for value in node.inputs)


def _without_details(parts: Sequence[str], anchors: Sequence[bool]) -> list[str]:
    found: list[str] = []
    for part, is_anchor in zip(parts, anchors, strict=True):
        if is_anchor:
            found.append(part)
        elif found[-1:] != ["Elementwise"]:
            found.append("Elementwise")
    return found


def _spelt_out(graph: Graph, nodes: Sequence[Node], begin: int) -> tuple[int, str]:
    """Where the longest run from ``begin`` ends that computes a known function of one value, and its name; or one op, unnamed.

    Judged by what it computes: the ops are evaluated at points on both sides of zero.
    """
    for end in range(min(len(nodes), begin + _LONGEST), begin + 1, -1):
        computed = _evaluate(graph, nodes[begin:end])
        if computed is None:
            continue
        expected = _expected()
        same = (np.abs(computed - expected) <= 1e-4 + 1e-4 * np.abs(expected)).all(axis=1)
        if same.any():
            name = _SPELT_OUT[int(same.argmax())]
            return end, "GeluTanh" if name == "gelu_tanh" else FUNCTIONS[name].onnx_type
    return begin + 1, ""


@cache
def _expected() -> Array:
    """The values of each of the functions at the points, shape ``[functions, points]``: computed once, compared with often."""
    functions = (FUNCTIONS[name] for name in _SPELT_OUT)
    return np.stack([each.compute(_POINTS, *(value for _, value in each.parameters)) for each in functions])


def _evaluate(graph: Graph, nodes: Sequence[Node]) -> Array | None:
    """A run of element-wise ops at the points, or None if it is no function of one value that it alone reads on."""
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
