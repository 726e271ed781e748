"""The gradient of picking by index: each entry of a table has the sum of what was picked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from iossim.base.errors import GraphError
from iossim.ir.op import Array, Op, require
from iossim.ir.ops.broadcasting import normal_axis, widen
from iossim.ir.ops.gather import Gather
from iossim.ir.types import TensorType


@dataclass(frozen=True)
class GatherBackward(Op):
    """Inputs ``grad_output [..., *indices, ...]`` and ``indices``; makes the gradient of the data.

    The data has ``size`` entries along ``axis``.
    """

    kind: ClassVar[str] = "gather_backward"

    axis: int
    size: int

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) == 2, f"needs the gradient of the output and the indices, not {len(inputs)} inputs")
        grad_output, indices = inputs
        behind = self.axis + len(indices.shape)
        data = TensorType(
            (*grad_output.shape[: self.axis], self.size, *grad_output.shape[behind:]), grad_output.dtype
        )
        (picked,) = Gather(normal_axis(self.axis, len(data.shape))).infer((data, indices))
        require(
            picked == grad_output, f"is the gradient of what {indices} picks of {data}, which is not {grad_output}"
        )
        return (data,)

    def mixes_images(self, first_varies: bool) -> bool:
        return True

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return inputs[0].elements

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        grad_output, indices = widen(inputs[0]), inputs[1]
        behind = grad_output.shape[self.axis + indices.ndim :]
        total = np.zeros((*grad_output.shape[: self.axis], self.size, *behind), grad_output.dtype)
        places: tuple[Any, ...] = (*[slice(None)] * self.axis, indices)
        try:
            np.add.at(total, places, grad_output)
        except IndexError as error:
            raise GraphError(f"was gathered outside its data: {error}") from None
        return (total.astype(inputs[0].dtype, copy=False),)
