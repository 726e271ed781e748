"""Scaled dot-product attention as one op (Vaswani et al., 2017, arXiv:1706.03762)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from iossim.ir.onnx_spelling import OnnxNode
from iossim.ir.op import Array, Op, broadcast_shapes, require, widen
from iossim.ir.types import DType, TensorType


class AttentionShape(NamedTuple):
    """Sizes of an attention: heads of queries and of keys, tokens of both, and features of a head."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    features: int
    value_features: int

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """The shape of the scores: ``[batch, heads, queries, keys]``."""
        return self.batch, self.heads, self.queries, self.keys


@dataclass(frozen=True)
class Attention(
    Op, kind="attention", onnx_types="Attention", onnx_names="q_num_heads kv_num_heads scale is_causal softcap"
):
    """``softmax(q @ k^T * scale + mask) @ v`` of each head; a scale of 0 means ``1 / sqrt(features)``.

    ``q [batch, heads, queries, features]``, ``k [batch, kv_heads, keys, features]``, ``v [batch, kv_heads, keys,
    value features]``, where consecutive heads of queries share one of keys; or, if the numbers of heads are given,
    ``[batch, tokens, heads * features]`` each. An optional mask broadcasts to the scores: numbers to add, or booleans
    of the visible keys. A causal query sees no later keys. ``softcap`` bounds scores by a hyperbolic tangent before the
    mask. The softmax is at least fp32; a row without visible keys is zero.
    """

    q_num_heads: int = 0
    kv_num_heads: int = 0
    scale: float = 0.0
    is_causal: bool = False
    softcap: float = 0.0

    def output(self, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None = None) -> TensorType:
        shape = self.shape([q, k, v])
        require(q.dtype == k.dtype == v.dtype, f"its inputs {q}, {k} and {v} differ in element type")
        require(q.dtype.is_floating or q.dtype.bytes == 1, f"takes floating-point numbers, not {q.dtype}")
        if mask is not None:
            require(mask.dtype in (DType.BOOL, q.dtype), f"its mask {mask} is neither of truth values nor {q.dtype}")
            whole = broadcast_shapes([TensorType(shape.scores), mask])
            require(whole == shape.scores, f"its mask {mask} does not broadcast to {list(shape.scores)}")
        made: tuple[int, ...] = (shape.batch, shape.heads, shape.queries, shape.value_features)
        if len(q.shape) == 3:
            made = (shape.batch, shape.queries, shape.heads * shape.value_features)
        return TensorType(made, q.dtype)

    def shape(self, inputs: Sequence[TensorType]) -> AttentionShape:
        """The sizes; raises GraphError if the inputs do not fit each other."""
        q, k, v = (self._heads(value, value_heads) for value, value_heads in zip(inputs, self._counts, strict=False))
        require(q[0] == k[0] == v[0], f"its inputs have batches of {q[0]}, {k[0]} and {v[0]}")
        require(k[1:3] == v[1:3], f"keys have {k[1]} heads of {k[2]} tokens, values {v[1]} of {v[2]}")
        require(q[3] == k[3], f"queries have {q[3]} features, keys {k[3]}")
        require(q[1] % k[1] == 0, f"{q[1]} heads of queries do not divide among {k[1]} of keys")
        return AttentionShape(q[0], q[1], k[1], q[2], k[2], q[3], v[3])

    @property
    def _counts(self) -> tuple[int, int, int]:
        return self.q_num_heads, self.kv_num_heads, self.kv_num_heads

    @staticmethod
    def _heads(value: TensorType, heads: int) -> tuple[int, ...]:
        """``[batch, heads, tokens, features]`` of an input."""
        if len(value.shape) == 3:
            batch, tokens, width = value.shape
            require(heads > 0 and width % heads == 0, f"{width} features of {value} do not divide into {heads} heads")
            return batch, heads, tokens, width // heads
        require(len(value.shape) == 4, f"its input {value} has neither three nor four dimensions")
        require(heads in (0, value.shape[1]), f"its input {value} does not have {heads} heads")
        return value.shape

    def pairs(self, shape: AttentionShape) -> int:
        """Number of query-key pairs in which the query sees the key, over all heads."""
        batch, heads, queries, keys = shape.scores
        if not self.is_causal:
            return batch * heads * queries * keys
        seen = min(queries, keys)
        return batch * heads * (seen * (seen + 1) // 2 + max(0, queries - keys) * keys)

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        shape = self.shape(inputs)
        return self.pairs(shape) * (shape.features + shape.value_features)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        """Includes the scale of each score and five operations of its softmax, and the mask if there is one."""
        besides = 6 + len(inputs[3:]) + 2 * bool(self.softcap)
        return 2 * self.multiply_adds(inputs, outputs) + besides * self.pairs(self.shape(inputs))

    def compute(self, q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
        shape, is_joined = self.shape([TensorType(array.shape) for array in (q, k, v)]), q.ndim == 3
        q, k, v = (
            array.reshape(array.shape[0], array.shape[1], heads, -1).swapaxes(1, 2) if array.ndim == 3 else array
            for array, heads in zip((q, k, v), self._counts, strict=True)
        )
        q = q.reshape(shape.batch, shape.kv_heads, -1, shape.queries, shape.features)
        scores = np.matmul(q * q.dtype.type(self.scale or shape.features**-0.5), k[:, :, None].swapaxes(-1, -2))
        scores = scores.reshape(shape.scores)
        if self.softcap:
            scores = self.softcap * np.tanh(scores / self.softcap)
        seen = np.tri(shape.queries, shape.keys, dtype=bool) if self.is_causal else np.True_
        if mask is not None and mask.dtype == bool:
            seen = seen & mask
        elif mask is not None:
            scores = scores + mask
        scores = widen(np.where(seen, scores, -np.inf).astype(scores.dtype, copy=False))
        largest = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
        total = weights.sum(axis=-1, keepdims=True)
        weights = (weights / np.where(total == 0, 1, total)).reshape(*q.shape[:-1], shape.keys)
        y: Array = np.matmul(weights, v[:, :, None]).reshape(*shape.scores[:3], shape.value_features)
        return y.swapaxes(1, 2).reshape(shape.batch, shape.queries, -1) if is_joined else y

    def completed(self, node: OnnxNode) -> Self:
        """Keys and values of earlier calls, windows and a separate precision of the softmax are not covered."""
        has_past, sides = any(map(node.has_input, (4, 5, 6))), ("left", "right")
        node.refuse(has_past, "reads keys and values of earlier calls; concatenate them before it")
        has_window = any(node.attribute(f"{side}_window_size", -1) != -1 for side in sides)
        node.refuse(has_window, "has a window; give it as a mask")
        node.refuse(node.attribute("softmax_precision", 1) != 1, "has a softmax that is not fp32")
        if node.has_input(3):
            mask, keys = node.input_type(3).shape[-1], self.shape([node.input_type(place) for place in range(3)]).keys
            node.refuse(mask not in (1, keys), f"has a mask of {mask} of its {keys} keys; pad it")
        return self

    def to_onnx(self) -> tuple[str, dict[str, object]]:
        """Zeros are omitted: ONNX accepts no zero for a scale or a number of heads."""
        op_type, given = super().to_onnx()
        return op_type, {name: value for name, value in given.items() if value}

    def least_opset(self, x: DType) -> int:
        return 23
