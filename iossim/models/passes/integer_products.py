"""Products of quantised tensors as products of integers, or of fp8, as runtimes execute them.

Networks of int8 are mostly written as *QDQ*: each operand of a product goes through QuantizeLinear and
DequantizeLinear, which give its scale, and the product itself is in floating point. ONNX Runtime and TensorRT
multiply the integers (`Quantize ONNX models`, onnxruntime.ai; `Working with quantized types`, TensorRT's guide).
Networks of fp8 (Micikevicius et al., 2022) are written in the same way.

Where only a constant second factor is dequantised (W4A16, W8A16), it stays as it is stored: a decode step of a language
model is bound by reading it (Frantar et al., 2023). So does that of ONNX Runtime's MatMulNBits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property

import numpy as np

from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.graph import Graph, Node, free_name
from iossim.ir.op import Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.quantize import (
    OF_FEW_BITS,
    Dequantize,
    DequantizedMatMul,
    IntegerConv,
    IntegerMatMul,
    Quantize,
    QuantizedConv,
    QuantizedMatMul,
    ScaledConv,
    ScaledMatMul,
)
from iossim.ir.ops.reshape import Expand, Reshape, Transpose
from iossim.ir.ops.unary import Cast, Clip, Relu
from iossim.ir.types import FP8, DType
from iossim.models.passes.graph_pass import local_pass
from iossim.models.passes.simplification import Derived, dead_op_elimination, is_constant, known_array

_BYTES = (DType.INT8, DType.UINT8)


@dataclass(frozen=True)
class _Whole:
    """Integers, or fp8, with scale and zero point, by name; ``axis`` is that of several scales, one for a ``block``."""

    value: str
    dtype: DType
    scale: str
    zero: str | None
    axis: int | None
    block: int
    number: DType  #: the type of the scales

    def fits(self, types: Container[DType]) -> bool:
        """True if a product of such types takes it: the product of integers' scales may be too small for 16 bits."""
        return self.dtype in types and not self.block and (self.dtype in FP8 or self.number is DType.FLOAT32)


@dataclass(frozen=True)
class _End:
    """The quantisation after a product, the activation left between them, and the nodes to be removed."""

    quantised: Node
    zero: str
    activation: Op | None
    gone: tuple[str, ...]


def integer_products(graph: Graph) -> Graph:
    """Convolutions and matrix products of dequantised operands become integer ones, or ones of fp8; where only a
    constant matrix is dequantised, one op each that does so on the way.

    If the result is quantised again, with at most an activation between, product and quantisation become one op;
    otherwise the int32 sums are scaled, and a bias is added in floating point. Sums that a file multiplies by the
    product of two scales are multiplied by both in turn, in the epilogue. Ops on constants only, such as other
    dequantisations, are left to constant folding.

    Invariant: outputs are unchanged up to rounding, which after a quantisation may be one step of its scale.
    """
    made = _products(graph)
    return graph if made is graph else dead_op_elimination(made)


@local_pass("conv", "matmul", "gemm", "mul")
def _products(graph: Graph, node: Node, constants: dict[str, Constant]) -> dict[str, list[Node]]:
    return _Rewriting(graph, node, constants).made()


