"""Products of quantised tensors: whole numbers multiplied and summed in 32 bits, then brought to the output's scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from iossim.ir.op import Array, NotCoveredError, OnnxNode, Op, as_float32, require
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.quantize import QUANTISED, along, check_parameters, quantised
from iossim.ir.types import DType, TensorType


@dataclass(frozen=True)
class QuantizedConv(Op):
    """Inputs ``x, x scale, x zero, weight, weight scale, weight zero, y scale, y zero`` and, if present, ``bias [M]`` (int32).

    Scale and zero point of the weight are one number, or one for each filter. Attributes are those of :class:`Conv`.
    """

    kind: ClassVar[str] = "quantized_conv"
    onnx_types: ClassVar[tuple[str, ...]] = ("QLinearConv",)
    flops_per_element: ClassVar[int] = 4

    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    groups: int = 1

    @property
    def product(self) -> Conv:
        """The convolution itself, on tensors without scales."""
        return Conv(self.strides, self.pads, self.dilations, self.groups)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) in (8, 9), f"needs eight inputs and maybe a bias, not {len(inputs)} inputs")
        check_parameters(inputs[3], inputs[4:6], 0)
        (y,) = self.product.infer([inputs[0], inputs[3], *inputs[8:]])
        return (TensorType(y.shape, inputs[7].dtype),)

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return self.product.multiply_adds([inputs[0], inputs[3]], outputs)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero, *bias = inputs
        centred = weight.astype(np.float64) - along(w_zero.astype(np.float64), 0, weight.ndim)
        # fp64 holds sums of products of bytes without rounding, whatever their number.
        (total,) = self.product.evaluate([x.astype(np.float64) - x_zero, centred])
        if bias:
            total = total + along(bias[0].astype(np.float64), 1, total.ndim)
        scale = as_float32(x_scale) * along(as_float32(w_scale), 1, total.ndim) / as_float32(y_scale)
        return (quantised(total * scale, y_zero),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        # A convolution of the tensors alone, whose attributes it shares.
        names = (node.inputs[0], node.inputs[3])
        bare = OnnxNode(
            "Conv", node.name, names, node.outputs, node.attributes, node.types, node.constants, node.opset
        )
        conv, _ = Conv.from_onnx(bare)
        return cls(conv.strides, conv.pads, conv.dilations, conv.groups), node.data_inputs(9)

    def to_onnx(self) -> tuple[str, dict[str, Any]]:
        return "QLinearConv", self.product.to_onnx()[1]


@dataclass(frozen=True)
class QuantizedMatMul(Op):
    """Inputs ``a, a scale, a zero, b, b scale, b zero, y scale, y zero``; scales and zero points are one number each."""

    kind: ClassVar[str] = "quantized_matmul"
    onnx_types: ClassVar[tuple[str, ...]] = ("QLinearMatMul",)
    flops_per_element: ClassVar[int] = 4

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) == 8, f"needs eight inputs, not {len(inputs)}")
        a, b = (TensorType(inputs[place].shape) for place in (0, 3))
        (y,) = MatMul().infer([a, b])
        return (TensorType(y.shape, inputs[7].dtype),)

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return MatMul().multiply_adds([inputs[0]], outputs)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
        total = (a.astype(np.float64) - a_zero) @ (b.astype(np.float64) - b_zero)
        scale = as_float32(a_scale) * as_float32(b_scale) / as_float32(y_scale)
        return (quantised(total * scale, y_zero.reshape(())),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        dtypes = {node.input_type(place).dtype for place in (0, 3, 7)}
        single = all(node.input_type(place).elements == 1 for place in (1, 2, 4, 5, 6, 7))
        if not single or not dtypes <= set(QUANTISED):
            raise NotCoveredError(f"QLinearMatMul {node.name!r} has several scales, or {', '.join(sorted(dtypes))}")
        return cls(), node.data_inputs(8)


@dataclass(frozen=True)
class IntegerMatMul(Op):
    """``(a - a zero) @ (b - b zero)`` as int32; the zero points, if present, are one number each."""

    kind: ClassVar[str] = "integer_matmul"
    onnx_types: ClassVar[tuple[str, ...]] = ("MatMulInteger",)

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) in (2, 3, 4), f"needs two tensors and maybe their zero points, not {len(inputs)} inputs")
        (y,) = MatMul().infer([TensorType(value.shape) for value in inputs[:2]])
        return (TensorType(y.shape, DType.INT32),)

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return MatMul().multiply_adds([inputs[0]], outputs)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, b = (array.astype(np.int32) for array in inputs[:2])
        zeros = [array.astype(np.int32).reshape(()) for array in inputs[2:]]
        a = a - zeros[0] if zeros else a
        b = b - zeros[1] if len(zeros) > 1 else b
        return (np.asarray(a @ b),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        places = [place for place in (2, 3) if node.has_input(place)]
        if places == [3] or any(node.input_type(place).elements != 1 for place in places):
            raise NotCoveredError(f"MatMulInteger {node.name!r} has several zero points")
        return cls(), node.data_inputs(4)
