"""A convolution in one of its three directions, as a kernel whose batch may be divided."""

from __future__ import annotations

from dataclasses import dataclass, replace

from iossim.hardware.lowering.step import Operand, Step
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.ir.types import Precision, TensorType

#: How many of an op's first operands have images; what follows is weights, or a sum over images.
_OPERANDS_WITH_IMAGES = {Conv.kind: 1, ConvBackwardData.kind: 1, ConvBackwardFilter.kind: 2}


@dataclass(frozen=True)
class ConvKernel:
    """The op says the direction; ``inputs`` are those of the whole batch."""

    op: Conv | ConvBackwardData | ConvBackwardFilter
    inputs: tuple[TensorType, ...]
    precision: Precision = Precision.FP32

    @property
    def batch(self) -> int:
        """Images of the whole batch."""
        return self.inputs[0].shape[0]

    @property
    def with_images(self) -> int:
        """How many of the inputs, the first, have images."""
        return _OPERANDS_WITH_IMAGES[self.op.kind]

    def of_batch(self, batch: int) -> ConvKernel:
        """The same of so many images."""
        count = self.with_images
        divided = (replace(value, shape=(batch, *value.shape[1:])) for value in self.inputs[:count])
        return replace(self, inputs=(*divided, *self.inputs[count:]))

    def step(self) -> Step:
        """What is lowered: the op alone."""
        outputs = self.op.infer(self.inputs)
        is_gradient_of_filter = isinstance(self.op, ConvBackwardFilter)
        operands = tuple(
            Operand(value, is_weight=place > 0 and not is_gradient_of_filter)
            for place, value in enumerate(self.inputs)
        )
        return Step(self.op, operands, outputs, self.op.flops(self.inputs, outputs), self.precision)
