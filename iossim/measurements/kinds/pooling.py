"""Pooling: the maximum or the mean of windows, and of whole images."""

from __future__ import annotations

from collections.abc import Callable

from iossim.ir.op import Op
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


def _on_images(op_of: Callable[[Sizes], Op]) -> Parts:
    def parts(sizes: Sizes, dtype: DType) -> Made:
        image = TensorType((sizes["batch"], sizes["channels"], *both(sizes, "in")), dtype)
        return op_of(sizes), (image,), ()

    return parts


def _pool(op_class: type[MaxPool] | type[AveragePool]) -> Parts:
    return _on_images(lambda sizes: op_class(both(sizes, "kernel"), both(sizes, "stride"), both(sizes, "pad") * 2))


def _pool_sizes(operator: Operator) -> Sizes:
    op = operator.op
    assert isinstance(op, MaxPool | AveragePool)
    if op != type(op)(op.kernel, op.strides, op.pads):
        raise RecordError(f"{op.signature} has attributes that have no columns")
    return image_sizes(operator) | named("kernel", op.kernel) | named("stride", op.strides) | symmetric(op.pads)


KINDS = (
    OperatorKind("max_pool", (*_COLUMNS, *WINDOW), _pool(MaxPool), _pool_sizes),
    OperatorKind("average_pool", (*_COLUMNS, *WINDOW), _pool(AveragePool), _pool_sizes, ("avg_pool",)),
    OperatorKind("global_average_pool", _COLUMNS, _on_images(lambda sizes: GlobalAveragePool()), image_sizes),
    OperatorKind("global_max_pool", _COLUMNS, _on_images(lambda sizes: GlobalMaxPool()), image_sizes),
)
