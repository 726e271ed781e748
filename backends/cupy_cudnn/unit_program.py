"""A unit as calls on the device: which of its ops run in which cuDNN call or kernel, and what lies between them.

The fusion is that of :mod:`iossim.hardware.lowering.unit`: a bias and an activation are the epilogue of the
convolution or fully connected layer before them; neighbouring element-wise ops are one kernel; a concat that must be
computed is a kernel per term. Reshapes, splits and slices inside a unit only change views. Values between two calls
lie in the launch's scratch, in front of what cuDNN works in. An attention is one call of
cuDNN, or its ops, as is faster. An op that nothing here computes runs on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from iossim.backends.cupy_cudnn import element_kernels
from iossim.backends.cupy_cudnn.attention_calls import fused_attention
from iossim.backends.cupy_cudnn.element_kernels import Operands
from iossim.backends.cupy_cudnn.op_calls import OP_CALLS
from iossim.backends.cupy_cudnn.quantised_calls import QUANTISED, rescaled
from iossim.backends.cupy_cudnn.unit_calls import (
    POINTWISE,
    Epilogue,
    HostCall,
    Prologue,
    UnitCalls,
    UnitProgram,
    kind_of,
)
from iossim.backends.cupy_cudnn.views import View
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.execution.backend import BackendError
from iossim.hardware.lowering.unit import lookup_in
from iossim.ir.attention import SpeltAttention, attentions_in
from iossim.ir.graph import Node
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network
from iossim.ir.op import Op, normal_axis
from iossim.ir.ops.channels_last import ConvNhwc
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvTranspose
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul, PRelu, Where
from iossim.ir.ops.normalization import BatchNorm
from iossim.ir.ops.quantize import Dequantize, Quantize
from iossim.ir.ops.reshape import Transpose
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Cast, Clip, Relu, Sigmoid
from iossim.ir.types import TO_FIRST, DType

_ACTIVATIONS = (Relu, Clip, Sigmoid, Unary)
_ELEMENTWISE = (Add, Mul, Nary, Where, PRelu, BatchNorm, Cast, Quantize, Dequantize, *_ACTIVATIONS)
#: Kinds that kernels compute of whole numbers, too, and of numbers of any type.
_OF_WHOLE_NUMBERS = {"max_pool", "global_max_pool", *(op.kind for op in QUANTISED)}
_OF_ALL = {
    *("concat", "slice", "split", "transpose", "reshape", "flatten", "identity", "expand", "tile", "depth_to_space"),
    *("space_to_depth", "pad", "gather", "gather_elements", "cumsum", "arg_extreme", "top_k"),
}


def unit_program(
    network: Network, unit: int, reads: Sequence[View], writes: Sequence[View], weights: Weights
) -> UnitProgram:
    """The calls of a unit from and to the given places; an op that none computes is a :class:`HostCall`."""
    found = network.units[unit]
    lowering = _Lowering(network, found.name, network.unit_nodes(found), weights)
    lowering.places.update(zip(found.outputs, writes, strict=True))
    lowering.values.update(zip(found.inputs, reads, strict=True))
    lowering.run()
    return lowering.program


def merged_program(network: Network, units: Sequence[int], x: View, y: View, weights: Weights) -> UnitProgram:
    """Several units as one stacked convolution; raises ScheduleError where they do not merge."""
    merged = merged_convolution(network, units)
    parts = [network.unit_nodes(network.units[unit]) for unit in units]
    lowering = _Lowering(network, "+".join(network.units[unit].name for unit in units), parts[0], weights)
    w, bias = weights.merged(merged, [nodes[0] for nodes in parts])
    activation = parts[0][1].op if len(parts[0]) > 1 else None
    lowering.convolve(merged.op, x, w, y, Epilogue(bias, activation=activation))
    return lowering.program


class _Lowering(UnitCalls):
    """Grows the calls of one unit, node by node."""

    def __init__(self, network: Network, name: str, nodes: Sequence[Node], weights: Weights) -> None:
        super().__init__(network.graph, weights)
        self.name, self.nodes = name, nodes
        self.inside = {node.name: node for node in nodes}
        self.fused: set[str] = set()  # ops in the epilogue of what is before them
        self.chains: dict[str, Prologue] = {}  # values that are computed of one other, element by element
        self.lookup = lookup_in(network.graph, nodes)
        self.attentions = attentions_in(network.graph, nodes)
        #: The last op of the attention that an op is a part of.
        self.attention_of = {node.name: end for end, found in self.attentions.items() for node in found.nodes}

    def run(self) -> None:
        for node in self.nodes:
            if node.name in self.attentions:
                self._attention(self.attentions[node.name])
            elif node.name not in self.attention_of:
                self._lowered(node)

    def _lowered(self, node: Node) -> None:
        if node.name in self.fused:
            return
        before = len(self.calls), self.scratch_bytes, dict(self.values), set(self.fused)
        try:
            self._lower(node)
        except BackendError as error:
            kept, self.scratch_bytes, self.values, self.fused = before
            del self.calls[kept:]
            self._on_host(node, str(error))

    def _on_host(self, node: Node, reason: str) -> None:
        """The op by NumPy, from and to dense views."""
        reads: list[View | str] = []
        for value in node.inputs:
            view = self.values.get(value)
            reads.append(value if view is None else view if view.is_dense else self.dense_copy(view))
        places = [self.target(value) for value in node.outputs]
        writes = [view if view.is_dense else self.scratch(view.shape, view.dtype) for view in places]
        self.calls.append(HostCall(node, reason, tuple(reads), tuple(writes)))
        for made, place in zip(writes, places, strict=True):
            if made is not place:
                self.copy(made, place)

    def _attention(self, attention: SpeltAttention) -> None:
        """Its ops one by one, or all of them as one call of cuDNN where that may have one."""
        before, self.calls = self.calls, []
        inside, (end, product, *_) = {node.name for node in attention.nodes}, attention.nodes
        if isinstance(end.op, Transpose):
            places = [end.op.permutation.index(axis) for axis in range(len(end.op.permutation))]
            self.values[product.outputs[0]] = self.written(end).permuted(places)
            self.fused.add(end.name)
        for node in self.nodes:
            if node.name in inside:
                self._lowered(node)
        apart, self.calls = self.calls, before
        kernels = tuple(call for call in apart if not isinstance(call, HostCall))
        found = fused_attention(self, attention, kernels) if len(kernels) == len(apart) else None
        self.calls += apart if found is None else [found]

    def _lower(self, node: Node) -> None:
        for dtype in (value_type.dtype for value_type in self.graph.output_types(node)):
            whole = not dtype.is_floating and node.op.kind not in _OF_WHOLE_NUMBERS
            computed = node.op.kind in _OF_ALL or not (whole or dtype is DType.FLOAT64)
            if not (self._in_chains(node) if isinstance(node.op, _ELEMENTWISE) else computed):
                raise BackendError(f"no kernel computes {kind_of(node.op)} of {dtype}")
        match node.op:
            case Conv() | ConvNhwc() | ConvTranspose() | ConvBackwardData():
                self._convolution(node)
            case Gemm():
                self._fully_connected(node, node.op)
            case MatMul():
                self._matrix_product(node)
            case Concat():
                self._concat(node, node.op)
            case _ if node is self.lookup and self._read_through(node):
                pass
            case _ if node.op.kind in OP_CALLS:
                OP_CALLS[node.op.kind](self, node, node.op)
            case _ if isinstance(node.op, _ELEMENTWISE):
                if self._absorbing_reader(node) is None:
                    self._chain(node.outputs[0], self.written(node), sink=True)
            case _:
                raise BackendError(f"no kernel computes {kind_of(node.op)}")

    # Element-wise chains

    def _in_chains(self, node: Node) -> bool:
        """True where an element-wise op may be part of a chain."""
        match node.op:
            case Quantize() | Dequantize():
                return True
            case BatchNorm():
                return all(self.weights.knows(name) for name in node.inputs[1:])
            case PRelu(per_channel=True):
                return False
        types = [self.graph.types[name].dtype for name in (*node.inputs, *node.outputs)]
        return element_kernels.is_computed(node.op, types[:-1], types[-1])

    def _chain(self, value: str, output: View, *, sink: bool = False) -> None:
        """One kernel for a value and the unit's element-wise ops that only feed it; a ``sink`` is in it."""
        operands, lookup = Operands(), None
        if self.lookup is not None and self._read_through(self.lookup) == value:
            x, lookup = element_kernels.looked_up(*self.looked_up(self.lookup))
            operands.symbol(x)  # the first

        def text(name: str, sink: bool = False) -> str:
            node = self.graph.producer.get(name)
            if lookup is not None and node is self.lookup:
                return operands.symbol(operands.views[0])
            absorbed = node is not None and node.name in self.inside and node.name not in self.fused
            if node is None or not absorbed or not (sink or self._absorbing_reader(node) is not None):
                return operands.symbol(self.view(name))
            if isinstance(node.op, Quantize | Dequantize):
                return rescaled(self, node, text(node.inputs[0]), operands)
            if isinstance(node.op, BatchNorm):
                vectors, places = self.weights.normalisation(node), (1,) * (len(self.graph.types[name].shape) - 2)
                shaped = [view.with_ones((view.elements, *places)) for view in vectors]
                terms = [text(node.inputs[0]), *(operands.symbol(view) for view in shaped)]
            else:
                terms = [text(operand) for operand in node.inputs]
            whole = self.graph.types[node.inputs[0]].dtype in (DType.INT32, DType.INT64)
            return element_kernels.op_expression(node.op, terms, whole)

        expression = text(value, sink)
        made = element_kernels.chain(expression, operands.views, output, lookup)
        self.calls.append(made)
        if lookup is None and [(view.shape, view.dtype) for view in operands.views] == [(output.shape, output.dtype)]:
            self.chains[value] = Prologue(expression, operands.views[0], made)

    def _concat(self, node: Node, op: Concat) -> None:
        output = self.written(node)
        axis = normal_axis(op.axis, len(output.shape))
        begin = 0
        for value in node.inputs:
            size = self.graph.types[value].shape[axis]
            self._chain(value, output.part(axis, begin, size))
            begin += size

    def _only_reader(self, node: Node) -> Node | None:
        """The one node that reads a node's one output, once, if it is in the unit."""
        if len(node.outputs) != 1 or node.outputs[0] in self.places:
            return None
        readers = self.graph.consumers[node.outputs[0]]
        if len(readers) != 1 or readers[0].name not in self.inside or readers[0].inputs.count(node.outputs[0]) != 1:
            return None
        return readers[0]

    def _absorbing_reader(self, node: Node) -> Node | None:
        """The element-wise op or concat of the unit that takes an element-wise op into its kernel."""
        reader = self._only_reader(node) if isinstance(node.op, _ELEMENTWISE) and self._in_chains(node) else None
        if reader is None or self.attention_of.get(node.name) != self.attention_of.get(reader.name):
            return None  # what an attention reads is a value of its own
        takes = isinstance(reader.op, Concat) or (isinstance(reader.op, _ELEMENTWISE) and self._in_chains(reader))
        return reader if takes else None

    def _read_through(self, lookup: Node) -> str:
        """The value of the chain that takes a lookup into its kernel; empty if none does."""
        node, reader = lookup, self._only_reader(lookup)
        if reader is None or not isinstance(reader.op, _ELEMENTWISE) or not self._in_chains(reader):
            return ""
        shape = self.graph.types[lookup.outputs[0]].shape
        while reader is not None and self.graph.types[reader.outputs[0]].shape == shape:
            node, reader = reader, self._absorbing_reader(reader)
        return node.outputs[0] if reader is None and self.read(lookup, 1).is_dense else ""

    # Convolutions and fully connected layers

    def _epilogue(
        self, node: Node, bias: View | None = None, addend: View | None = None, factor: float = 1.0
    ) -> tuple[Epilogue, str]:
        """Ops after a convolution or product that are computed with it, and the value that they make.

        A sum with a constant, one value a filter or column, is a bias; one with a value of the same shape that is
        there already, a residual; then comes an activation.
        """
        value, reader = node.outputs[0], self._only_reader(node)
        while reader is not None and isinstance(reader.op, Add) and len(reader.inputs) == 2:
            other = reader.inputs[1 - reader.inputs.index(value)]
            if bias is None and addend is None and self._is_bias(other, value, node.op):
                bias = self.weights.vector(other)
            elif addend is None and other in self.values and self.values[other].shape == self.graph.types[value].shape:
                addend = self.values[other]
            else:
                break
            value, reader = self._after(reader)
        activation: Op | None = None
        if reader is not None and isinstance(reader.op, _ACTIVATIONS) and self._in_chains(reader):
            activation = reader.op
            value, _ = self._after(reader)
        return Epilogue(bias, addend, factor, activation), value

    def _after(self, node: Node) -> tuple[str, Node | None]:
        """Output of an op of an epilogue, and its only reader if there is one."""
        self.fused.add(node.name)
        return node.outputs[0], self._only_reader(node)

    def _is_bias(self, constant: str, value: str, op: Op) -> bool:
        """True where a constant has a value per filter of a convolution, or per column of a product."""
        shape, own = self.graph.types[value].shape, self.graph.types[constant].shape
        if not self.weights.knows(constant) or len(own) > len(shape):
            return False
        axis, sizes = 1 if isinstance(op, Conv | ConvTranspose) else -1, (1,) * (len(shape) - len(own)) + own
        return sizes[axis] == math.prod(sizes) == shape[axis]

    def _convolution(self, node: Node) -> None:
        x, w = self.read(node, 0), self.read(node, 1)
        epilogue, value = self._epilogue(node, self.read(node, 2) if len(node.inputs) > 2 else None)
        op, y = node.op, self.target(value)
        if isinstance(op, ConvNhwc):
            op, x, y = op.channels_first, x.permuted(TO_FIRST), y.permuted(TO_FIRST)
            if epilogue.addend is not None:
                epilogue = replace(epilogue, addend=epilogue.addend.permuted(TO_FIRST))
        if isinstance(op, ConvBackwardData):
            op = op.transposed(x.shape[2:], w.shape[2:])
        assert isinstance(op, Conv | ConvTranspose)
        prologue = self.chains.get(node.inputs[0]) if op is node.op and isinstance(op, Conv) else None
        if prologue is not None:
            is_next = prologue.kernel in self.calls[-1:] and self._only_reader(self.graph.producer[node.inputs[0]])
            prologue = prologue if is_next else None
            self.calls = self.calls[:-1] if is_next else self.calls
        self.convolve(op, x, w, y, epilogue, prologue)

    def _fully_connected(self, node: Node, op: Gemm) -> None:
        """Issue it as a pointwise convolution of images of one pixel, whose channels are the rows of ``a``."""
        a = self.read(node, 0)
        a = a.permuted((1, 0)) if op.trans_a else a
        if self.weights.knows(node.inputs[1]):
            w = self.weights.filters(node.inputs[1], transposed=not op.trans_b, scale=op.alpha)
        else:
            if op.alpha != 1:
                raise BackendError("no kernel scales a product of two values computed at run time; fold alpha")
            b = self.read(node, 1)
            b = b if op.trans_b else b.permuted((1, 0))
            w = self.flat(b, (*b.shape, 1, 1))
        if len(node.inputs) == 2:
            epilogue, value = self._epilogue(node)
        elif self._is_bias(node.inputs[2], node.outputs[0], op):
            epilogue, value = self._epilogue(node, self.weights.vector(node.inputs[2], op.beta))
        else:
            addend = self.view(node.inputs[2]).broadcast(self.graph.types[node.outputs[0]].shape)
            epilogue, value = self._epilogue(node, None, addend, op.beta)
        self._product(a, w, self.target(value), epilogue)

    def _matrix_product(self, node: Node) -> None:
        """With a constant matrix as a pointwise convolution; of stacks of matrices as a product of cuDNN's."""
        a, b = self.read(node), node.inputs[1]
        if len(a.shape) < 2 or len(self.graph.types[b].shape) < 2:
            raise BackendError("no kernel multiplies vectors; give them as matrices of one row or column")
        if len(self.graph.types[b].shape) != 2 or not self.weights.knows(b):
            self.multiply(a, self.view(b), self.written(node))
            return
        epilogue, value = self._epilogue(node)
        y = self.target(value)
        rows = math.prod(a.shape[:-1])
        if epilogue.addend is not None:
            epilogue = replace(epilogue, addend=self.flat(epilogue.addend, (rows, y.shape[-1])))
        with self.written_as(y, (rows, y.shape[-1])) as flat:
            a = self.flat(a, (rows, a.shape[-1]))
            self._product(a, self.weights.filters(b, transposed=True), flat, epilogue)

    def _product(self, a: View, w: View, y: View, epilogue: Epilogue) -> None:
        def image(view: View) -> View:
            return view.with_ones((*view.shape, 1, 1))

        if epilogue.addend is not None:
            epilogue = replace(epilogue, addend=image(epilogue.addend))
        self.convolve(POINTWISE, image(a), w, image(y), epilogue)
