"""An attention as one call of cuDNN: where its queries, keys and values lie before what is only a matter of strides.

The ops of an attention that is spelt out (:mod:`iossim.ir.attention`) are lowered one by one, which is what runs
*apart*; the fused call reads the same values, whose heads are transposed by strides, and takes scales and a mask along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from iossim.backends.cupy_cudnn.convolution import FusedAttention, TensorLayout
from iossim.backends.cupy_cudnn.unit_calls import UnitCalls
from iossim.backends.cupy_cudnn.views import CUDNN_ALIGNMENT_BYTES, View, row_major
from iossim.ir.attention import SpeltAttention
from iossim.ir.graph import Node
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul, Nary
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.unary import Cast


def fused_attention(calls: UnitCalls, attention: SpeltAttention) -> tuple[FusedAttention, Mapping[str, View]] | None:
    """The call and the views of its operands, of an attention whose ops are lowered; None where cuDNN has none.

    It computes in numbers of 16 bits, and reads and writes rows of a head's features without gaps.
    """
    return _Attention(calls, attention).fused()


class _Attention:
    """Walks through the ops of an attention; ``scale`` is the product of all factors that it met."""

    def __init__(self, calls: UnitCalls, attention: SpeltAttention) -> None:
        self.calls, self.end = calls, attention.nodes[0]
        self.names = {node.name for node in attention.nodes}
        self.scale = 1.0
        self.mask: str | None = None

    def fused(self) -> tuple[FusedAttention, Mapping[str, View]] | None:
        y, product = self.calls.values[self.end.outputs[0]], self.end
        if isinstance(self.end.op, Transpose):
            y = y.permuted([self.end.op.permutation.index(axis) for axis in range(len(y.shape))])
            product = self._inside(self.end.inputs[0])
        weighed = self._inside(product.inputs[0])
        while isinstance(weighed.op, Cast):
            weighed = self._inside(weighed.inputs[0])
        scores = self._scores(weighed.inputs[0])
        if y.dtype.bytes != 2 or scores is None:
            return None
        keys = self._operand(scores.inputs[1])
        found = {
            "q": self._operand(scores.inputs[0]),
            "k": keys and keys.permuted((*range(len(keys.shape) - 2), len(keys.shape) - 1, len(keys.shape) - 2)),
            "v": self._operand(product.inputs[1]),
            "y": y,
        }
        views = {name: _heads(view) for name, view in found.items() if view is not None}
        if len(views) < len(found) or not all(view is not None and _suits(view, y) for view in views.values()):
            return None
        mask = None
        if self.mask is not None:
            mask = _of_scores(self.calls.view(self.mask), views["q"], views["k"])
            if mask is None:
                return None
            views["m"] = mask
        known = {name: view for name, view in views.items() if view is not None}
        layouts = {name: _layout(view) for name, view in known.items()}
        asked = FusedAttention(
            layouts["q"], layouts["k"], layouts["v"], layouts["y"], self.scale, y.dtype, layouts.get("m")
        )
        return asked, known

    def _inside(self, value: str) -> Node:
        return self.calls.graph.producer[value]

    def _is_inside(self, value: str) -> bool:
        node = self.calls.graph.producer.get(value)
        return node is not None and node.name in self.names

    def _scores(self, value: str) -> Node | None:
        """The product of queries and keys; None where a mask is scaled, which cuDNN does not do."""
        node = self._inside(value)
        while not isinstance(node.op, MatMul):
            through = next(each for each in node.inputs if self._is_inside(each))
            if isinstance(node.op, Add):
                if self.scale != 1.0:
                    return None
                self.mask = next(each for each in node.inputs if each != through)
            elif not isinstance(node.op, Cast):
                self._take_factor(node, through)
            node = self._inside(through)
        return node

    def _operand(self, value: str) -> View | None:
        """Where an operand of a product lies, before its scales; None where strides cannot say it."""
        if not self._is_inside(value):
            return self.calls.view(value)
        node = self._inside(value)
        match node.op:
            case Transpose():
                view = self._operand(node.inputs[0])
                return view and view.permuted(node.op.permutation)
            case Reshape():
                view = self._operand(node.inputs[0])
                return view and view.reshaped(self.calls.graph.types[value].shape)
            case Mul() | Nary():
                through = next(each for each in node.inputs if not self.calls.weights.knows(each))
                self._take_factor(node, through)
                return self._operand(through)
            case _:
                return None

    def _take_factor(self, node: Node, through: str) -> None:
        number = self.calls.weights.number(next(each for each in node.inputs if each != through))
        self.scale *= number if isinstance(node.op, Mul) else 1.0 / number


def _heads(view: View) -> View | None:
    """As ``[batch, heads, tokens, features]``; None of other ranks."""
    if len(view.shape) == 3:
        return replace(view, shape=(1, *view.shape), strides=(view.shape[0] * view.strides[0], *view.strides))
    return view if len(view.shape) == 4 else None


def _suits(view: View, y: View) -> bool:
    """Whether rows of features lie without gaps, each of them aligned, as cuDNN reads and writes them."""
    aligned = CUDNN_ALIGNMENT_BYTES // view.dtype.bytes
    steps = [stride for size, stride in zip(view.shape[:3], view.strides[:3], strict=True) if size > 1]
    starts = [*steps, view.offset, view.shape[3]]
    return (
        view.dtype == y.dtype and view.strides[3] == 1 and min([1, *steps]) > 0 and not any(s % aligned for s in starts)
    )


def _of_scores(mask: View, q: View | None, k: View | None) -> View | None:
    """A mask that broadcasts to the scores, with a row of all keys at least; None of others."""
    if q is None or k is None or mask.dtype != q.dtype or len(mask.shape) > 4:
        return None
    wide = mask.with_ones((*(1,) * (4 - len(mask.shape)), *mask.shape))
    scores = (*q.shape[:3], k.shape[2])
    fits = (
        all(size in (1, whole) for size, whole in zip(wide.shape, scores, strict=True)) and wide.shape[3] == scores[3]
    )
    return wide if fits and wide.strides[3] == 1 and wide.offset_bytes % CUDNN_ALIGNMENT_BYTES == 0 else None


def _layout(view: View) -> TensorLayout:
    """As cuDNN is told it: the strides of axes of one element are what they would be if all were dense."""
    return TensorLayout(view.shape, tuple(_steps(view.shape, view.strides)))


def _steps(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    usual = row_major(shape)
    return [own if size > 1 else max(1, one) for size, own, one in zip(shape, strides, usual, strict=True)]
