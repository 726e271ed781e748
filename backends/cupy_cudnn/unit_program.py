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

from iossim.backends.cupy_cudnn import dequantised_products, element_kernels  # noqa: F401  the first registers
from iossim.backends.cupy_cudnn.attention_calls import fused_attention
from iossim.backends.cupy_cudnn.convolution import Epilogue
from iossim.backends.cupy_cudnn.op_calls import OP_CALLS
from iossim.backends.cupy_cudnn.quantised_calls import QUANTISED
from iossim.backends.cupy_cudnn.unit_calls import POINTWISE, HostCall, UnitProgram, kind_of
from iossim.backends.cupy_cudnn.unit_chains import UnitChains
from iossim.backends.cupy_cudnn.views import View, coalesced, row_major
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.execution.backend import BackendError
from iossim.ir.attention import SpeltAttention
from iossim.ir.graph import Node
from iossim.ir.merging import merged_convolution
from iossim.ir.network import Network
from iossim.ir.op import Role, normal_axis
from iossim.ir.ops.channels_last import ConvNhwc
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvTranspose
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.reshape import Transpose
from iossim.ir.ops.slice import Concat
from iossim.ir.types import TO_FIRST, DType

#: Kinds that kernels compute of whole numbers, too, and of numbers of any type.
_OF_WHOLE_NUMBERS = {"max_pool", "global_max_pool", *(op.kind for op in QUANTISED)}
_OF_ALL = {
    *("concat", "slice", "split", "transpose", "reshape", "flatten", "identity", "expand", "tile", "depth_to_space"),
    *("space_to_depth", "pad", "gather", "gather_elements", "gather_nd", "cumsum", "arg_extreme", "top_k"),
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
    biases = [] if bias is None else [bias.along(1, len(y.shape))]
    epilogue, _ = lowering.after(parts[0][0], biases)
    lowering.convolve(merged.op, x, w, y, epilogue)
    return lowering.program


class _Lowering(UnitChains):
    """Grows the calls of one unit, node by node."""

    def __init__(self, network: Network, name: str, nodes: Sequence[Node], weights: Weights) -> None:
        super().__init__(network, nodes, weights)
        self.name = name
        #: The last op of the attention that an op is a part of.
        self.attention_of = {node.name: end for end, found in self.attentions.items() for node in found.nodes}

    def run(self) -> None:
        for node in self._in_order():
            if node.name in self.attentions:
                self._attention(self.attentions[node.name])
            elif node.name not in self.attention_of:
                self._lowered(node)

    def _in_order(self) -> list[Node]:
        """The ops of the unit, first those that only view what is there already: others may read it in an epilogue."""
        first: dict[str, Node] = {}
        for node in self.nodes:
            before = self.graph.producer.get(node.inputs[0]) if node.op.role is Role.VIEW else node
            if (before is None or before.name in first or before.name not in self.inside) and before is not node:
                first[node.name] = node
        return [*first.values(), *(node for node in self.nodes if node.name not in first)]

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
            view = value if self.weights.knows(value) else self.view(value)
            reads.append(view if isinstance(view, str) or view.is_dense else self.dense_copy(view))
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
            if not (node.name in self.chain_of if node.op.is_elementwise else computed):
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
            case _ if node is self.lookup and self.reads_through(self.chain_of.get(node.name)):
                pass
            case _ if node.op.kind in OP_CALLS:
                OP_CALLS[node.op.kind](self, node, node.op)
            case _ if node.name in self.chain_of:
                if self.chain_of[node.name] == (node.name, ""):
                    self.compute((node.name, ""), node.outputs[0], self.written(node))
            case _:
                raise BackendError(f"no kernel computes {kind_of(node.op)}")

    def _concat(self, node: Node, op: Concat) -> None:
        output = self.written(node)
        axis = normal_axis(op.axis, len(output.shape))
        begin = 0
        for value in node.inputs:
            size = self.graph.types[value].shape[axis]
            self.compute((node.name, value), value, output.part(axis, begin, size))
            begin += size

    def _convolution(self, node: Node) -> None:
        op, x, w = node.op, self.read(node, 0), self.read(node, 1)
        channels = -1 if isinstance(op, ConvNhwc) else 1
        bias = [self.view(name).along(channels, len(x.shape)) for name in node.inputs[2:]]
        epilogue, value = self.after(node, bias)
        y = self.target(value)
        if isinstance(op, ConvNhwc):
            epilogue = epilogue.moved(lambda view: view.broadcast(y.shape).permuted(TO_FIRST))
            op, x, y = op.channels_first, x.permuted(TO_FIRST), y.permuted(TO_FIRST)
        if isinstance(op, ConvBackwardData):
            op = op.transposed(x.shape[2:], w.shape[2:])
        assert isinstance(op, Conv | ConvTranspose)
        prologue = self.chains.get(node.inputs[0]) if op is node.op and isinstance(op, Conv) else None
        if prologue is not None:
            is_next = prologue.kernel in self.calls[-1:] and self.graph.consumers[node.inputs[0]] == (node,)
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
        scaled, addends = "", [self.view(name) for name in node.inputs[2:]]
        if addends and op.beta != 1 and self.weights.knows(node.inputs[2]):
            addends = [self.weights.scaled(node.inputs[2], op.beta)]
        elif addends and op.beta != 1:
            scaled = f"a0 + {element_kernels.literal(op.beta)} * a1"
        epilogue, value = self.after(node, addends, scaled)
        self._product(a, w, self.target(value), epilogue)

    def _matrix_product(self, node: Node) -> None:
        """With a constant matrix as a pointwise convolution; of stacks of matrices as a product of cuDNN's."""
        a, b = self.read(node), node.inputs[1]
        if len(a.shape) < 2 or len(self.graph.types[b].shape) < 2:
            raise BackendError("no kernel multiplies vectors; give them as matrices of one row or column")
        epilogue, value = self.after(node)
        y = self.target(value)
        if len(self.graph.types[b].shape) != 2 or not self.weights.knows(b):
            self.multiply(a, self.view(b), y, epilogue)
            return
        epilogue = epilogue.moved(lambda view: view.broadcast(y.shape))
        # Images of one pixel; of more only where an operand is repeated along some of the rows.
        own = [view.strides[:-1] for view in epilogue.computed.operands]
        lead, _ = coalesced(y.shape[:-1], [row_major(y.shape[:-1]), *own])
        lead = lead if len(lead) == 2 else [math.prod(lead)]
        with self.written_as(y, (*lead, y.shape[-1])) as flat:
            epilogue = epilogue.moved(lambda view: self.flat(view, flat.shape))
            a = self.flat(a, (*lead, a.shape[-1]))
            self._product(a, self.weights.filters(b, transposed=True), flat, epilogue)

    def _product(self, a: View, w: View, y: View, epilogue: Epilogue) -> None:
        """Rows, ``[rows, columns]``, as images of one pixel; stacks of them as images of one line."""

        def image(view: View) -> View:
            if len(view.shape) == 2:
                return view.with_ones((*view.shape, 1, 1))
            count, rows, columns = view.shape
            return view.permuted((0, 2, 1)).with_ones((count, columns, 1, rows))

        self.convolve(POINTWISE, image(a), w, image(y), epilogue.moved(lambda view: image(view.broadcast(y.shape))))
