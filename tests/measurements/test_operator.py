"""Operators: what they are lowered from, their keys, and the split by hash."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from operators import conv, operators

from iossim.base.errors import GraphError
from iossim.hardware.load import device
from iossim.hardware.lowering.target import step_candidates
from iossim.ir.ops.conv import Conv
from iossim.ir.types import DType, Precision, TensorType
from iossim.measurements.operator import Operator
from iossim.measurements.operator_kinds import parse_description

V100 = device("v100-sxm2")


def test_step_of_a_convolution() -> None:
    operator = conv()
    step = operator.step()
    assert [operand.type.shape for operand in step.operands] == [(1, 64, 56, 48), (32, 64, 3, 5)]
    assert [operand.is_weight for operand in step.operands] == [False, True]
    assert step.outputs[0].shape == (1, 32, 56, 24)
    assert step.flops == operator.flops == 2 * 32 * 56 * 24 * 64 * 15
    assert operator.bytes == 4 * (64 * 56 * 48 + 32 * 64 * 15 + 32 * 56 * 24)


@given(operators())
def test_every_operator_is_lowered(operator: Operator) -> None:
    assert step_candidates(operator.step(), V100)


def test_key_is_readable_and_counts_neither_precision_nor_the_name_of_the_table() -> None:
    assert conv().key == "conv(strides=(1, 2),pads=(1, 2, 1, 2),dilations=(1, 1),groups=1) 1x64x56x48 32x64x3x5"
    half = replace(conv(), precision=Precision.FP16)
    assert half.key == conv().key
    assert half != conv()
    dense = parse_description("linear batch=4 m=8 n=100 k=30")
    product = parse_description("gemm m=30 n=32 k=100 trans_a=T trans_b=N")
    assert dense.key == product.key
    assert dense.kind != product.kind


def test_hash_never_changes() -> None:
    """The split of published figures hangs on it."""
    assert conv().shape_hash == "e8d820af96d505c1d9d2ccc03b56da5171d2d57c4fe6153f44e0900c817e58c8"


def test_split_by_hash() -> None:
    shapes = [parse_description(f"add rows={rows} cols={cols}") for rows in range(1, 51) for cols in range(1, 41)]
    held_out = [operator for operator in shapes if operator.is_held_out()]
    assert 0.27 < len(held_out) / len(shapes) < 0.33
    assert all(operator.is_held_out(0.5) for operator in held_out)
    assert not any(operator.is_held_out(0.0) for operator in shapes)
    assert all(operator.is_held_out(1.0) for operator in shapes)


def test_kernel_larger_than_its_image() -> None:
    with pytest.raises(GraphError, match="does not fit"):
        Operator("conv", Conv(), (TensorType((1, 1, 2, 2), DType.FLOAT32), TensorType((1, 1, 3, 3))), (1,))