def integer_remarks(scheduled: Graph) -> tuple[str, ...]:
    """Number of products of an imported graph in int8 and fp8, of quantisations that lose all, and of products with
    weights of a few bits with the bytes of these, as sentences.
    """
    remarks = list[str]()
    for dtype, forms in (("int8", ("quantized", "integer")), ("fp8", ("scaled",))):
        count = sum(len(scheduled.of_kind.get(f"{form}_{kind}", ())) for form in forms for kind in ("conv", "matmul"))
        what = "products run" if count > 1 else "product runs"
        remarks += [f"{count} {what} in {dtype}: the operands are quantised."] * bool(count)
    scales = [scheduled.number(node.inputs[1]) for node in scheduled.of_kind.get("quantize", ())]
    if lost := [scale for scale in scales if scale is not None and not math.isfinite(scale)]:
        remarks.append(
            f"{len(lost)} quantisations have no finite scale, so that their numbers are lost: calibration saw masks of "
            "fp32's least number; quantise products alone, or clip the masks before."
        )
    found = defaultdict[int, list[Node]](list)
    for node in scheduled.of_kind.get("dequantized_matmul", ()):
        found[scheduled.types[node.inputs[1]].dtype.bits].append(node)
    for bits, nodes in sorted(found.items()):
        stored, wide = ({each for node in nodes for each in node.inputs[1:last]} for last in (None, 2))
        own_mb = sum(scheduled.types[each].bytes for each in stored) / 1e6
        wide_mb = 2 * sum(scheduled.types[each].elements for each in wide) / 1e6
        what = "products read weights" if len(nodes) > 1 else "product reads weights"
        sizes = f"{own_mb:.3g} MB with scales, in place of {wide_mb:.3g} in 16 bits"
        remarks.append(f"{len(nodes)} {what} of {bits} bits: {sizes}.")
    return tuple(remarks)


