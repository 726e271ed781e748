"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from iossim.backends.torch_cuda.operators.registry import Operand, computes, floating_only
from iossim.ir.op import Op
from iossim.ir.ops.gemm import Gemm
from iossim.ir.ops.stacked_product import folded_shapes
from iossim.ir.types import TensorType


@computes("matmul", refuses=floating_only)
def _matmul(op: Op, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    shapes = folded_shapes(types[0].shape, types[1].shape)
    if len(types[1].shape) < 3 or shapes == (types[0].shape, types[1].shape):
        return (torch.matmul(*operands),)  # it folds rows onto one matrix by itself, and can write into given memory
    a, b = (torch.reshape(operand, shape) for operand, shape in zip(operands, shapes, strict=True))
    return (torch.reshape(torch.matmul(a, b), op.infer(types)[0].shape),)


@computes("gemm", refuses=floating_only)
def _gemm(op: Gemm, operands: Sequence[Operand], types: Sequence[TensorType]) -> tuple[Operand, ...]:
    a = torch.t(operands[0]) if op.trans_a else operands[0]
    b = torch.t(operands[1]) if op.trans_b else operands[1]
    if len(operands) == 3:
        return (torch.addmm(operands[2], a, b, beta=op.beta, alpha=op.alpha),)
    product = torch.mm(a, b)
    return (product if op.alpha == 1 else torch.mul(product, op.alpha),)
