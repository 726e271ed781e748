"""Convolutions: dense, grouped, depthwise (``groups`` of one channel) and transposed."""

from __future__ import annotations

from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.types import DType, TensorType
from iossim.measurements.kinds.kind import (
    IMAGE,
    WINDOW,
    Column,
    Made,
    OperatorKind,
    RecordError,
    Sizes,
    both,
    columns,
    named,
    pair,
    symmetric,
)
from iossim.measurements.operator import Operator

_COLUMNS = (
    *columns("batch", "in_channels", "out_channels"),
    *IMAGE,
    *WINDOW,
    *pair("dilation", "dilation", default=1),
    Column("groups", default=1),
)


def _conv(sizes: Sizes, dtype: DType) -> Made:
    op = Conv(both(sizes, "stride"), both(sizes, "pad") * 2, both(sizes, "dilation"), sizes["groups"])
    x, channels = _image(sizes, dtype)
    weight = TensorType((sizes["out_channels"], channels, *both(sizes, "kernel")), dtype)
    return op, (x, weight), (1,)


def _conv_sizes(operator: Operator) -> Sizes:
    op, (x, weight) = operator.op, operator.inputs
    assert isinstance(op, Conv)
    return _sizes(op, x, weight, weight.shape[0])


def _transposed(sizes: Sizes, dtype: DType) -> Made:
    groups, filters = sizes["groups"], sizes["out_channels"]
    if filters % groups:
        raise RecordError(f"{filters} out_channels do not divide into {groups} groups", "groups")
    op = ConvTranspose(
        both(sizes, "stride"), both(sizes, "pad") * 2, both(sizes, "dilation"), groups, both(sizes, "output_padding")
    )
    x, _ = _image(sizes, dtype)
    weight = TensorType((sizes["in_channels"], filters // groups, *both(sizes, "kernel")), dtype)
    return op, (x, weight), (1,)


def _transposed_sizes(operator: Operator) -> Sizes:
    op, (x, weight) = operator.op, operator.inputs
    assert isinstance(op, ConvTranspose)
    filters = weight.shape[1] * op.groups
    return _sizes(op, x, weight, filters) | named("output_padding", op.output_padding)


def _image(sizes: Sizes, dtype: DType) -> tuple[TensorType, int]:
    """The input type, and its channels per group."""
    groups, channels = sizes["groups"], sizes["in_channels"]
    if channels % groups:
        raise RecordError(f"{channels} in_channels do not divide into {groups} groups", "groups")
    return TensorType((sizes["batch"], channels, *both(sizes, "in")), dtype), channels // groups


def _sizes(op: Conv | ConvTranspose, x: TensorType, weight: TensorType, filters: int) -> Sizes:
    batch, channels, *image = x.shape
    sizes = {"batch": batch, "in_channels": channels, "out_channels": filters}
    sizes |= named("in", tuple(image)) | named("kernel", weight.shape[2:]) | named("stride", op.strides)
    return sizes | symmetric(op.pads) | named("dilation", op.dilations) | {"groups": op.groups}


KINDS = (
    OperatorKind("conv", _COLUMNS, _conv, _conv_sizes, ("conv2d",)),
    OperatorKind(
        "conv_transpose",
        (*_COLUMNS, *pair("output_padding", "output_padding", smallest=0, default=0)),
        _transposed,
        _transposed_sizes,
        ("conv_transpose2d", "transposed_conv"),
    ),
)
