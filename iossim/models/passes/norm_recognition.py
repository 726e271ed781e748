"""Recognition of layer norms and RMS norms that exporters write as parts.

Before operator set 17 PyTorch's exporter decomposes a layer norm into means, a difference, a square root and a
quotient, and language models decompose their RMS norms likewise in any set. Inference libraries run either one as a
single kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iossim.base.errors import GraphError
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
    remarks = []
    for kind, name in _KINDS.items():
        more = len(scheduled.of_kind.get(kind, ())) - len(read.of_kind.get(kind, ()))
        if more > 0:
            remarks.append(
                f"The file spells {more} {name}{'s' * (more > 1)} as means and quotients; read as one op each."
            )
    return tuple(remarks)


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
            bias = self._bias(product)
            if bias is not None:
                return self._made(bias[0], LayerNorm(axis, epsilon), (x, scale, bias[1]))
            return self._made(product, LayerNorm(axis, epsilon), (x, scale))
        return None

    def _made(self, last: Node, op: LayerNorm | RmsNorm, inputs: tuple[str, ...]) -> Node | None:
        """The op in place of its last part; None if it would make another type."""
        types = self.graph.types
        try:
            made = op.infer([types[value] for value in inputs])
        except GraphError:
            return None
        whole = types[inputs[0]].shape[op.axis :]
        fits = made == (types[last.outputs[0]],) and all(types[value].shape == whole for value in inputs[1:])
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
        if node.op == Nary("div"):
            pairs = [(node.inputs[0], self._square_of_divisor(node.inputs[1]))]
        elif isinstance(node.op, Mul):
            pairs = [(node.inputs[0], self._square_of_factor(node.inputs[1]))]
            pairs += [(node.inputs[1], self._square_of_factor(node.inputs[0]))]
        else:
            return None
        for centred, square in pairs:
            if square is not None and (found := self._mean_square(square, self._source(centred))) is not None:
                axis, epsilon = found
                whole = self._without_mean(self._source(centred), axis)
                return whole or self._source(centred), axis, epsilon, whole is not None
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
        if node.op == Unary("reciprocal"):
            return self._square_of_divisor(node.inputs[0])
        is_quotient = node.op == Nary("div") and self.graph.number(node.inputs[0]) == 1.0
        return self._square_of_divisor(node.inputs[1]) if is_quotient else None

    def _mean_square(self, value: str, of: str) -> tuple[int, float] | None:
        """First axis and epsilon, if a value is the mean of the squares of another one plus epsilon."""
        total = self._maker(value)
        if total is None or not isinstance(total.op, Add) or len(total.inputs) != 2:
            return None
        for mean, number in (total.inputs, total.inputs[::-1]):
            epsilon, axis = self.graph.number(number), self._axis_of_mean(mean)
            if epsilon is None or axis is None:
                continue
            square = self._maker(self._of_mean(mean))
            if square is None or self._source(square.inputs[0]) != of:
                continue
            is_product = isinstance(square.op, Mul) and [self._source(each) for each in square.inputs] == [of, of]
            if is_product or self._is_power(square, 2.0):
                return axis, float(str(np.float32(epsilon)))  # as attributes are read, which are of fp32
        return None

    def _without_mean(self, value: str, axis: int) -> str | None:
        """The value from which its mean over the axes from ``axis`` on was subtracted; None if none was."""
        node = self._maker(value)
        if node is None or node.op != Nary("sub") or self._axis_of_mean(node.inputs[1]) != axis:
            return None
        x = self._source(node.inputs[0])
        return x if self._source(self._of_mean(node.inputs[1])) == x else None

    def _axis_of_mean(self, value: str) -> int | None:
        """First axis of a mean over all axes from it on, which are kept with size one."""
        node = self._maker(value)
        if node is None or not isinstance(node.op, Reduce) or node.op.function != "mean" or not node.op.keepdims:
            return None
        rank = len(self.graph.types[node.inputs[0]].shape)
        axes = sorted(axis % rank for axis in node.op.axes)
        return axes[0] if axes == list(range(rank - len(axes), rank)) else None

    def _of_mean(self, value: str) -> str:
        node = self._maker(value)
        assert node is not None, "_axis_of_mean found it"
        return node.inputs[0]

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
