"""Padding of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from iossim.ir.op import Array, NotCoveredError, OnnxNode, Op, normal_axis, one_input, require
from iossim.ir.types import TensorType

#: ONNX and NumPy use the same names.
_MODES = ("constant", "reflect", "edge", "wrap")


@dataclass(frozen=True)
class Pad(Op, kind="pad", onnx_types="Pad", onnx_names="pads mode value=constant_value|value"):
    """``pads`` are the elements added before each axis, then after each; a negative number crops.

    ``mode`` is ``constant`` (``value``), ``reflect`` (mirrored, without the edge itself), ``edge`` or ``wrap``.
    """

    pads: tuple[int, ...]
    mode: str = "constant"
    value: float = 0.0

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = one_input(inputs)
        rank = len(x.shape)
        require(len(self.pads) == 2 * rank, f"its pads {list(self.pads)} are not two for each axis of {x}")
        require(self.mode in _MODES, f"has no mode {self.mode!r}; known: {', '.join(_MODES)}")
        shape = []
        for size, before, after in zip(x.shape, self.pads[:rank], self.pads[rank:], strict=True):
            reach = max(before, after)
            require(
                self.mode not in ("reflect", "wrap") or reach <= size - (self.mode == "reflect"),
                f"cannot {self.mode} {reach} elements of an axis of {size}",
            )
            shape.append(size + before + after)
        return (TensorType(tuple(shape), x.dtype),)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        before, after = self.pads[: x.ndim], self.pads[x.ndim :]
        kept = tuple(
            slice(max(0, -low), size - max(0, -high)) for size, low, high in zip(x.shape, before, after, strict=True)
        )
        widths = [(max(0, low), max(0, high)) for low, high in zip(before, after, strict=True)]
        if self.mode == "constant":
            fill = np.asarray(self.value).astype(x.dtype)
            return (np.pad(x[kept], widths, constant_values=fill),)
        y: Array = np.pad(x[kept], widths, mode=self.mode)  # type: ignore[call-overload]
        return (y,)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        """Everything is an attribute below opset 11, an input from then on; from opset 18 axes may be selected."""
        rank = len(node.input_type(0).shape)
        if node.input_type(0).dtype.is_narrow:
            raise NotCoveredError(f"Pad {node.name!r} pads {node.input_type(0).dtype}")
        if node.opset < 11:
            pads = list(node.attribute("pads", ()))
            value = float(node.attribute("value", 0.0))
        else:
            pads = [int(size) for size in node.constant(1, "pads")]
            value = float(node.constant(2, "value").item()) if node.has_input(2) else 0.0
        if node.has_input(3):
            axes = [normal_axis(int(axis), rank) for axis in node.constant(3, "axes")]
            whole = [0] * (2 * rank)
            for place, axis in enumerate(axes):
                whole[axis], whole[rank + axis] = pads[place], pads[len(axes) + place]
            pads = whole
        return cls(tuple(pads), str(node.attribute("mode", "constant")), value), node.data_inputs(1)
