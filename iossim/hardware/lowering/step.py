"""A step of a unit: one op with all ops fused into it; and the dimensions of one that is a convolution.

Families of ops (``iossim.hardware.lowering.gpu.families``) register the functions from a step to candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Generic

from iossim.ir.graph import OpT_co
from iossim.ir.ops.conv import ConvAttributes
from iossim.ir.types import TO_FIRST, Precision, TensorType, first_types, permuted


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a step reads."""

    type: TensorType
    is_weight: bool = False


@dataclass(frozen=True, slots=True)
class Step(Generic[OpT_co]):
    """One op, or a fused chain that ends in it.

    ``operands`` are those of the anchor op, in its order, or all external inputs of an element-wise chain.
    ``outputs`` are the types that are written; ``flops`` includes fused ops. ``fused_reads`` are the inputs of fused
    element-wise ops besides the anchor's operands, such as a residual. ``parts`` are the steps that compute the same
    sequentially, for an op that the graph has in several parts.
    """

    op: OpT_co
    operands: tuple[Operand, ...]
    outputs: tuple[TensorType, ...]
    flops: int
    precision: Precision
    fused_reads: tuple[Operand, ...] = ()
    parts: tuple[Step, ...] = ()

    @property
    def activation_bytes(self) -> int:
        return sum(operand.type.bytes for operand in self.operands if not operand.is_weight)

    @property
    def weight_bytes(self) -> int:
        return sum(operand.type.bytes for operand in self.operands if operand.is_weight)

    @property
    def bytes_written(self) -> int:
        return sum(output.bytes for output in self.outputs)


def as_channels_first(step: Step) -> Step:
    """The step of an op on NHWC as that on NCHW, and any other unchanged; bytes and arithmetic are the same."""
    if step.op.channels_first is step.op:
        return step
    x, *rest = step.operands
    return replace(
        step,
        op=step.op.channels_first,
        operands=(replace(x, type=permuted(x.type, TO_FIRST)), *rest),
        outputs=tuple(first_types(step.outputs)),
    )


#: Precisions whose tensors are fp32, so that an algorithm in fp32 arithmetic may serve them.
FP32_STORED = (Precision.FP32, Precision.TF32)


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """A convolution of ``batch`` images of ``channels`` with ``filters``; spatial sizes of any rank."""

    batch: int
    channels: int
    filters: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    input_size: tuple[int, ...]
    output_size: tuple[int, ...]
    element_bytes: int
    output_element_bytes: int
    #: Arithmetic of the epilogue: bias and activation.
    epilogue_flops: int
    precision: Precision

    @staticmethod
    def of(step: Step) -> ConvolutionShape:
        """The dimensions of a step that is a convolution; for a gradient those of the differentiated convolution."""
        op, made = step.op, step.outputs[0]
        first, second = (operand.type for operand in step.operands[:2])
        assert isinstance(op, ConvAttributes)
        match op.kind:
            case "conv_backward_data":
                x, weight, y = made, second, first
            case "conv_backward_filter":
                x, weight, y = first, made, second
            case _:
                x, weight, y = first, second, made
        own = 2 * y.elements * math.prod(weight.shape[1:])
        geometry = weight.shape[2:], op.strides, op.dilations, op.groups, x.shape[2:], y.shape[2:]
        stored = x.dtype.bytes, y.dtype.bytes, max(0, step.flops - own), step.precision
        return ConvolutionShape(x.shape[0], x.shape[1], weight.shape[0], *geometry, *stored)

    @property
    def pixels(self) -> int:
        """Output positions of the whole batch."""
        return self.batch * math.prod(self.output_size)

    @property
    def input_bytes(self) -> int:
        """Bytes of the input that are read: a stride larger than the kernel skips some."""
        read = 1
        for size, out, kernel, stride in zip(self.input_size, self.output_size, self.kernel, self.strides, strict=True):
            read *= min(size, out * min(kernel, stride) + max(0, kernel - stride))
        return self.batch * self.channels * read * self.element_bytes

    @property
    def weight_bytes(self) -> int:
        return self.filters * self.channels // self.groups * math.prod(self.kernel) * self.element_bytes

    @property
    def output_bytes(self) -> int:
        return self.filters * self.pixels * self.output_element_bytes

    @property
    def on_lanes(self) -> ConvolutionShape:
        """The convolution without tensor cores: in fp32 arithmetic if tensors are stored as fp32."""
        return replace(self, precision=Precision.FP32) if self.precision in FP32_STORED else self

    @property
    def turned(self) -> ConvolutionShape:
        """The convolution of the output's gradient with the flipped filter: the input's gradient at stride 1."""
        turned = replace(self, channels=self.filters, filters=self.channels)
        return replace(turned, input_size=self.output_size, output_size=self.input_size)

    @property
    def of_a_group(self) -> ConvolutionShape:
        """The convolution of a single group."""
        channels, filters = self.channels // self.groups, self.filters // self.groups
        epilogue_flops = self.epilogue_flops // self.groups
        return replace(self, channels=channels, filters=filters, groups=1, epilogue_flops=epilogue_flops)

    @property
    def is_dense_unit_stride(self) -> bool:
        """True if it has one group, stride 1 and no dilation, as the fast algorithms require."""
        return self.groups == 1 and all(s == 1 for s in self.strides) and all(d == 1 for d in self.dilations)

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.channels