@dataclass
class _Rewriting:
    """One product that is being rewritten."""

    graph: Graph
    node: Node
    constants: dict[str, Constant]

    @cached_property
    def parts(self) -> Derived:
        """Its parts besides itself, and their constants."""
        return Derived(self.graph.types, self.constants, f"{self.node.name}.part")

    def made(self) -> dict[str, list[Node]]:
        """The nodes in place of others by the names of those: none if their work is done elsewhere."""
        inputs = self.node.inputs
        if isinstance(self.node.op, Mul):
            return self._scaled_twice()
        a, b = (self._whole(value) for value in inputs[:2])
        if b is None:
            return {}
        types: Container[DType] = FP8 if b.dtype in FP8 else _BYTES
        if a is not None and not (a.axis is None and a.fits(types) and b.fits(types)):
            a = None
        bias = inputs[2] if len(inputs) > 2 else None
        match self.node.op:
            case Conv() as op if a is not None and b.axis in (None, 0) and is_constant(self.graph, b.value):
                return self._convolution(op, a, b, bias)
            case MatMul() | Gemm(alpha=1.0, beta=1.0, trans_a=False) as op:
                b = self._transposed(b) if isinstance(op, Gemm) and op.trans_b else b
                found = {} if a is None else self._product(a, b, bias)
                return found or self._dequantised(b, bias)
        return {}

    def _convolution(self, op: Conv, x: _Whole, w: _Whole, bias: str | None) -> dict[str, list[Node]]:
        if x.dtype in FP8:
            operands = [*self._numbers(x, w), *([] if bias is None else [bias])]
            return self._and_bias(ScaledConv(*astuple(op)), operands, None)
        end = self._quantised_after()
        if end is None:
            return self._scaled(IntegerConv(*astuple(op)), x, w, bias, 1)
        biases = []
        if bias is not None:
            units = self.parts.add(Mul(), x.scale, w.scale)
            own = self.parts.add(Unary("round"), self.parts.add(Nary("div"), bias, units))
            biases = [self.parts.add(Cast(DType.INT32), own)]
        return self._ends(end, QuantizedConv(*astuple(op)), x, w, biases)

    def _product(self, a: _Whole, b: _Whole, bias: str | None) -> dict[str, list[Node]]:
        """A matrix product; the second operand may have one scale per column."""
        types = self.graph.types
        ranks = [len(types[value].shape) for value in self.node.inputs[:2]]
        if min(ranks) < 2 or b.axis not in (None, ranks[1] - 1) or (b.axis is not None and not self._is_zero(b.zero)):
            return {}
        if a.dtype in FP8:
            return self._and_bias(ScaledMatMul(), self._numbers(a, b), bias)
        end = self._quantised_after() if b.axis is None and bias is None else None
        if end is None:
            return self._scaled(IntegerMatMul(), a, b, bias, len(types[self.node.outputs[0]].shape) - 1)
        return self._ends(end, QuantizedMatMul(), a, b)

    def _dequantised(self, b: _Whole, bias: str | None) -> dict[str, list[Node]]:
        """A product that dequantises its constant matrix; one scale, or one a column, is that of whole columns."""
        x, matrix = (self.graph.types[value] for value in self.node.inputs[:2])
        is_across = b.axis == (1 if b.block else 0)
        if len(matrix.shape) != 2 or is_across or not is_constant(self.graph, self.node.inputs[1]):
            return {}
        inner, row = x.shape[-1], (1, self.graph.types[self.node.outputs[0]].shape[-1])
        scale, *zero = [b.scale] if b.zero is None else [b.scale, b.zero]
        if not b.block:
            move = Expand(row) if b.axis is None else Reshape(row)
            scale, *zero = (self.parts.add(move, each) for each in (scale, *zero))
        own = self._numbers(replace(b, scale=scale))
        return self._and_bias(DequantizedMatMul(min(b.block or inner, inner)), (self.node.inputs[0], *own, *zero), bias)

    def _numbers(self, *factors: _Whole) -> list[str]:
        """Each factor and its scale, in the type of the product's numbers."""
        dtype, found = self.graph.types[self.node.outputs[0]].dtype, list[str]()
        for x in factors:
            found += x.value, x.scale if x.number is dtype else self.parts.add(Cast(str(dtype)), x.scale)
        return found

    def _and_bias(self, op: Op, operands: Sequence[str], bias: str | None) -> dict[str, list[Node]]:
        """The product with a bias after it, if there is one."""
        made = replace(self.node, op=op, inputs=tuple(operands))
        if bias is not None:
            product = self.parts.add(op, *operands, name=f"{self.node.name}.product")
            made = replace(self.node, op=Add(), inputs=(product, bias))
        return {self.node.name: [*self.parts.nodes, made]}

    def _scaled(self, op: Op, x: _Whole, w: _Whole, bias: str | None, axis: int) -> dict[str, list[Node]]:
        """The sums, times both scales (``axis`` is that of several), with the bias."""
        zeros = [] if self._is_zero(w.zero) else [self._zero(x.zero, x.dtype), self._zero(w.zero, w.dtype)]
        zeros = zeros or ([] if self._is_zero(x.zero) else [self._zero(x.zero, x.dtype)])
        sums = self.parts.add(op, x.value, w.value, *zeros, name=f"{self.node.name}.sums")
        operands = sums, self.parts.add(Mul(), x.scale, w.scale, name=f"{self.node.name}.scales")
        made: Op = Dequantize(1 if w.axis is None else axis)
        if bias is not None:
            operands, made = (self.parts.add(made, *operands, name=f"{self.node.name}.scaled"), bias), Add()
            if isinstance(self.node.op, Conv):
                shape = (self.graph.types[bias].elements, *[1] * len(self.node.op.strides))
                operands = operands[0], self.parts.add(Reshape(shape), bias)
        return {self.node.name: [*self.parts.nodes, replace(self.node, op=made, inputs=operands)]}

    def _scaled_twice(self) -> dict[str, list[Node]]:
        """Sums times the product of two scales, one known at run time: times this one, then times the other."""
        graph = self.graph
        for value, scales in (self.node.inputs, self.node.inputs[::-1]):
            cast, both = graph.private_producer(value), graph.private_producer(scales)
            if cast is None or both is None or not (isinstance(cast.op, Cast) and isinstance(both.op, Mul)):
                continue
            own, other = both.inputs if both.inputs[1] in graph.constants else both.inputs[::-1]
            is_single = own not in graph.constants and other in graph.constants and graph.types[own].shape == ()
            if graph.types[cast.inputs[0]].dtype is DType.INT32 and is_single:
                scaled = replace(cast, op=Dequantize(), inputs=(cast.inputs[0], own))
                return {
                    cast.name: [],
                    both.name: [],
                    self.node.name: [scaled, replace(self.node, inputs=(value, other))],
                }
        return {}

    def _ends(self, end: _End, op: Op, a: _Whole, b: _Whole, biases: Sequence[str] = ()) -> dict[str, list[Node]]:
        """One op with the output of the quantisation after the product, which it replaces."""
        operands = (
            *(each for x in (a, b) for each in (x.value, x.scale, self._zero(x.zero, x.dtype))),
            end.quantised.inputs[1],
        )
        product = replace(self.node, op=op, inputs=(*operands, end.zero, *biases), outputs=end.quantised.outputs)
        made = [*self.parts.nodes, product]
        if end.activation is not None:
            value = free_name(f"{self.node.name}.quantised", self.graph.types)
            made[-1] = replace(product, outputs=(value,))
            made.append(replace(end.quantised, op=end.activation, inputs=(value,)))
        return {**{name: [] for name in end.gone}, end.quantised.name: made}

    def _quantised_after(self) -> _End | None:
        """The quantisation that is the product's only consumer, possibly through an activation."""
        gone, low, high = [self.node.name], -math.inf, math.inf
        reader = self.graph.private_consumer(self.node.outputs[0])
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
            activation = None
        elif (low, high, zero) == (0.0, math.inf, 0.0):
            activation = Relu()
        else:
            return None
        return _End(reader, self._zero((*reader.inputs, None)[2], dtype), activation, tuple(gone))

    # Producers and consumers

    def _whole(self, value: str) -> _Whole | None:
        """The integers or fp8 that a value is made of; fp8 and constants may be transposed or rounded after it."""
        node, types, is_turned = self.graph.producer.get(value), self.graph.types, False
        while node is not None and (node.op == Transpose((1, 0)) or _rounds(node.op)):
            is_turned ^= isinstance(node.op, Transpose)
            node = self.graph.producer.get(node.inputs[0])
        if node is None or not isinstance(node.op, Dequantize) or types[node.inputs[0]].dtype not in OF_FEW_BITS:
            return None
        dtype, number = (types[each].dtype for each in node.inputs[:2])
        if value not in node.outputs and dtype not in FP8 and not is_constant(self.graph, value):
            return None
        (whole, scale), zero = node.inputs[:2], (*node.inputs, None)[2]
        is_single = types[scale].elements == 1 and not node.op.block
        axis = None if is_single else node.op.axis % len(types[whole].shape)
        found = _Whole(whole, dtype, scale, None if dtype in FP8 else zero, axis, node.op.block, number)
        return self._transposed(found) if is_turned else found

    def _transposed(self, whole: _Whole) -> _Whole:
        def turned(value: str) -> str:
            return self.parts.add(Transpose((1, 0)), value)

        made = replace(whole, value=turned(whole.value), axis=None if whole.axis is None else 1 - whole.axis)
        if whole.block:
            made = replace(made, scale=turned(whole.scale), zero=whole.zero and turned(whole.zero))
        return made

    def _zero(self, given: str | None, dtype: DType) -> str:
        """The name of a zero point, which a network may omit if it is 0."""
        return given or self.parts.constant(ArrayConstant(np.zeros((), dtype.numpy)))

    def _is_zero(self, value: str | None) -> bool:
        held = np.zeros(1) if value is None else known_array(self.graph, value)
        return held is not None and not held.any()


def _rounds(op: Op) -> bool:
    """True for a conversion between types of floating-point numbers."""
    return isinstance(op, Cast) and DType(op.dtype).is_floating


def _limits(op: Clip) -> tuple[float, float]:
    return -math.inf if op.minimum is None else op.minimum, math.inf if op.maximum is None else op.maximum
