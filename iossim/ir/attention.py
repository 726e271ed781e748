"""Unfused attention: two matrix products with a softmax between them, as exporters write it.

``q -> [scale] -> @ <- [scale] <- k`` makes the scores; a scale, a soft cap (``cap * tanh(scores / cap)``), a mask,
casts, and reshapes that join or split batch and heads may follow; their softmax is multiplied by the values. Transposes
that keep a head's features contiguous, such as those that split and join heads, are part of it: fused kernels read and
write strided rows. So is the repetition of keys and values for the heads that share them: fused kernels read them once.
So is the check of a softmax whose mask may hide all keys from a query: ``where(isnan(y), 0, y)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from iossim.base.errors import GraphError
from iossim.ir.graph import Graph, Node
from iossim.ir.op import normal_axis
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul, Where
from iossim.ir.ops.reshape import Expand, Reshape, Transpose
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Cast
from iossim.ir.types import TensorType, permuted


@dataclass(frozen=True)
class SpeltAttention:
    """The ops of an attention, the last one first; the outputs of the others are read inside only.

    ``types`` are queries, keys and values as :class:`Attention` takes them, and the mask if there is one. ``operands``
    are the values that these are made of, each with the ops on its way to the product, the last one first: scales,
    transposes, views, and the repetition for heads that share keys. ``softened`` are those from the scores to the
    softmax, likewise: scales, the soft cap, casts, views and the sum with ``mask``. Where ``checks`` is true, a query
    that sees no key gets zeros; else it gets NaN.
    """

    nodes: tuple[Node, ...]
    types: tuple[TensorType, ...]
    operands: tuple[tuple[str, tuple[Node, ...]], ...]
    softened: tuple[Node, ...]
    mask: str | None
    checks: bool = False
    softcap: float = 0.0

    @property
    def op(self) -> Attention:
        """The op that computes the same."""
        return Attention(softcap=self.softcap)

    @property
    def flops(self) -> int:
        return self.op.flops(self.types, ())


def attentions_in(graph: Graph, nodes: Iterable[Node]) -> dict[str, SpeltAttention]:
    """The attentions whose ops are all among ``nodes``, by the name of their last op."""
    names = {node.name: node for node in nodes}
    found = {name: spelt_attention(graph, node) for name, node in names.items()}
    whole = {name: one for name, one in found.items() if one and names.keys() >= {node.name for node in one.nodes}}
    inside = {node.name for one in whole.values() for node in one.nodes[1:]}
    return {name: one for name, one in whole.items() if name not in inside}


def spelt_attention(graph: Graph, last: Node) -> SpeltAttention | None:
    """The attention whose last op is this node (a product or a transpose after it); None if there is none."""
    product = last
    if isinstance(last.op, Transpose) and last.op.permutation[-1] == len(last.op.permutation) - 1:
        product = graph.private_producer(last.inputs[0]) or last
    if not isinstance(product.op, MatMul):
        return None
    found = _Parts(graph, list(dict.fromkeys((last, product))))
    softmax = found.without_views(graph.private_producer(product.inputs[0]))
    checked = softmax and checked_softmax(graph, softmax)
    if checked:
        found.nodes += checked[:2]
        softmax = checked[2]
    if softmax is None or not isinstance(softmax.op, Softmax) or softmax.op.flatten:
        return None
    scores = graph.types[softmax.outputs[0]].shape
    if len(scores) < 3 or normal_axis(softmax.op.axis, len(scores)) != len(scores) - 1:
        return None
    found.nodes.append(softmax)
    found.leading = scores[:-2]
    first = found.scores(softmax.inputs[0], scores)
    if first is None or len(found.masks) > 1:
        return None
    softened = tuple(reversed(found.nodes[found.nodes.index(first) + 1 :]))
    values = (*first.inputs, product.inputs[1])
    q, k, v = (graph.types[value] for value in values)
    operands = tuple(map(found.source, values, (False, True, False)))
    k = permuted(k, (*range(len(k.shape) - 2), -1, -2))
    shared = (repetition(graph, path) for _, path in operands)
    matrices = (_four(each, found.leading, heads) for each, heads in zip((q, k, v), shared, strict=True))
    types = *matrices, *(graph.types[value] for value in found.masks)
    try:
        fits = Attention().shape(types).scores == _four(graph.types[softmax.outputs[0]], found.leading).shape
    except GraphError:
        return None
    if not fits or not graph.constants.keys().isdisjoint(source for source, _ in operands):
        return None
    mask = next(iter(found.masks), None)
    return SpeltAttention(tuple(found.nodes), types, operands, softened, mask, bool(checked), found.softcap)


def is_nan_check(node: Node, makers: Mapping[str, Node]) -> bool:
    """True if this is ``where(isnan(y), something, y)``."""
    condition = makers.get(node.inputs[0]) if isinstance(node.op, Where) else None
    return condition is not None and condition.op == Unary("is_nan") and condition.inputs == node.inputs[2:]


def checked_softmax(graph: Graph, check: Node) -> tuple[Node, Node, Node] | None:
    """A check that replaces NaN by zero, its condition, and the softmax that only these two read."""
    if not is_nan_check(check, graph.producer) or graph.number(check.inputs[1]) != 0:
        return None
    condition, softmax = graph.private_producer(check.inputs[0]), graph.producer.get(check.inputs[2])
    if condition is None or softmax is None or check.inputs[2] in graph.returned:
        return None
    return (check, condition, softmax) if len(graph.consumers[check.inputs[2]]) == 2 else None


@dataclass
class _Parts:
    """The ops of an attention found so far, walking back from its end; its scores are ``[*leading, queries, keys]``
    where the mask is added.
    """

    graph: Graph
    nodes: list[Node]
    masks: list[str] = field(default_factory=list)
    leading: tuple[int, ...] = ()
    softcap: float = 0.0

    def without_views(self, node: Node | None) -> Node | None:
        """The node, or the one before it if it is a cast, or a view of the same matrices."""
        while (
            node is not None
            and (isinstance(node.op, Cast) or self._regroups(node))
            and (before := self.graph.private_producer(node.inputs[0]))
        ):
            self.nodes.append(node)
            node = before
        return node

    def scores(self, value: str, shape: tuple[int, ...], most: int = 16) -> Node | None:
        """The product of which at most so many ops make ``value``, of that shape; the ops in between join the parts."""
        node = self.graph.private_producer(value) if most else None
        if node is None or self.graph.types[value].shape != shape:
            return None
        if isinstance(node.op, MatMul):
            self.nodes.append(node)
            return node
        if capped := self._capped(node):
            inside, cap, ops = capped
            product = self.scores(inside, shape, most - 1)
            if product is None or self.masks or self.softcap:
                return None
            self.softcap = cap
            self.nodes += reversed(ops)
            return product
        for through in node.inputs[:1] if node.op == Nary("div") else node.inputs:
            others = [each for each in node.inputs if each != through]
            is_scaled, is_view = self._scales(node, others), self._regroups(node)
            if not (is_scaled or is_view or isinstance(node.op, Add | Cast)):
                continue
            if product := self.scores(through, self.graph.types[through].shape if is_view else shape, most - 1):
                self.nodes.append(node)
                if isinstance(node.op, Add):
                    self.masks += others
                    self.leading = shape[:-2]
                return product
        return None

    def source(self, value: str, is_transposed: bool = False) -> tuple[str, tuple[Node, ...]]:
        """The value from which scales, transposes, views of the same matrices and their repetition make an operand,
        and these ops, the last one first; they join the parts.

        ``is_transposed``: the features of a head are the operand's second to last axis.
        """
        path: list[Node] = []
        while node := self.graph.private_producer(value):
            if isinstance(node.op, Transpose):
                permutation = node.op.permutation
                if permutation[-2 if is_transposed else -1] != len(permutation) - 1:
                    break
                is_transposed = False
            elif isinstance(node.op, Reshape):
                if not self._regroups(node):
                    break  # the reshape splits or joins heads
            elif isinstance(node.op, Expand):
                if not (path and self._repeats_heads(node, path[-1])):
                    break
            elif not self._scales(node, node.inputs[1:]):
                break
            path.append(node)
            value = node.inputs[0]
        self.nodes += path
        return value, tuple(path)

    def _repeats_heads(self, node: Node, joined: Node) -> bool:
        """``[..., heads, 1, tokens, features]`` expanded to several of each head, which a reshape joins."""
        before, after, heads = (
            self.graph.types[value].shape for value in (*node.inputs, *node.outputs, *joined.outputs)
        )
        repeated = len(before) == len(after) >= 4 and before == (*after[:-3], 1, *after[-2:])
        return repeated and isinstance(joined.op, Reshape) and heads[-3:-2] == (after[-4] * after[-3],)

    def _regroups(self, node: Node) -> bool:
        """True for a reshape that changes neither the rows nor the columns of matrices."""
        shapes = (self.graph.types[value].shape for value in (*node.inputs, *node.outputs))
        return isinstance(node.op, Reshape) and len({shape[-2:] for shape in shapes}) == 1

    def _scales(self, node: Node, by: Sequence[str]) -> bool:
        """True if an op multiplies or divides by one known number."""
        known = [each for each in by if each in self.graph.constants and self.graph.types[each].elements == 1]
        return (isinstance(node.op, Mul) or node.op == Nary("div")) and len(by) == len(known) == 1

    def _capped(self, last: Node) -> tuple[str, float, list[Node]] | None:
        """The scores of ``cap * tanh(scores / cap)``, the cap and the ops, the last one first, if this is the last."""
        value, cap = self._scaled(last)
        tanh = self.graph.private_producer(value) if cap else None
        inner = self.graph.private_producer(tanh.inputs[0]) if tanh and tanh.op == Unary("tanh") else None
        if tanh is None or inner is None:
            return None
        scores, factor = self._scaled(inner)
        return (scores, cap, [last, tanh, inner]) if math.isclose(cap * factor, 1, rel_tol=1e-3) else None

    def _scaled(self, node: Node) -> tuple[str, float]:
        """The operand that an op multiplies by a known number, and the number; zero for any other op."""
        for value in node.inputs:
            others = [each for each in node.inputs if each != value]
            number = self.graph.number(others[0]) if self._scales(node, others) else None
            if number:
                return value, number if isinstance(node.op, Mul) else 1 / number
        return "", 0.0


def repetition(graph: Graph, path: Iterable[Node]) -> int:
    """Number of query heads that share each head of the operand that these ops make."""
    repeated = (node for node in path if isinstance(node.op, Expand))
    return math.prod(graph.types[node.outputs[0]].shape[-3] for node in repeated)


def _four(value: TensorType, leading: tuple[int, ...], shared: int = 1) -> TensorType:
    """The type as ``[batch, heads, tokens, features]``, where each head is repeated so many times; as many matrices as
    of the ``leading`` axes are in these.
    """
    *own, tokens, features = value.shape
    own = list(leading) if math.prod(own) == math.prod(leading) else own
    batch, heads = math.prod(own[:-1]), own[-1] if own else 1
    return TensorType((batch, heads // shared, tokens, features), value.dtype)
