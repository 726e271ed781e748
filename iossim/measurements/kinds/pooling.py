"""Pooling: the extreme or the mean of windows, and of whole images."""

from __future__ import annotations

from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from iossim.ir.types import DType, TensorType
from iossim.measurements.kinds.kind import (
    IMAGE,
    WINDOW,
    Made,
    OperatorKind,
    Parts,
    RecordError,
    Sizes,
    both,
    columns,
    image_sizes,
    named,
    symmetric,
)
from iossim.measurements.operator import Operator

_COLUMNS = (*columns("batch", "channels"), *IMAGE)


def _image_type(sizes: Sizes, dtype: DType) -> TensorType:
    return TensorType((sizes["batch"], sizes["channels"], *both(sizes, "in")), dtype)


def _pool(op_class: type[MaxPool] | type[AveragePool]) -> Parts:
    def parts(sizes: Sizes, dtype: DType) -> Made:
        op = op_class(both(sizes, "kernel"), both(sizes, "stride"), both(sizes, "pad") * 2)
        return op, (_image_type(sizes, dtype),), ()

    return parts


def _pool_sizes(operator: Operator) -> Sizes:
    op = operator.op
    assert isinstance(op, MaxPool | AveragePool)
    if op != type(op)(op.kernel, op.strides, op.pads):
        raise RecordError(f"{op.signature} has attributes that have no columns")
    return image_sizes(operator) | named("kernel", op.kernel) | named("stride", op.strides) | symmetric(op.pads)


def _global_pool(op: GlobalAveragePool | GlobalMaxPool) -> Parts:
    def parts(sizes: Sizes, dtype: DType) -> Made:
        return op, (_image_type(sizes, dtype),), ()

    return parts


KINDS = (
    OperatorKind("max_pool", (*_COLUMNS, *WINDOW), _pool(MaxPool), _pool_sizes),
    OperatorKind("average_pool", (*_COLUMNS, *WINDOW), _pool(AveragePool), _pool_sizes, ("avg_pool",)),
    OperatorKind("global_average_pool", _COLUMNS, _global_pool(GlobalAveragePool()), image_sizes),
    OperatorKind("global_max_pool", _COLUMNS, _global_pool(GlobalMaxPool()), image_sizes),
)
