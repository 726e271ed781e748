"""Recognition of layer norms and RMS norms that exporters write as parts.

Before operator set 17 PyTorch's exporter decomposes a layer norm into means, a difference, a square root and a
quotient, and language models decompose their RMS norms likewise in any set. Inference libraries run either one as a
single kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from iossim.ir.constants import Constant
from iossim.ir.graph import Graph, Node
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import LayerNorm, RmsNorm
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.unary import Cast
from iossim.models.passes.graph_pass import LocalPass

_KINDS = {"layer_norm": "layer norm", "rms_norm": "RMS norm"}


class NormRecognition(LocalPass):
    """Turns ``(x - mean(x)) / sqrt(var(x) + epsilon) * scale [+ bias]`` into a layer norm, and the same without means
    into an RMS norm; casts in between go.

    Scale and bias are constants of the normalised axes, the last ones. Unused ops are left to dead op elimination.

    Invariant: the outputs are unchanged up to rounding.
    """

    kind = "mul"

    def replaced(self, graph: Graph, product: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
        norm = _Parts(graph).norm(product)
        return {} if norm is None else {norm.name: [norm]}


def norm_remarks(read: Graph, scheduled: Graph) -> tuple[str, ...]:
    """Remarks on the norms of an imported graph that were recognised, a sentence each."""
    kinds = {kind: len(scheduled.of_kind.get(kind, ())) - len(read.of_kind.get(kind, ())) for kind in _KINDS}
    return tuple(
        f"The file spells {more} {_KINDS[kind]}{'s' * (more > 1)} as means and quotients; read as one op each."
        for kind, more in kinds.items()
        if more > 0
    )


@dataclass(frozen=True)
class _Parts:
    graph: Graph

    def norm(self, product: Node) -> Node | None:
        """The norm that ends in a product with its scale, or in the sum with its bias after that."""
        for normal, scale in (product.inputs, product.inputs[::-1]):
            if scale not in self.graph.constants or (found := self._normalised(normal)) is None:
                continue
            x, axis, epsilon, has_mean = found
            if not has_mean:
                return self._made(product, RmsNorm(axis, epsilon), (x, scale))
            last, *bias = self._bias(product) or (product,)
            return self._made(last, LayerNorm(axis, epsilon), (x, scale, *bias))
        return None

    def _made(self, last: Node, op: LayerNorm | RmsNorm, inputs: tuple[str, ...]) -> Node | None:
        """The op in place of its last part; None if it would make another type."""
        types, x = self.graph.types, self.graph.types[inputs[0]]
        parameter = replace(x, shape=x.shape[op.axis :])
        fits = types[last.outputs[0]] == x and all(types[value] == parameter for value in inputs[1:])
        return Node(last.name, op, inputs, last.outputs) if fits else None

    def _bias(self, product: Node) -> tuple[Node, str] | None:
        """The sum that is the only reader of a product, and the constant added to it; None if there is none."""
        reader = self.graph.private_consumer(product.outputs[0])
        if reader is None or not isinstance(reader.op, Add):
            return None
        others = [name for name in reader.inputs if name != product.outputs[0]]
        is_bias = len(others) == 1 and others[0] in self.graph.constants and len(self.graph.types[others[0]].shape) > 0
        return (reader, others[0]) if is_bias else None

    def _normalised(self, value: str) -> tuple[str, int, float, bool] | None:
        """The value that is divided by its standard deviation or root mean square to make ``value``, the first axis,
        epsilon, and True if its mean was subtracted.
        """
        node = self._maker(value)
        if node is None or len(node.inputs) != 2:
            return None
        pairs: list[tuple[str, str | None]] = []
        if node.op == Nary("div"):
            pairs = [(node.inputs[0], self._square_of_divisor(node.inputs[1]))]
        elif isinstance(node.op, Mul):
            pairs = [(one, self._square_of_factor(other)) for one, other in (node.inputs, node.inputs[::-1])]
        for centred, square in pairs:
            if square is not None and (found := self._mean_square(square, self._source(centred))) is not None:
                whole = self._without_mean(self._source(centred), found[0])
                return whole or self._source(centred), *found, whole is not None
        return None

    def _square_of_divisor(self, value: str) -> str | None:
        """The operand of a square root."""
        node = self._maker(value)
        is_root = node is not None and (node.op == Unary("sqrt") or self._is_power(node, 0.5))
        return node.inputs[0] if node is not None and is_root else None

    def _square_of_factor(self, value: str) -> str | None:
        """The operand of the reciprocal of a square root."""
        node = self._maker(value)
        if node is None:
            return None
        if self._is_power(node, -0.5):
            return node.inputs[0]
        is_quotient = node.op == Nary("div") and self.graph.number(node.inputs[0]) == 1.0
        is_reciprocal = is_quotient or node.op == Unary("reciprocal")
        return self._square_of_divisor(node.inputs[-1]) if is_reciprocal else None

    def _mean_square(self, value: str, of: str) -> tuple[int, float] | None:
        """First axis and epsilon, if a value is the mean of the squares of another one plus epsilon."""
        total = self._maker(value)
        if total is None or not isinstance(total.op, Add) or len(total.inputs) != 2:
            return None
        for mean, number in (total.inputs, total.inputs[::-1]):
            epsilon, (axis, averaged) = self.graph.number(number), self._mean(mean)
            square = self._maker(averaged)
            if epsilon is None or axis is None or square is None or self._source(square.inputs[0]) != of:
                continue
            is_product = isinstance(square.op, Mul) and [self._source(each) for each in square.inputs] == [of, of]
            if is_product or self._is_power(square, 2.0):
                return axis, float(str(np.float32(epsilon)))  # as attributes are read, which are of fp32
        return None

    def _without_mean(self, value: str, axis: int) -> str | None:
        """The value from which its mean over the axes from ``axis`` on was subtracted; None if none was."""
        node = self._maker(value)
        if node is None or node.op != Nary("sub"):
            return None
        x = self._source(node.inputs[0])
        return x if self._mean(node.inputs[1]) == (axis, x) else None

    def _mean(self, value: str) -> tuple[int | None, str]:
        """First axis and source of a mean over all axes from it on, kept with size one; None if it is none."""
        node = self._maker(value)
        if node is None or not isinstance(node.op, Reduce) or node.op.function != "mean" or not node.op.keepdims:
            return None, ""
        rank = len(self.graph.types[node.inputs[0]].shape)
        axes = sorted(axis % rank for axis in node.op.axes)
        whole = axes == list(range(rank - len(axes), rank))
        return axes[0] if whole else None, self._source(node.inputs[0])

    def _is_power(self, node: Node, exponent: float) -> bool:
        return node.op == Nary("pow") and self.graph.number(node.inputs[1]) == exponent

    def _source(self, value: str) -> str:
        """The operand of a series of casts between floating-point types."""
        node = self.graph.producer.get(value)
        while node is not None and isinstance(node.op, Cast) and self.graph.types[node.inputs[0]].dtype.is_floating:
            value = node.inputs[0]
            node = self.graph.producer.get(value)
        return value

    def _maker(self, value: str) -> Node | None:
        return self.graph.producer.get(self._source(value))
