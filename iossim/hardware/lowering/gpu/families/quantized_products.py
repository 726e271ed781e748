"""Products of quantised tensors: the kernels of the same product in int8, its scales an epilogue."""

from __future__ import annotations

from dataclasses import replace

from iossim.hardware.lowering.gpu.families.convolution import convolution
from iossim.hardware.lowering.gpu.families.matrix_product import matrix_product
from iossim.hardware.lowering.gpu.registry import FAMILIES
from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.lowering.step import Step
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.quantized_products import QuantizedConv
from iossim.ir.types import Precision


@FAMILIES.lowers("quantized_conv")
def quantized_convolution(step: Step) -> list[Candidate]:
    """The convolution of the tensors alone."""
    assert isinstance(step.op, QuantizedConv)
    operands = (step.operands[0], step.operands[3])
    return convolution(replace(step, op=step.op.product, operands=operands, precision=Precision.INT8))


@FAMILIES.lowers("quantized_matmul")
def quantized_product(step: Step) -> list[Candidate]:
    """The product of the tensors alone."""
    operands = (step.operands[0], step.operands[3])
    return matrix_product(replace(step, op=MatMul(), operands=operands, precision=Precision.INT8))


@FAMILIES.lowers("integer_matmul")
def integer_product(step: Step) -> list[Candidate]:
    """The product of the tensors alone, whose sums stay in 32 bits."""
    return matrix_product(replace(step, op=MatMul(), operands=step.operands[:2], precision=Precision.INT8))
