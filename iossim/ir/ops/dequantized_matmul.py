"""Products of numbers with weights that are stored as small integers (W4A16, W8A16), dequantised on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from iossim.ir.op import Array, Op, require
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.quantize import OF_FOUR_BITS, Dequantize
from iossim.ir.types import DType, TensorType

#: Element types of weights.
OF_FEW_BITS = (*OF_FOUR_BITS, DType.INT8, DType.UINT8)


@dataclass(frozen=True)
class DequantizedMatMul(Op, kind="dequantized_matmul", has_epilogue=True):
    """``a [..., M, K] @ (scale * (weight [K, N] - zero))``: inputs ``a``, ``weight``, ``scale``, maybe ``zero``.

    The weight is of 4 or 8 bits. Scale, of ``a``'s element type, and zero point, of the weight's (default 0), are
    ``[ceil(K / block), N]``: one for each ``block`` of a column. What ONNX writes as DequantizeLinear and MatMul is
    MatMulNBits in ONNX Runtime, and the format of AWQ (Lin et al., 2024) and GPTQ (Frantar et al., 2023).
    """

    block: int

    @property
    def dequantisation(self) -> Dequantize:
        """The op that makes the weight ``[K, N]`` in the element type of ``a``."""
        return Dequantize(0, self.block)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) in (3, 4), f"needs two matrices, a scale and maybe a zero point, not {len(inputs)} inputs")
        a, weight, scale, *zero = inputs
        require(
            weight.dtype in OF_FEW_BITS and len(weight.shape) == 2, f"its weight {weight} is no matrix of 4 or 8 bits"
        )
        require(self.block > 0, f"its blocks have {self.block} positions")
        require(all(each.dtype is weight.dtype for each in zero), f"its zero point is not of {weight.dtype}")
        require(scale.dtype is a.dtype, f"its scale {scale} differs in element type from {a}")
        return MatMul().infer([a, *self.dequantisation.infer(inputs[1:])])

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return MatMul().multiply_adds(inputs, outputs)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        """Each weight is dequantised once: two operations beside those of the product."""
        return 2 * (self.multiply_adds(inputs, outputs) + inputs[1].elements)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return MatMul().evaluate([inputs[0], *self.dequantisation.evaluate(inputs[1:])])

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        """The dequantisation, after which a MatMul is written."""
        return self.dequantisation.to_onnx()
