"""Products with weights of a few bits, which stay as they are stored (W4A16, W8A16).

They are written as DequantizeLinear of constants before a MatMul or Gemm of floating-point activations (QDQ), or as
ONNX Runtime's MatMulNBits. A decode step of a language model is bound by reading them (Frantar et al., 2023).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add
from iossim.ir.ops.quantize import OF_FEW_BITS, Dequantize, DequantizedMatMul
from iossim.ir.ops.reshape import Expand, Reshape, Transpose
from iossim.ir.ops.unary import Cast
from iossim.models.passes.graph_pass import LocalPass
from iossim.models.passes.simplification import DeadOpElimination, Derived, is_constant


class DequantisedProducts(LocalPass):
    """Matrix products with a dequantised constant become one op each, which dequantises it on the way.

    One scale, and one for each column, become those of blocks that are whole columns. A weight that is dequantised in
    another way is left to constant folding.

    Invariant: the outputs are unchanged up to the rounding of scales that are cast to the type of the activations.
    """

    kinds = ("matmul", "gemm")

    def apply(self, graph: Graph) -> Graph:
        made = super().apply(graph)
        return graph if made is graph else DeadOpElimination().apply(made)

    def replaced(self, graph: Graph, node: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
        a, weight, *bias = node.inputs
        if not isinstance(node.op, MatMul) and node.op not in (Gemm(), Gemm(trans_b=True)):
            return {}
        of_type, is_turned = graph.types[a].dtype, node.op == Gemm(trans_b=True)
        made = graph.producer.get(weight)
        while made is not None and (made.op == Transpose((1, 0)) or isinstance(made.op, Cast)):
            is_turned ^= isinstance(made.op, Transpose)
            made = graph.producer.get(made.inputs[0])
        if made is None or not isinstance(made.op, Dequantize) or not is_constant(graph, weight):
            return {}
        stored, scale = (graph.types[value] for value in made.inputs[:2])
        is_single, is_along = scale.elements == 1, made.op.axis == is_turned
        if stored.dtype not in OF_FEW_BITS or len(stored.shape) != 2:
            return {}
        if not is_single and is_along != bool(made.op.block):
            return {}  # scales of rows, or of blocks of a row
        new = Derived(graph, constants, f"{node.name}.weight")
        operands, (inner, columns) = list(made.inputs), stored.shape[:: -1 if is_turned else 1]
        if not made.op.block:
            operands[1:] = (new.add(Reshape((1, 1 if is_single else columns)), each) for each in operands[1:])
            if is_single:
                operands[1:] = (new.add(Expand((1, columns)), each) for each in operands[1:])
        if is_turned:
            turned = len(operands) if made.op.block else 1
            operands[:turned] = (new.add(Transpose((1, 0)), each) for each in operands[:turned])
        if scale.dtype is not of_type:
            operands[1] = new.add(Cast(str(of_type)), operands[1])
        product = replace(node, op=DequantizedMatMul(min(made.op.block or inner, inner)), inputs=(a, *operands))
        if not bias:
            return {node.name: [*new.nodes, product]}
        total = free_name(f"{node.name}.product", new.types)
        product = replace(product, name=total, outputs=(total,))
        return {node.name: [*new.nodes, product, replace(node, op=Add(), inputs=(total, *bias))]}


def weight_remarks(scheduled: Graph) -> tuple[str, ...]:
    """Number of products with weights of each width, and their bytes, as sentences."""
    found = defaultdict[int, list[Node]](list)
    for node in scheduled.of_kind.get("dequantized_matmul", ()):
        found[scheduled.types[node.inputs[1]].dtype.bits].append(node)
    remarks = []
    for bits, nodes in sorted(found.items()):
        values = dict.fromkeys(value for node in nodes for value in node.inputs[1:])
        stored = sum(scheduled.types[value].bytes for value in values)
        wide = 2 * sum(scheduled.types[value].elements for value in dict.fromkeys(node.inputs[1] for node in nodes))
        what = "products read weights" if len(nodes) > 1 else "product reads weights"
        remarks.append(
            f"{len(nodes)} {what} of {bits} bits: {stored / 1e6:.3g} MB with scales, in place of {wide / 1e6:.3g} in "
            "16 bits."
        )
    return tuple(remarks)
