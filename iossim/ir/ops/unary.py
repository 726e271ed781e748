"""Element-wise ops on one tensor with a kind of their own: the identity, casts, the most frequent activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from iossim.base.errors import ModelError
from iossim.ir.op import Array, Op, Role, as_float32, require
from iossim.ir.types import FP8, DType, TensorType

if TYPE_CHECKING:
    from iossim.ir.onnx_spelling import OnnxNode


class Identity(Op, kind="identity", onnx_types="Identity Dropout", role=Role.VIEW):
    """The input, unchanged."""

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0],)

    def completed(self, node: OnnxNode) -> Self:
        if node.has_input(2) and bool(node.constant(2, "training mode")):
            raise ModelError(f"Dropout {node.name!r} is in training mode; export the model for inference")
        return self


@dataclass(frozen=True)
class Cast(Op, kind="cast", onnx_types="Cast CastLike", role=Role.ELEMENTWISE):
    """The same numbers as ``dtype``: the nearest float (fp8 saturates), truncated to an integer, non-zero is true."""

    dtype: str

    def output(self, x: TensorType) -> TensorType:
        require(self.dtype in list(DType), f"casts to {self.dtype!r}, which is no element type")
        return TensorType(x.shape, DType(self.dtype))

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dtype = DType(self.dtype)
        x = as_float32(inputs[0]).clip(-FP8[dtype], FP8[dtype]) if dtype in FP8 else inputs[0]
        with np.errstate(all="ignore"):  # numbers out of the type's range
            return (x.astype(dtype.numpy, copy=False),)

    def completed(self, node: OnnxNode) -> Self:
        from iossim.ir.onnx_spelling import dtype_of_onnx

        code, what = int(node.attribute("to", 0)), f"{node.op_type} {node.name!r}"
        to = node.input_type(1).dtype if node.op_type == "CastLike" else dtype_of_onnx(code, what)
        narrow = {each for each in (node.input_type(0).dtype, to) if each.is_narrow} - FP8.keys()
        node.refuse(narrow or not node.attribute("saturate", 1), f"rounds to {to}")
        return replace(self, dtype=str(to))

    def to_onnx(self) -> tuple[str, dict[str, object]]:
        from iossim.ir.onnx_spelling import onnx_code

        return "Cast", {"to": onnx_code(DType(self.dtype))}


class Relu(Op, kind="relu", onnx_types="Relu", role=Role.ACTIVATION, flops_per_element=1):
    """``max(x, 0)``, element by element."""

    def compute(self, x: Array) -> Array:
        return np.asarray(np.maximum(x, x.dtype.type(0)))


class Sigmoid(Op, kind="sigmoid", onnx_types="Sigmoid", role=Role.ACTIVATION, flops_per_element=4):
    """``1 / (1 + exp(-x))``, element by element; counted as its four operations."""

    def output(self, x: TensorType) -> TensorType:
        require(x.dtype.is_floating or x.dtype.bytes == 1, f"takes floating-point numbers, not {x.dtype}")
        return x

    def compute(self, x: Array) -> Array:
        return logistic(x)


def logistic(x: Array) -> Array:
    """``1 / (1 + exp(-x))`` of an array of any shape, in its own type."""
    small = np.exp(-np.abs(x))  # exponent never positive, so that nothing overflows
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


@dataclass(frozen=True)
class Clip(Op, kind="clip", onnx_types="Clip", onnx_names="minimum=min maximum=max", role=Role.ACTIVATION):
    """``min(max(x, minimum), maximum)``, element by element; None leaves that side open."""

    minimum: float | None = None
    maximum: float | None = None

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * sum(bound is not None for bound in (self.minimum, self.maximum))

    def compute(self, x: Array) -> Array:
        # ONNX returns the maximum if the bounds cross, so the maximum is applied last.
        if self.minimum is not None:
            x = np.maximum(x, np.asarray(self.minimum).astype(x.dtype))
        return x if self.maximum is None else np.minimum(x, np.asarray(self.maximum).astype(x.dtype))
