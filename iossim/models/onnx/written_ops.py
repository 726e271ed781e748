"""Ops without an operator in ONNX, written as ops that have one: gradients, ops on NHWC, products of stored numbers."""

from __future__ import annotations

from collections.abc import Callable

from iossim.ir.constants import FilledConstant
from iossim.ir.op import Op, normal_axis
from iossim.ir.ops.channels_last import ChannelsLast
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter, ConvTranspose
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.nary import Add, Mul, PRelu
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm
from iossim.ir.ops.quantize import Dequantised
from iossim.ir.ops.reshape import Flatten, Reshape, Transpose
from iossim.ir.ops.slice import Slice
from iossim.ir.ops.softmax import SoftmaxLike
from iossim.ir.ops.unary import Sigmoid
from iossim.ir.types import TO_FIRST, TO_LAST, TensorType
from iossim.models.passes.simplification import Derived

#: Adds the parts of an op of some values, and returns the output of the last one.
Writing = Callable[..., str]


def writing_of(op: Op, opset: int) -> Writing | None:
    """How to write an op in an operator set that has no operator for it; None for an op that is one."""
    match op:
        case SoftmaxLike(flatten=True) if opset >= 13:  # where softmaxes are along one axis
            return _flattened_softmax
        case Unary("swish", (1.0,)) if opset < 24:
            return lambda parts, _, x: parts.add(Mul(), x, parts.add(Sigmoid(), x))
        case PRelu(per_channel=True):
            return lambda parts, _, x, slope: parts.add(PRelu(), x, _wide(parts, slope, x))
        case GroupNorm():
            return _group_norm
        case ChannelsLast():
            return _between_transposes
        case Dequantised():
            return _dequantised
        case ConvBackwardData():
            return _backward_data
        case ConvBackwardFilter():
            return _backward_filter
    return None


def _flattened_softmax(parts: Derived, op: SoftmaxLike, x: str) -> str:
    shape = parts.types[x].shape
    flat = parts.add(Flatten(normal_axis(op.axis, len(shape))), x)
    return parts.add(Reshape(shape), parts.add(type(op)(1), flat))


def _wide(parts: Derived, value: str, x: str) -> str:
    """One number for each channel as ``[C, 1, ...]``, which broadcasts."""
    return parts.add(Reshape((*parts.types[value].shape, *[1] * (len(parts.types[x].shape) - 2))), value)


def _group_norm(parts: Derived, op: GroupNorm, x: str, scale: str, bias: str) -> str:
    """An instance norm of the groups, as PyTorch's exporter writes it: runtimes have no kernel for a group norm."""
    whole, of_groups = parts.types[x], TensorType((op.groups,), parts.types[x].dtype)
    neutral = [parts.constant(FilledConstant(of_groups, number)) for number in (1.0, 0.0)]
    flat = parts.add(Reshape((whole.shape[0], op.groups, whole.elements // (whole.shape[0] * op.groups))), x)
    normal = parts.add(Reshape(whole.shape), parts.add(InstanceNorm(op.epsilon), flat, *neutral))
    return parts.add(Add(), parts.add(Mul(), normal, _wide(parts, scale, x)), _wide(parts, bias, x))


def _between_transposes(parts: Derived, op: ChannelsLast[Op], x: str, *others: str) -> str:
    return parts.add(Transpose(TO_LAST), parts.add(op.channels_first, parts.add(Transpose(TO_FIRST), x), *others))


def _dequantised(parts: Derived, op: Dequantised, *values: str) -> str:
    return parts.add(op.product, *op.plain(values, lambda dequantise, stored: parts.add(dequantise, *stored)))


def _backward_data(parts: Derived, op: ConvBackwardData, *values: str) -> str:
    """The full extent of the windows, cropped to the input: no padding expresses this for every stride."""
    before, extra = op.pads[: len(op.strides)], tuple(stride - 1 for stride in op.strides)
    whole = parts.add(ConvTranspose(op.strides, (0,) * len(op.pads), op.dilations, op.groups, extra), *values)
    return parts.add(_cut(before, op.input_size), whole)


def _backward_filter(parts: Derived, op: ConvBackwardFilter, x: str, grad_output: str, *accumulated: str) -> str:
    """A convolution of the input with the gradients: channels become images, strides become dilations."""
    (batch, channels, *size), rank = parts.types[x].shape, len(op.kernel_size)
    swapped = Transpose((1, 0, *range(2, 2 + rank)))
    if op.groups == 1:
        images = parts.add(swapped, x)
    else:
        per_group = channels // op.groups
        images = parts.add(Reshape((batch, op.groups, per_group, *size)), x)
        images = parts.add(Transpose((2, 1, 0, *range(3, 3 + rank))), images)
        images = parts.add(Reshape((per_group, op.groups * batch, *size)), images)
    whole = parts.add(Conv(op.dilations, op.pads, op.strides, op.groups), images, parts.add(swapped, grad_output))
    # A stride leaves pixels after the last window, which are not part of the kernel.
    kept = parts.add(swapped, parts.add(_cut((0,) * rank, op.kernel_size), whole))
    return parts.add(Add(), kept, *accumulated) if accumulated else kept


def _cut(begin: tuple[int, ...], size: tuple[int, ...]) -> Slice:
    """The slice of the pixels of images that begins there, and has that size."""
    ends = tuple(first + length for first, length in zip(begin, size, strict=True))
    return Slice(begin, ends, tuple(range(2, 2 + len(begin))), (1,) * len(begin))
