"""Attention: heads of queries that go over keys, neither of them weights."""

from __future__ import annotations

from iossim.ir.ops.attention import Attention
from iossim.ir.types import DType, TensorType
from iossim.measurements.kinds.kind import Column, Made, OperatorKind, RecordError, Sizes, columns
from iossim.measurements.operator import Operator

_COLUMNS = (
    *columns("batch", "heads", "queries", "keys", "features"),
    Column("kv_heads", smallest=0, default=0),
    Column("causal", smallest=0, default=0),
)


def _parts(sizes: Sizes, dtype: DType) -> Made:
    batch, heads, features = sizes["batch"], sizes["heads"], sizes["features"]
    q = TensorType((batch, heads, sizes["queries"], features), dtype)
    k = TensorType((batch, sizes["kv_heads"] or heads, sizes["keys"], features), dtype)
    return Attention(is_causal=bool(sizes["causal"])), (q, k, k), ()


def _sizes(operator: Operator) -> Sizes:
    op = operator.op
    assert isinstance(op, Attention)
    shape = op.shape(operator.inputs)
    if len(operator.inputs) > 3 or shape.features != shape.value_features or op != Attention(is_causal=op.is_causal):
        raise RecordError("an attention with a mask, or values of another size, has no columns")
    sizes = {"batch": shape.batch, "heads": shape.heads, "queries": shape.queries, "keys": shape.keys}
    kv_heads = shape.kv_heads if shape.kv_heads != shape.heads else 0
    return sizes | {"features": shape.features, "kv_heads": kv_heads, "causal": int(op.is_causal)}


KINDS = (OperatorKind("attention", _COLUMNS, _parts, _sizes),)
