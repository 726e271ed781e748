"""Matrix products: dense layers, products in BLAS order, batched products of two activations, and attention."""

from __future__ import annotations

from iossim.ir.ops.attention import Attention
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.types import DType, TensorType
from iossim.measurements.kinds.kind import Column, Made, OperatorKind, RecordError, Sizes, columns
from iossim.measurements.operator import Operator

_GEMM_COLUMNS = (
    *columns("m", "n", "k"),
    Column("trans_a", is_transposition=True),
    Column("trans_b", is_transposition=True),
)
_ATTENTION_COLUMNS = (
    *columns("batch", "heads", "queries", "keys", "features"),
    Column("kv_heads", smallest=0, default=0),
    Column("causal", smallest=0, default=0),
)


def _product(rows: int, n: int, k: int, dtype: DType, trans_a: int, trans_b: int) -> Made:
    a = TensorType((k, rows) if trans_a else (rows, k), dtype)
    b = TensorType((n, k) if trans_b else (k, n), dtype)
    return Gemm(trans_a=bool(trans_a), trans_b=bool(trans_b)), (a, b), (1,)


def _linear(sizes: Sizes, dtype: DType) -> Made:
    return _product(sizes["batch"] * sizes["m"], sizes["k"], sizes["n"], dtype, trans_a=0, trans_b=1)


def _linear_sizes(operator: Operator) -> Sizes:
    sizes = _gemm_sizes(operator)
    return {"batch": 1, "m": sizes["n"], "n": sizes["k"], "k": sizes["m"]}


def _gemm(sizes: Sizes, dtype: DType) -> Made:
    return _product(sizes["n"], sizes["m"], sizes["k"], dtype, trans_a=sizes["trans_b"], trans_b=sizes["trans_a"])


def _gemm_sizes(operator: Operator) -> Sizes:
    op = operator.op
    assert isinstance(op, Gemm)
    n, m = operator.outputs[0].shape
    k = operator.inputs[0].shape[0 if op.trans_a else 1]
    return {"m": m, "n": n, "k": k, "trans_a": int(op.trans_b), "trans_b": int(op.trans_a)}


def _bmm(sizes: Sizes, dtype: DType) -> Made:
    batch, m, n, k = (sizes[name] for name in ("batch", "m", "n", "k"))
    return MatMul(), (TensorType((batch, m, n), dtype), TensorType((batch, n, k), dtype)), ()


def _bmm_sizes(operator: Operator) -> Sizes:
    a, b = operator.inputs
    batch, m, n = a.shape
    return {"batch": batch, "m": m, "n": n, "k": b.shape[2]}


def _attention(sizes: Sizes, dtype: DType) -> Made:
    batch, heads, features = sizes["batch"], sizes["heads"], sizes["features"]
    q = TensorType((batch, heads, sizes["queries"], features), dtype)
    k = TensorType((batch, sizes["kv_heads"] or heads, sizes["keys"], features), dtype)
    return Attention(is_causal=bool(sizes["causal"])), (q, k, k), ()


def _attention_sizes(operator: Operator) -> Sizes:
    op = operator.op
    assert isinstance(op, Attention)
    shape = op.shape(operator.inputs)
    if len(operator.inputs) > 3 or shape.features != shape.value_features or op != Attention(is_causal=op.is_causal):
        raise RecordError("an attention with a mask, or values of another size, has no columns")
    sizes = {"batch": shape.batch, "heads": shape.heads, "queries": shape.queries, "keys": shape.keys}
    kv_heads = shape.kv_heads if shape.kv_heads != shape.heads else 0
    return sizes | {"features": shape.features, "kv_heads": kv_heads, "causal": int(op.is_causal)}


KINDS = (
    OperatorKind("linear", columns("batch", "m", "n", "k"), _linear, _linear_sizes),
    OperatorKind("gemm", _GEMM_COLUMNS, _gemm, _gemm_sizes),
    OperatorKind("bmm", columns("batch", "m", "n", "k"), _bmm, _bmm_sizes),
    OperatorKind("attention", _ATTENTION_COLUMNS, _attention, _attention_sizes),
)
