"""Products of rows that are sorted by experts, each with the weights of its own: what a routed layer computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iossim.ir.op import Array, Op, Work, require
from iossim.ir.ops.gather import INDEX_TYPES
from iossim.ir.types import TensorType


class GroupedMatMul(Op, kind="grouped_matmul", onnx_types="GroupedMatMul", has_epilogue=True):
    """``x [rows, inner]``, ``weight [experts, inner, width]`` and ``ends [experts]`` to ``[rows, width]``.

    Expert ``e`` multiplies the rows from ``ends[e - 1]`` (the first from 0) up to ``ends[e]``: whole numbers that
    ascend, to at most the number of rows. Rows after the last end are zero. ``torch.nn.functional.grouped_mm`` is the
    same with ``offs``. ONNX has no such operator: :mod:`iossim.models.onnx.grouped_products` says how it is written.
    """

    def output(self, x: TensorType, weight: TensorType, ends: TensorType) -> TensorType:
        require(x.dtype == weight.dtype, f"its rows {x} and its weights {weight} differ in element type")
        fits = len(x.shape) == 2 and len(weight.shape) == 3 and x.shape[1] == weight.shape[1]
        require(fits, f"its rows {x} and its weights {weight} are not [rows, inner] and [experts, inner, width]")
        is_end = ends.shape == weight.shape[:1] and ends.dtype in INDEX_TYPES
        require(is_end, f"the ends {ends} of its groups are not a whole number (int32 or int64) for each of {weight}")
        return TensorType((x.shape[0], weight.shape[2]), x.dtype)

    def mixes_images(self, first_varies: bool) -> bool:
        return True  # ends count all rows

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return outputs[0].elements * inputs[0].shape[1]

    def work(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Work:
        """The weights of at most as many experts as there are rows are read."""
        x, weight, ends = inputs
        read_bytes = x.bytes + balanced(x, weight)[1].bytes + ends.bytes
        return Work(self.flops(inputs, outputs), read_bytes, outputs[0].bytes)

    def compute(self, x: Array, weight: Array, ends: Array) -> Array:
        y = np.zeros((len(x), weight.shape[2]), x.dtype)
        for own, begin, end in zip(weight, (0, *ends[:-1]), ends, strict=True):
            y[begin:end] = x[begin:end] @ own
        return y


def balanced(x: TensorType, weight: TensorType) -> tuple[TensorType, TensorType]:
    """Rows ``[active, rows of each, inner]`` and weights ``[active, inner, width]`` where rows are routed evenly.

    As many experts are active as have a row. A batched product of these is what a grouped one is priced as.
    """
    rows, inner = x.shape
    active = min(weight.shape[0], rows)
    return TensorType((active, -(-rows // active), inner), x.dtype), TensorType((active, *weight.shape[1:]), x.dtype)
