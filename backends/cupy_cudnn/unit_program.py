"""A unit as calls on the device: which of its ops run in which cuDNN call or kernel, and what lies between them.

The fusion is that of :mod:`iossim.hardware.lowering.unit`: a bias and an activation are the epilogue of the
convolution or fully connected layer before them; neighbouring element-wise ops are one kernel; a concat that must be
computed is a kernel per term. Reshapes, splits and slices inside a unit only change views. Values between two calls
lie in the launch's scratch, in front of what cuDNN works in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from iossim.backends.cupy_cudnn import element_kernels, reduction_kernels, window_kernels
from iossim.backends.cupy_cudnn.convolution import ConvolutionCall, convolution_of
from iossim.backends.cupy_cudnn.views import ELEMENT_BYTES, KernelCall, Memory, View, dense
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.execution.backend import BackendError
from iossim.execution.plan import ALIGNMENT_BYTES
from iossim.ir.graph import Node
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network
from iossim.ir.op import Op, normal_axis
from iossim.ir.ops.channels_last import TO_FIRST, ChannelsLast, ConvNhwc
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import BatchNorm, LocalResponseNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from iossim.ir.ops.reshape import Flatten, Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Clip, Identity, Relu, Sigmoid
from iossim.ir.types import DType

Call = KernelCall | ConvolutionCall

SCRATCH = Memory("scratch")
_ACTIVATIONS = (Relu, Clip, Sigmoid)
_ELEMENTWISE = (Add, Mul, BatchNorm, *_ACTIVATIONS)
_POINTWISE = Conv((1, 1), (0, 0, 0, 0), (1, 1), 1)


@dataclass(frozen=True, eq=False)
class UnitProgram:
    """Calls in the order that they are issued to one stream; ``scratch_bytes`` hold what they pass on."""

    calls: tuple[Call, ...]
    scratch_bytes: int

    @property
    def convolutions(self) -> tuple[ConvolutionCall, ...]:
        return tuple(call for call in self.calls if isinstance(call, ConvolutionCall))


def unit_program(
    network: Network, unit: int, reads: Sequence[View], writes: Sequence[View], weights: Weights
) -> UnitProgram:
    """The calls of a unit from and to the given places; raises BackendError naming an op that none computes."""
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
    lowering.convolve(merged.op, x, w, y, bias=bias, activation=activation)
    return lowering.program


class _Lowering:
    """Grows the calls of one unit, node by node."""

    def __init__(self, network: Network, name: str, nodes: Sequence[Node], weights: Weights) -> None:
        self.graph, self.name, self.nodes, self.weights = network.graph, name, nodes, weights
        self.inside = {node.name: node for node in nodes}
        self.places: dict[str, View] = {}  # where values must be written
        self.values: dict[str, View] = {}  # where values are
        self.calls: list[Call] = []
        self.fused: set[str] = set()  # activations in the epilogue of what is before them
        self.scratch_bytes = 0

    @property
    def program(self) -> UnitProgram:
        return UnitProgram(tuple(self.calls), self.scratch_bytes)

    def run(self) -> None:
        for node in self.nodes:
            if node.name in self.fused:
                continue
            try:
                self._lower(node)
            except BackendError as error:
                raise BackendError(f"unit {self.name!r}, op {node.name!r}: {error}") from None

    def _lower(self, node: Node) -> None:
        for value_type in self.graph.output_types(node):
            if value_type.dtype is not DType.FLOAT32:
                raise BackendError(
                    f"makes {value_type.dtype}, and only fp32 is computed; load the model with `dtype` fp32"
                )
        match node.op:
            case Conv() | ConvNhwc():
                self._convolution(node)
            case Gemm():
                self._fully_connected(node, node.op)
            case MatMul():
                self._matrix_product(node)
            case Concat():
                self._concat(node, node.op)
            case ChannelsLast():
                self._pool(
                    node.op.channels_first, self._in(node).permuted(TO_FIRST), self._out(node).permuted(TO_FIRST)
                )
            case MaxPool() | AveragePool() | GlobalAveragePool() | GlobalMaxPool():
                self._pool(node.op, self._in(node), self._out(node))
            case LocalResponseNorm():
                self.calls.append(window_kernels.local_response_norm(node.op, self._in(node), self._out(node)))
            case Softmax():
                self._softmax(node, node.op)
            case Slice() | Split() | Transpose():
                for value, view in zip(node.outputs, _moved(node.op, self._in(node)), strict=True):
                    self._pass_on(value, view)
            case Reshape() | Flatten() | Identity():
                self._reshape(node)
            case _ if isinstance(node.op, _ELEMENTWISE):
                if self._absorbing_reader(node) is None:
                    self._chain(node.outputs[0], self._out(node), sink=True)
            case _:
                raise BackendError(f"no kernel computes {node.op.kind}; fold or replace it, or use another backend")

    def _in(self, node: Node, index: int = 0) -> View:
        return self._view(node.inputs[index])

    def _out(self, node: Node) -> View:
        return self._target(node.outputs[0])

    def _view(self, value: str) -> View:
        return self.values[value] if value in self.values else self.weights.value(value)

    def _target(self, value: str) -> View:
        """Where a value is written: its place, or scratch."""
        if value not in self.values:
            place = self.places.get(value)
            self.values[value] = self._scratch(self.graph.types[value].shape) if place is None else place
        return self.values[value]

    def _scratch(self, shape: Sequence[int]) -> View:
        view = dense(SCRATCH, shape, self.scratch_bytes // ELEMENT_BYTES)
        size_bytes = view.elements * ELEMENT_BYTES
        self.scratch_bytes += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return view

    def _pass_on(self, value: str, view: View) -> None:
        """A value that is there already: copied if it must be elsewhere."""
        if value in self.places:
            self.calls.append(element_kernels.copy(view, self._target(value)))
        else:
            self.values[value] = view

    def _dense_copy(self, view: View) -> View:
        target = self._scratch(view.shape)
        self.calls.append(element_kernels.copy(view, target))
        return target

    def _flat(self, view: View, shape: Sequence[int]) -> View:
        """The elements of a view under another shape, copied where its strides do not allow that."""
        return view.reshaped(shape) or dense(SCRATCH, shape, self._dense_copy(view).offset)

    # Element-wise chains

    def _chain(self, value: str, output: View, *, sink: bool = False) -> None:
        """One kernel for a value and the unit's element-wise ops that only feed it; a ``sink`` is in it."""
        operands: list[View] = []

        def symbol(view: View) -> str:
            if view not in operands:
                operands.append(view)
            return f"a{operands.index(view)}"

        def text(name: str, sink: bool = False) -> str:
            node = self.graph.producer.get(name)
            absorbed = node is not None and node.name in self.inside and node.name not in self.fused
            if node is None or not absorbed or not (sink or self._absorbing_reader(node) is not None):
                return symbol(self._view(name))
            if isinstance(node.op, BatchNorm):
                per_channel = (1, -1, *[1] * (len(self.graph.types[name].shape) - 2))
                vectors = self.weights.normalisation(node)
                shaped = [
                    view.with_ones(tuple(view.elements if n == -1 else n for n in per_channel)) for view in vectors
                ]
                terms = [text(node.inputs[0]), *(symbol(view) for view in shaped)]
            else:
                terms = [text(operand) for operand in node.inputs]
            found = element_kernels.op_expression(node.op, terms)
            assert found is not None, f"{node.op.kind} is absorbed but not element-wise"
            return found

        expression = text(value, sink)
        self.calls.append(element_kernels.chain(expression, operands, output))

    def _concat(self, node: Node, op: Concat) -> None:
        output = self._out(node)
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
        reader = self._only_reader(node) if isinstance(node.op, _ELEMENTWISE) else None
        return reader if reader is not None and isinstance(reader.op, (*_ELEMENTWISE, Concat)) else None

    # Convolutions and fully connected layers

    def _epilogue(self, node: Node) -> tuple[Op | None, str]:
        """The activation that a node's epilogue applies, and the value that is there afterwards."""
        reader = self._only_reader(node)
        if reader is None or not isinstance(reader.op, _ACTIVATIONS):
            return None, node.outputs[0]
        self.fused.add(reader.name)
        return reader.op, reader.outputs[0]

    def _convolution(self, node: Node) -> None:
        """Of NHWC as NCHW, dense: other strides are copied."""
        x, w = self._in(node, 0), self._in(node, 1)
        bias = self._in(node, 2) if len(node.inputs) > 2 else None
        activation, value = self._epilogue(node)
        op, y = node.op, self._target(value)
        if isinstance(op, ConvNhwc):
            op, x, y = op.channels_first, x.permuted(TO_FIRST), y.permuted(TO_FIRST)
        assert isinstance(op, Conv)
        self.convolve(op, x, w, y, bias=bias, activation=activation)

    def _fully_connected(self, node: Node, op: Gemm) -> None:
        """As a pointwise convolution of images of one pixel, of which the rows of ``a`` are the channels."""
        a = self._in(node, 0)
        a = a.permuted((1, 0)) if op.trans_a else a
        if self.weights.knows(node.inputs[1]):
            w = self.weights.filters(node.inputs[1], transposed=not op.trans_b, scale=op.alpha)
        else:
            if op.alpha != 1:
                raise BackendError("no kernel scales a product of two values computed at run time; fold alpha")
            b = self._in(node, 1)
            b = b if op.trans_b else b.permuted((1, 0))
            w = self._flat(b, (*b.shape, 1, 1))
        activation, value = self._epilogue(node)
        y = self._target(value)
        rows, columns = y.shape
        bias, addend = None, None
        if len(node.inputs) > 2:
            c = self.graph.types[node.inputs[2]]
            if self.weights.knows(node.inputs[2]) and c.elements == columns and c.shape[-1:] == (columns,):
                bias = self.weights.vector(node.inputs[2], op.beta)
            else:
                addend = (self._view(node.inputs[2]).broadcast((rows, columns)), op.beta)
        self._product(a, w, y, bias, addend, activation)

    def _matrix_product(self, node: Node) -> None:
        a, b = self._in(node), node.inputs[1]
        if len(self.graph.types[b].shape) != 2 or len(a.shape) < 2 or not self.weights.knows(b):
            raise BackendError("only products with a constant matrix on the right are computed; use another backend")
        activation, value = self._epilogue(node)
        y = self._target(value)
        w = self.weights.filters(b, transposed=True)
        rows = math.prod(a.shape[:-1])
        flat = y.reshaped((rows, y.shape[-1]))
        result = self._scratch((rows, y.shape[-1])) if flat is None else flat
        self._product(self._flat(a, (rows, a.shape[-1])), w, result, None, None, activation)
        if flat is None:
            self.calls.append(element_kernels.copy(dense(SCRATCH, y.shape, result.offset), y))

    def _product(
        self, a: View, w: View, y: View, bias: View | None, addend: tuple[View, float] | None, activation: Op | None
    ) -> None:
        images = [view.with_ones((*view.shape, 1, 1)) for view in (a, y)]
        if addend is not None:
            view, factor = addend
            addend = View(view.memory, images[1].shape, (*view.strides, 0, 0), view.offset), factor
        self.convolve(_POINTWISE, images[0], w, images[1], bias=bias, activation=activation, addend=addend)

    def convolve(
        self,
        op: Conv,
        x: View,
        w: View,
        y: View,
        *,
        bias: View | None = None,
        activation: Op | None = None,
        addend: tuple[View, float] | None = None,
    ) -> None:
        """One convolution with its epilogue; operands that cuDNN does not take as they lie are copied.

        ``addend`` is a further summand of the epilogue, a view of ``y``'s shape and its factor.
        """
        x = x if x.suits_cudnn else self._dense_copy(x)
        w = w if w.is_dense and w.suits_cudnn else self._dense_copy(w)
        inner = y if y.suits_cudnn else self._scratch(y.shape)
        filters = y.shape[1]
        operands, terms = [inner], ["a0"]
        if bias is not None:
            bias = bias if bias.is_dense and bias.suits_cudnn else self._dense_copy(bias)
            operands.append(bias.with_ones((1, filters, *[1] * (len(y.shape) - 2))))
            terms.append("a1")
        if addend is not None:
            terms.append(f"{element_kernels.literal(addend[1])} * a{len(operands)}")
            operands.append(addend[0])
        text = " + ".join(terms)
        expression = f"({text})" if activation is None else element_kernels.activation(activation, f"({text})")
        relu = isinstance(activation, Relu)
        has_epilogue = len(terms) > 1 or activation is not None
        fused = addend is None and (activation is None or relu)
        views = {"x": x, "w": w, "y": inner}
        if fused and has_epilogue:
            # cuDNN's fused convolutions have a bias always.
            views["b"] = self.weights.zeros(filters) if bias is None else bias
        self.calls.append(
            ConvolutionCall(
                convolution_of(op, x, w, inner, bias="b" in views, relu=fused and relu),
                views,
                element_kernels.chain(expression, operands, y) if has_epilogue or inner is not y else None,
                element_kernels.copy(inner, y) if inner is not y else None,
                fused,
            )
        )

    # The rest

    def _pool(self, op: Op, x: View, y: View) -> None:
        if isinstance(op, MaxPool | AveragePool):
            self.calls.append(window_kernels.pool(op, x, y))
        else:
            self.calls.append(reduction_kernels.global_pool(x, y, is_average=isinstance(op, GlobalAveragePool)))

    def _softmax(self, node: Node, op: Softmax) -> None:
        x, y = self._in(node), self._out(node)
        first = normal_axis(op.axis, len(x.shape))
        axes = range(first, len(x.shape)) if op.flatten else [first]
        self.calls.append(reduction_kernels.softmax(x, y, axes))

    def _reshape(self, node: Node) -> None:
        value = node.outputs[0]
        shape = self.graph.types[value].shape
        view = self._in(node)
        if value in self.places:
            target = self._target(value)
            as_input = target.reshaped(view.shape)
            copied = (self._flat(view, shape), target) if as_input is None else (view, as_input)
            self.calls.append(element_kernels.copy(*copied))
        else:
            self.values[value] = self._flat(view, shape)


def _moved(op: Slice | Split | Transpose, x: View) -> list[View]:
    """Where the outputs of an op that only moves data lie in its input."""
    match op:
        case Transpose():
            return [x.permuted(op.permutation)]
        case Split():
            axis = normal_axis(op.axis, len(x.shape))
            begins = [sum(op.sizes[:index]) for index in range(len(op.sizes))]
            return [x.part(axis, begin, size) for begin, size in zip(begins, op.sizes, strict=True)]
        case Slice():
            for given, start, end, step in zip(op.axes, op.starts, op.ends, op.steps, strict=True):
                axis = normal_axis(given, len(x.shape))
                taken = range(*slice(start, end, step).indices(x.shape[axis]))
                x = x.part(axis, taken.start, len(taken), step)
            return [x]
