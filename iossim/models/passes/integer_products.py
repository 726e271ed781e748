"""Products of quantised tensors as integer products, as runtimes execute them.

Networks of int8 are mostly written as *QDQ*: each operand of a product goes through QuantizeLinear and
DequantizeLinear, which give its scale, and the product itself is in floating point. ONNX Runtime and TensorRT
multiply the integers (`Quantize ONNX models`, onnxruntime.ai; `Working with quantized types`, TensorRT's guide).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace

import numpy as np

from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.graph import Graph, Names, Node
from iossim.ir.op import Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.pool import MaxPool
from iossim.ir.ops.quantize import Dequantize, IntegerConv, IntegerMatMul, Quantize, QuantizedConv, QuantizedMatMul
from iossim.ir.ops.reshape import Flatten, Reshape, Transpose
from iossim.ir.ops.slice import Slice
from iossim.ir.ops.unary import Cast, Clip, Relu
from iossim.ir.types import DType
from iossim.models.passes.graph_pass import GraphPass, with_nodes

#: Ops that only move elements, or select the maximum, and therefore commute with quantisation.
_MOVERS = (MaxPool, Reshape, Flatten, Transpose, Slice)
_BYTES = (DType.INT8, DType.UINT8)


@dataclass(frozen=True)
class _Whole:
    """Integers with their scale and zero point, by name; ``axis`` is that of several scales."""

    value: str
    dtype: DType
    scale: str
    zero: str | None
    axis: int | None


@dataclass(frozen=True)
class _End:
    """The quantisation after a product, the activation left between them, and the nodes to be removed."""

    quantised: Node
    dtype: DType
    activation: Op | None
    gone: tuple[str, ...]


class IntegerProducts(GraphPass):
    """Convolutions and matrix products of dequantised operands become integer ones.

    If the result is quantised again, with at most an activation between, product and quantisation become one op;
    otherwise the int32 sums are scaled, and a bias is added in floating point. Data movement between a dequantisation
    and a quantisation of equal scales moves the integers. Unused dequantisations are left to dead op elimination,
    and ops on constants only to constant folding.

    Invariant: outputs are unchanged up to rounding, which after a quantisation may be one step of its scale.
    """

    def apply(self, graph: Graph) -> Graph:
        if "dequantize" not in graph.of_kind:
            return graph
        rewriting = _Rewriting(graph, Names({*graph.types, *(node.name for node in graph.nodes)}))
        for node in graph.nodes:
            rewriting.look_at(node)
        if not rewriting.made:
            return graph
        nodes = [
            each
            for node in graph.nodes
            for each in (*rewriting.before.get(node.name, ()), *rewriting.made.get(node.name, (node,)))
        ]
        return with_nodes(graph, nodes, {**graph.constants, **rewriting.constants})


def integer_remarks(scheduled: Graph) -> tuple[str, ...]:
    """Number of integer products of an imported graph, as a sentence."""
    kinds = ("quantized_conv", "integer_conv", "quantized_matmul", "integer_matmul")
    count = sum(len(scheduled.of_kind.get(kind, ())) for kind in kinds)
    what = "products run" if count > 1 else "product runs"
    return (f"{count} {what} in int8: the operands are quantised.",) if count else ()


@dataclass
class _Rewriting:
    """``made`` are the nodes that replace a node: none if its work is done elsewhere. ``before`` are those inserted
    before it.
    """

    graph: Graph
    names: Names
    made: dict[str, tuple[Node, ...]] = field(default_factory=dict)
    before: dict[str, list[Node]] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    zeros: dict[DType, str] = field(default_factory=dict)

    def look_at(self, node: Node) -> None:
        match node.op:
            case Conv():
                self._convolution(node, node.op)
            case MatMul():
                a, b = (self._whole(value) for value in node.inputs)
                self._product(node, a, b, None)
            case Gemm(alpha=1.0, beta=1.0, trans_a=False):
                a, b = (self._whole(value) for value in node.inputs[:2])
                if b is not None and node.op.trans_b:
                    b = self._transposed(node, b)
                self._product(node, a, b, node.inputs[2] if len(node.inputs) > 2 else None)
            case _ if isinstance(node.op, _MOVERS):
                self._mover(node)

    def _convolution(self, node: Node, op: Conv) -> None:
        x, w = (self._whole(value) for value in node.inputs[:2])
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if x is None or w is None or x.axis is not None or w.axis not in (None, 0) or not self._is_constant(w.value):
            return
        end = self._quantised_after(node)
        if end is None:
            self._scaled(node, IntegerConv(*astuple(op)), x, w, bias, 1)
            return
        operands = [x.value, x.scale, self._zero_of(x), w.value, w.scale, self._zero_of(w)]
        operands += [end.quantised.inputs[1], self._zero_after(end)]
        if bias is not None:
            units = self._add(node, "scales", Mul(), x.scale, w.scale)
            own = self._add(node, "bias", Nary("div"), bias, units)
            own = self._add(node, "rounded bias", Unary("round"), own)
            operands.append(self._add(node, "whole bias", Cast(DType.INT32), own))
        self._ends(node, end, QuantizedConv(*astuple(op)), operands)

    def _product(self, node: Node, a: _Whole | None, b: _Whole | None, bias: str | None) -> None:
        """A matrix product; the second operand may have one scale per column."""
        if a is None or b is None or a.axis is not None:
            return
        ranks = [len(self.graph.types[value].shape) for value in node.inputs[:2]]
        if min(ranks) < 2 or b.axis not in (None, ranks[1] - 1):
            return
        if b.axis is not None and not self._is_zero(b.zero):
            return
        end = self._quantised_after(node) if b.axis is None and bias is None else None
        if end is None:
            self._scaled(node, IntegerMatMul(), a, b, bias, len(self.graph.types[node.outputs[0]].shape) - 1)
            return
        operands = [a.value, a.scale, self._zero_of(a), b.value, b.scale, self._zero_of(b)]
        self._ends(node, end, QuantizedMatMul(), [*operands, end.quantised.inputs[1], self._zero_after(end)])

    def _scaled(self, node: Node, op: Op, x: _Whole, w: _Whole, bias: str | None, axis: int) -> None:
        """The sums, times both scales (``axis`` is that of several), with the bias, in place of ``node``."""
        zeros = [] if self._is_zero(w.zero) else [self._zero_of(x), self._zero_of(w)]
        zeros = zeros or ([] if self._is_zero(x.zero) else [self._zero_of(x)])
        sums = self._add(node, "sums", op, x.value, w.value, *zeros)
        scale = self._add(node, "scales", Mul(), x.scale, w.scale)
        scaled = Dequantize(1 if w.axis is None else axis)
        if bias is None:
            self.made[node.name] = (replace(node, op=scaled, inputs=(sums, scale)),)
            return
        product = self._add(node, "scaled", scaled, sums, scale)
        if isinstance(node.op, Conv):
            shape = (self.graph.types[bias].elements, *[1] * len(node.op.strides))
            bias = self._add(node, "bias of each", Reshape(shape), bias)
        self.made[node.name] = (replace(node, op=Add(), inputs=(product, bias)),)

    def _ends(self, node: Node, end: _End, op: Op, operands: Sequence[str]) -> None:
        """One op with the output of the quantisation after ``node``, which it replaces."""
        product = replace(node, op=op, inputs=tuple(operands), outputs=end.quantised.outputs)
        made = [product]
        if end.activation is not None:
            value = self.names.fresh(f"{node.name}.quantised")
            made = [replace(product, outputs=(value,)), replace(end.quantised, op=end.activation, inputs=(value,))]
        self.made |= dict.fromkeys(end.gone, ())
        self.made[end.quantised.name] = tuple(made)

    def _quantised_after(self, node: Node) -> _End | None:
        """The quantisation that is a product's only consumer, possibly through an activation."""
        gone, low, high = [node.name], -math.inf, math.inf
        reader = self.graph.private_consumer(node.outputs[0])
        if reader is not None and isinstance(reader.op, Relu | Clip):
            low, high = (0.0, math.inf) if isinstance(reader.op, Relu) else _limits(reader.op)
            gone.append(reader.name)
            reader = self.graph.private_consumer(reader.outputs[0])
        if reader is None or not isinstance(reader.op, Quantize):
            return None
        dtype = self.graph.types[reader.outputs[0]].dtype
        scale = self.graph.number(reader.inputs[1])
        zero = self.graph.number(reader.inputs[2]) if len(reader.inputs) > 2 else 0.0
        if dtype not in _BYTES or scale is None or zero is None:
            return None
        ends = np.iinfo(dtype.numpy_name)
        # An activation that only clips values that the quantisation clips anyway is dropped.
        if low <= (ends.min - zero + 0.5) * scale and high >= (ends.max - zero - 0.5) * scale:
            return _End(reader, dtype, None, tuple(gone))
        is_relu = (low, high, zero) == (0.0, math.inf, 0.0)
        return _End(reader, dtype, Relu(), tuple(gone)) if is_relu else None

    def _mover(self, node: Node) -> None:
        """A data movement op with a dequantisation before and a quantisation after it, by the same scale."""
        x, reader = self._whole(node.inputs[0]), self.graph.private_consumer(node.outputs[0])
        if x is None or x.axis is not None or len(node.inputs) != 1 or reader is None:
            return
        if not isinstance(reader.op, Quantize) or self.graph.types[reader.outputs[0]].dtype != x.dtype:
            return
        scales = [self.graph.number(each) for each in (x.scale, reader.inputs[1])]
        zeros = [self.graph.number(each) if each else 0.0 for each in (x.zero, (*reader.inputs, None)[2])]
        if None not in (scales[0], zeros[0]) and scales[0] == scales[1] and zeros[0] == zeros[1]:
            self.made[node.name] = ()
            self.made[reader.name] = (replace(node, inputs=(x.value,), outputs=reader.outputs),)

    # Producers and consumers

    def _whole(self, value: str) -> _Whole | None:
        """The 8-bit integers that a value is dequantised from; transposed after it, if it is a matrix."""
        node = self.graph.producer.get(value)
        if node is not None and node.op == Transpose((1, 0)) and self._is_constant(value):
            before = self._whole(node.inputs[0])
            return before and self._transposed(node, before)
        if node is None or not isinstance(node.op, Dequantize):
            return None
        whole, scale, zero = (*node.inputs, None)[:3]
        assert whole is not None
        assert scale is not None
        of_type = self.graph.types[whole]
        # The product of two scales may be too small for 16 bits.
        if of_type.dtype not in _BYTES or self.graph.types[scale].dtype is not DType.FLOAT32:
            return None
        axis = None if self.graph.types[scale].elements == 1 else node.op.axis % len(of_type.shape)
        return _Whole(whole, of_type.dtype, scale, zero, axis)

    def _transposed(self, node: Node, whole: _Whole) -> _Whole:
        value = self._add(node, "turned", Transpose((1, 0)), whole.value)
        return replace(whole, value=value, axis=None if whole.axis is None else 1 - whole.axis)

    def _is_constant(self, value: str) -> bool:
        node = self.graph.producer.get(value)
        return value in self.graph.constants or (node is not None and all(map(self._is_constant, node.inputs)))

    def _is_zero(self, value: str | None) -> bool:
        if value is None:
            return True
        held = self.graph.constants.get(value)
        return held is not None and not held.is_absent and not held.load().any()

    # Added nodes

    def _zero_of(self, whole: _Whole) -> str:
        """The name of a zero point, which a network may omit if it is 0."""
        return whole.zero or self._zero(whole.dtype)

    def _zero_after(self, end: _End) -> str:
        return end.quantised.inputs[2] if len(end.quantised.inputs) > 2 else self._zero(end.dtype)

    def _zero(self, dtype: DType) -> str:
        if dtype not in self.zeros:
            self.zeros[dtype] = self.names.fresh(f"zero of {dtype}")
            self.constants[self.zeros[dtype]] = ArrayConstant(np.zeros((), dtype.numpy))
        return self.zeros[dtype]

    def _add(self, node: Node, what: str, op: Op, *inputs: str) -> str:
        """Add an op before a node; returns the name of its output, which is the op's own."""
        name = self.names.fresh(f"{node.name}.{what}")
        self.before.setdefault(node.name, []).append(Node(name, op, inputs, (name,)))
        return name


def _limits(op: Clip) -> tuple[float, float]:
    return -math.inf if op.minimum is None else op.minimum, math.inf if op.maximum is None else op.maximum
