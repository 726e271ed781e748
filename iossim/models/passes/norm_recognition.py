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
from iossim.ir.op import Op
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import LayerNorm, RmsNorm
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.unary import Cast
from iossim.models.passes.graph_pass import LocalPass


class NormRecognition(LocalPass):
    """Turns ``(x - mean(x)) / sqrt(var(x) + epsilon) * scale [+ bias]`` into a layer norm, and the same without means
    into an RMS norm; casts in between go.

    Scale and bias are constants of the normalised axes, the last ones. Unused ops are left to dead op elimination.

    Invariant: the outputs are unchanged up to rounding.
    """

    kinds = ("mul",)

    def replaced(self, graph: Graph, product: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
        norm = _Parts(graph).norm(product)
        return {} if norm is None else {norm.name: [norm]}


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
        pairs: list[tuple[str, str | None]] = []
        match self._parts(value):
            case Nary("div"), x, divisor:
                pairs = [(x, self._square_of_divisor(divisor))]
            case Mul(), one, other:
                pairs = [(one, self._square_of_factor(other)), (other, self._square_of_factor(one))]
        for centred, square in pairs:
            if square is not None and (found := self._mean_square(square, centred)) is not None:
                whole = self._without_mean(centred, found[0])
                return whole or centred, *found, whole is not None
        return None

    def _square_of_divisor(self, value: str) -> str | None:
        """The operand of a square root."""
        match self._parts(value):
            case Unary("sqrt"), x:
                return x
            case Nary("pow"), x, exponent if self.graph.number(exponent) == 0.5:
                return x
        return None

    def _square_of_factor(self, value: str) -> str | None:
        """The operand of the reciprocal of a square root."""
        match self._parts(value):
            case Nary("pow"), x, exponent if self.graph.number(exponent) == -0.5:
                return x
            case Unary("reciprocal"), divisor:
                return self._square_of_divisor(divisor)
            case Nary("div"), one, divisor if self.graph.number(one) == 1.0:
                return self._square_of_divisor(divisor)
        return None

    def _mean_square(self, value: str, of: str) -> tuple[int, float] | None:
        """First axis and epsilon, if a value is the mean of the squares of another one plus epsilon."""
        kind, *terms = self._parts(value)
        for mean, number in (terms, terms[::-1]) if isinstance(kind, Add) and len(terms) == 2 else ():
            epsilon, (axis, square) = self.graph.number(number), self._mean(mean)
            match self._parts(square):
                case Mul(), x, y:
                    is_square = x == y == of
                case Nary("pow"), x, exponent:
                    is_square = x == of and self.graph.number(exponent) == 2.0
                case _:
                    is_square = False
            if is_square and epsilon is not None and axis is not None:
                return axis, float(str(np.float32(epsilon)))  # as attributes are read, which are of fp32
        return None

    def _without_mean(self, value: str, axis: int) -> str | None:
        """The value from which its mean over the axes from ``axis`` on was subtracted; None if none was."""
        match self._parts(value):
            case Nary("sub"), x, mean if self._mean(mean) == (axis, x):
                return x
        return None

    def _mean(self, value: str) -> tuple[int | None, str]:
        """First axis and operand of a mean over all axes from it on, kept with size one; None if it is none."""
        match self._parts(value):
            case Reduce("mean", axes, True), x:
                rank = len(self.graph.types[x].shape)
                first = rank - len(axes)
                return first if sorted(axis % rank for axis in axes) == [*range(first, rank)] else None, x
        return None, ""

    def _parts(self, value: str) -> tuple[Op | None, *tuple[str, ...]]:
        """The op that makes a value, and its operands, all without casts between floating-point types."""
        node = self.graph.producer.get(self._source(value))
        return (None,) if node is None else (node.op, *map(self._source, node.inputs))

    def _source(self, value: str) -> str:
        """The operand of a series of casts between floating-point types."""
        node = self.graph.producer.get(value)
        while node is not None and isinstance(node.op, Cast) and self.graph.types[node.inputs[0]].dtype.is_floating:
            value = node.inputs[0]
            node = self.graph.producer.get(value)
        return value
