"""Gradients of op kinds, as other ops: the rules of reverse-mode differentiation.

A rule gets the tape, the op, the gradient of each of its outputs, and its operands; it adds ops to the tape and returns
the gradient of each operand (:data:`Gradients`). A rule for another op kind is a function registered in :data:`RULES`;
those of element-wise ops are in :mod:`iossim.microbatching.elementwise_gradients`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from iossim.base.errors import ModelError
from iossim.ir.builder import GraphBuilder
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Block, Network, make_unit
from iossim.ir.op import KindTable, Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.gather import Gather, GatherBackward
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.normalization import BatchNorm, LayerNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from iossim.ir.ops.pool_backward import AveragePoolBackward, MaxPoolBackward
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Expand, Flatten, Pad, Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.softmax import LogSoftmax, Softmax, SoftmaxLike
from iossim.ir.ops.unary import Cast, Identity
from iossim.ir.types import TensorType

#: Infix after the name of an op in the names of its gradient's ops.
BACKWARD = ".backward."


class Tape(GraphBuilder):
    """The gradients' ops as rules add them, each in a unit; ``types`` are those of all values. ``node`` and
    ``at_block`` are the op whose rule runs, and the number of its block.
    """

    node: Node
    at_block: int

    def __init__(self, graph: Graph, weights: Collection[str]) -> None:
        super().__init__("gradients")
        self.forward, self.weights, self.types = graph, weights, dict(graph.types)
        #: The block of each value's producer, and of each unit.
        self.blocks: dict[str, int] = {}
        self.block_of_unit: list[int] = []
        learnt = set(weights)
        for node in graph.nodes:
            if learnt.intersection(node.inputs):
                learnt.update(value for value in node.outputs if self.types[value].dtype.is_floating)
        self._needed = learnt

    def needed(self, value: str) -> bool:
        """True if the gradient of a value is required."""
        return value in self._needed

    def filled(self, shape: Sequence[int], value: float) -> str:
        """A constant with equal elements."""
        name = f"{self.node.name}.backward.{value:g}.{'x'.join(map(str, shape))}"
        return self.constant(name, shape, self.types[self.node.outputs[0]].dtype, value)

    def add_all(self, op: Op, *inputs: str, name: str | None = None) -> tuple[str, ...]:
        values = super().add_all(op, *inputs, name=f"{self.node.name}{BACKWARD}{op.kind}{len(self._nodes)}")
        self.blocks.update(dict.fromkeys(values, self.at_block))
        return values

    @contextmanager
    def fused(self, kind: str) -> Iterator[None]:
        """Ops added inside are one unit."""
        with nullcontext() if self._open_unit is not None else self.unit("", f"{kind}-backward"):  # or part of another
            yield

    def _start_unit(self, name: str, kind: str, nodes: list[int]) -> None:
        if nodes:
            super()._start_unit(name or self._nodes[nodes[-1]].name, kind, nodes)
            self.block_of_unit.append(self.at_block)

    def total(self, value: str, parts: list[str]) -> str:
        """The sum of a value's gradients from all of its consumers; computed once."""
        if len(parts) > 1:
            parts[:] = [self.add(Add(), *parts)]
        return parts[0]

    def extended(self, network: Network, inputs: Mapping[str, TensorType], renamed: Mapping[str, str]) -> Network:
        """The network with the gradients in blocks after its own, in reverse order; values are ``renamed``."""

        def own(values: Sequence[str]) -> tuple[str, ...]:
            return tuple(renamed.get(value, value) for value in values)

        graph = Graph.create(
            inputs,
            [*network.graph.outputs, *renamed.values()],
            [
                *network.graph.nodes,
                *(replace(one, inputs=own(one.inputs), outputs=own(one.outputs)) for one in self._nodes),
            ],
            {**network.graph.constants, **self._constants},
        )
        units = [
            make_unit(graph, unit.name, unit.kind, [graph.position[node.name] for node in network.unit_nodes(unit)])
            for unit in network.units
        ]
        blocks = list(network.blocks)
        for number in sorted(set(self.block_of_unit), reverse=True):
            first = len(units)
            units += [
                make_unit(graph, name, kind, [graph.position[self._nodes[node].name] for node in nodes])
                for (name, kind, nodes), block in zip(self._units, self.block_of_unit, strict=True)
                if block == number
            ]
            blocks.append(Block(f"{network.blocks[number].name}.backward", tuple(range(first, len(units)))))
        name = f"{network.name}.training"
        return replace(network, name=name, graph=graph, units=tuple(units), blocks=tuple(blocks))


#: Gradient of each input, or a function that makes it, called only where it is required; None if there is none.
Gradients = Sequence[Callable[[], str] | str | None]
Rule = Callable[..., Gradients]
RULES = KindTable[Rule]()


def gradients(tape: Tape, node: Node, grads: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each input of a node whose gradient is required, and that gradient, given those of the outputs.

    Raises ModelError for a kind without rule.
    """
    rule = RULES.get(node.op.kind)
    if rule is None:
        raise ModelError(
            f"op {node.name!r} ({node.op.kind}) has no gradient here; "
            "leave out `training`, or register a rule for its kind"
        )
    made = rule(tape, node.op, *grads, *node.inputs)
    for value, grad in zip(node.inputs, made[: len(node.inputs)], strict=True):
        if grad is not None and tape.needed(value):
            yield value, grad if isinstance(grad, str) else grad()


def summed(tape: Tape, grad: str, like: str) -> str:
    """A gradient in the shape of the value before broadcasting: summed over the broadcast axes."""
    have, want = tape.types[grad].shape, tape.types[like].shape
    added = len(have) - len(want)
    axes = tuple(axis for axis, size in enumerate(have) if axis < added or (want[axis - added] == 1 and size != 1))
    with tape.fused("Sum"):
        total = tape.add(Reduce("sum", axes, keepdims=True), grad) if axes else grad
        return total if tape.types[total].shape == want else tape.add(Reshape(want), total)


def mean_of_batch(rank: int) -> Reduce:
    """The mean of each channel over a batch."""
    return Reduce("mean", tuple(axis for axis in range(rank) if axis != 1), keepdims=False)


#: Ops that are linear in one input: the op that makes its gradient of the output's, given the op and the input's type.
ADJOINTS: dict[type[Op], Callable[[Any, TensorType], Op]] = {
    AveragePool: lambda op, x: AveragePoolBackward(**op.attributes(), input_size=x.shape[2:]),
    Cast: lambda op, x: Cast(str(x.dtype)),
    Flatten: lambda op, x: Reshape(x.shape),
    Reshape: lambda op, x: Reshape(x.shape),
    Transpose: lambda op, x: Transpose(tuple(map(op.permutation.index, range(len(op.permutation))))),
}


@RULES.register(*ADJOINTS)
def _linear(tape: Tape, op: Op, grad: str, x: str) -> Gradients:
    return [tape.add(ADJOINTS[type(op)](op, tape.types[x]), grad)]


RULES.register(Identity)(lambda tape, op, grad, x: [grad])
RULES.register(Expand)(lambda tape, op, grad, x: [summed(tape, grad, x)])
RULES.register(MaxPool)(lambda tape, op, grad, x: [tape.add(MaxPoolBackward(**op.attributes()), x, grad)])
RULES.register(Split)(lambda tape, op, *grads_and_x: [tape.add(Concat(op.axis), *grads_and_x[:-1])])


def convolution_gradients(op: Conv, x: TensorType, weight: TensorType) -> tuple[ConvBackwardData, ConvBackwardFilter]:
    """Ops of the gradients of a convolution's input and filter."""
    shared = (op.strides, op.pads, op.dilations, op.groups)
    return ConvBackwardData(*shared, input_size=x.shape[2:]), ConvBackwardFilter(*shared, kernel_size=weight.shape[2:])


@RULES.register(Conv)
def _conv(tape: Tape, op: Conv, grad: str, x: str, weight: str, bias: str = "") -> Gradients:
    data, filters = convolution_gradients(op, tape.types[x], tape.types[weight])
    total = Reduce("sum", (0, *range(2, len(tape.types[grad].shape))), keepdims=False)
    return [lambda: tape.add(data, grad, weight), lambda: tape.add(filters, x, grad), lambda: tape.add(total, grad)]


@RULES.register(Gemm)
def _gemm(tape: Tape, op: Gemm, grad: str, a: str, b: str, c: str = "") -> Gradients:
    def of_a() -> str:
        if op.trans_a:
            return tape.add(Gemm(op.alpha, trans_a=op.trans_b, trans_b=True), b, grad)
        return tape.add(Gemm(op.alpha, trans_b=not op.trans_b), grad, b)

    def of_b() -> str:
        if op.trans_b:
            return tape.add(Gemm(op.alpha, trans_a=True, trans_b=op.trans_a), grad, a)
        return tape.add(Gemm(op.alpha, trans_a=not op.trans_a), a, grad)

    def of_c() -> str:
        total = summed(tape, grad, c)
        return total if op.beta == 1 else tape.add(Mul(), total, tape.filled((1,), op.beta))

    return [of_a, of_b, of_c]


@RULES.register(MatMul)
def _matmul(tape: Tape, op: MatMul, grad: str, a: str, b: str) -> Gradients:
    rows, columns = tape.types[a], tape.types[b]
    if min(len(rows.shape), len(columns.shape)) < 2:
        raise ModelError(
            f"op {tape.node.name!r} (matmul) multiplies a vector ({rows}, {columns}), which has no gradient here"
        )
    is_stacked = len(columns.shape) > 2

    def flat(value: str) -> str:
        return tape.add(Reshape((-1, tape.types[value].shape[-1])), value)

    def turned(value: str) -> str:
        """Each matrix transposed."""
        *batch, row, column = range(len(tape.types[value].shape))
        return tape.add(Transpose((*batch, column, row)), value)

    def of_a() -> str:
        with tape.fused("MatMul"):
            if is_stacked:
                return summed(tape, tape.add(MatMul(), grad, turned(b)), a)
            return tape.add(Reshape(rows.shape), tape.add(Gemm(trans_b=True), flat(grad), b))

    def of_b() -> str:
        with tape.fused("MatMul"):
            if is_stacked:
                return summed(tape, tape.add(MatMul(), turned(a), grad), b)
            return tape.add(Gemm(trans_a=True), flat(a), flat(grad))

    return [of_a, of_b]


@RULES.register(Softmax, LogSoftmax)
def _softmax(tape: Tape, op: SoftmaxLike, grad: str, x: str) -> Gradients:
    (y,) = tape.node.outputs
    if op.flatten:
        raise ModelError(f"op {tape.node.name!r} (softmax over several axes) has no gradient here")
    total = Reduce("sum", (op.axis % len(tape.types[y].shape),))
    with tape.fused("Softmax"):
        if isinstance(op, LogSoftmax):
            return [tape.add(Nary("sub"), grad, tape.add(Mul(), tape.add(Unary("exp"), y), tape.add(total, grad)))]
        mean = tape.add(total, tape.add(Mul(), grad, y))
        return [tape.add(Mul(), tape.add(Add(), grad, tape.add(Unary("neg"), mean)), y)]


@RULES.register(GlobalAveragePool)
def _global_average_pool(tape: Tape, op: GlobalAveragePool, grad: str, x: str) -> Gradients:
    shape = tape.types[x].shape
    with tape.fused("AveragePool"):
        share = tape.add(Mul(), grad, tape.filled((1,), 1 / math.prod(shape[2:])))
        return [tape.add(Expand(shape), share)]


@RULES.register(BatchNorm)
def _batch_norm(
    tape: Tape, op: BatchNorm, grad: str, x: str, scale: str, bias: str, mean: str, variance: str
) -> Gradients:
    """Constant statistics have no gradient; that of batch statistics is part of the gradient of ``x``."""
    channels = tape.types[scale].shape
    zeros, ones = tape.filled(channels, 0.0), tape.filled(channels, 1.0)
    others = tuple(axis for axis in range(len(tape.types[x].shape)) if axis != 1)
    total = Reduce("sum", others, keepdims=False)
    makers = [tape.forward.producer.get(value) for value in (mean, variance)]
    of_batch = makers[0] is not None and (makers[0].op, makers[0].inputs) == (mean_of_batch(len(others) + 1), (x,))
    if not of_batch and any(maker is not None for maker in makers):
        raise ModelError(
            f"op {tape.node.name!r} (batch_norm) reads statistics that are computed, and has no gradient here"
        )
    of_x, of_scale, of_bias = "", "", ""
    if tape.needed(scale) or of_batch:
        with tape.fused("BatchNorm"):
            normal = tape.add(op, x, ones, zeros, mean, variance)
            of_scale = tape.add(total, tape.add(Mul(), grad, normal))
    if tape.needed(bias) or of_batch:
        of_bias = tape.add(total, grad)
    if tape.needed(x):
        with tape.fused("BatchNorm"):
            centred = grad
            if of_batch:
                share = tape.filled((1,), 1 / math.prod(tape.types[x].shape[axis] for axis in others))
                means = [tape.add(Mul(), each, share) for each in (of_scale, of_bias)]
                centred = tape.add(Nary("sub"), grad, tape.add(op, x, *means, mean, variance))
            of_x = tape.add(op, centred, scale, zeros, zeros, variance)
    return [of_x, of_scale, of_bias, None, None]


@RULES.register(LayerNorm)
def _layer_norm(tape: Tape, op: LayerNorm, grad: str, x: str, scale: str, bias: str = "") -> Gradients:
    rank = len(tape.types[x].shape)
    mean = Reduce("mean", tuple(range(op.axis % rank, rank)))
    of_x, of_scale = "", ""
    with tape.fused("LayerNorm"):
        centred = tape.add(Nary("sub"), x, tape.add(mean, x))
        variance = tape.add(mean, tape.add(Mul(), centred, centred))
        deviation = tape.add(Unary("sqrt"), tape.add(Add(), variance, tape.filled((1,), op.epsilon)))
        normal = tape.add(Nary("div"), centred, deviation)
        if tape.needed(x):
            scaled = tape.add(Mul(), grad, scale)
            along = tape.add(Mul(), normal, tape.add(mean, tape.add(Mul(), scaled, normal)))
            rest = tape.add(Nary("sub"), tape.add(Nary("sub"), scaled, tape.add(mean, scaled)), along)
            of_x = tape.add(Nary("div"), rest, deviation)
        if tape.needed(scale):
            of_scale = summed(tape, tape.add(Mul(), grad, normal), scale)
    return [of_x, of_scale, lambda: summed(tape, grad, bias)]


@RULES.register(Concat)
def _concat(tape: Tape, op: Concat, grad: str, *terms: str) -> Gradients:
    return tape.add_all(Split(op.axis, tuple(tape.types[each].shape[op.axis] for each in terms)), grad)


@RULES.register(Reduce)
def _reduce(tape: Tape, op: Reduce, grad: str, x: str) -> Gradients:
    (y,), shape = tape.node.outputs, tape.types[x].shape
    axes = {axis % len(shape) for axis in op.axes}
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    if not axes:
        raise ModelError(f"op {tape.node.name!r} (reduce) reduces nothing, and has no gradient here")
    with tape.fused("Reduce"):
        if not op.keepdims:
            grad = tape.add(Reshape(kept), grad)
        if op.function in ("sum", "mean"):
            if op.function == "mean":
                share = math.prod(shape[axis] for axis in axes)
                grad = tape.add(Mul(), grad, tape.filled((1,), 1 / share))
            return [tape.add(Expand(shape), grad)]
        if not op.keepdims:
            y = tape.add(Reshape(kept), y)
        return [tape.add(Mul(), _slope_of_reduction(tape, op, x, y), grad)]


def _slope_of_reduction(tape: Tape, op: Reduce, x: str, y: str) -> str:
    """The derivative of a reduction other than a sum by each element; equal maxima share it."""
    match op.function:
        case "max" | "min":
            hit = tape.add(Cast(str(tape.types[x].dtype)), tape.add(Nary("equal"), x, y))
            return tape.add(Nary("div"), hit, tape.add(Reduce("sum", op.axes), hit))
        case "l1":
            return tape.add(Unary("sign"), x)
        case "l2":
            return tape.add(Nary("div"), x, y)
        case "sum_square":
            return tape.add(Mul(), x, tape.filled((1,), 2.0))
        case "log_sum_exp":
            return tape.add(Unary("exp"), tape.add(Nary("sub"), x, y))
        case _:
            raise ModelError(f"op {tape.node.name!r} (reduce, {op.function}) has no gradient here")


@RULES.register(Slice)
def _slice(tape: Tape, op: Slice, grad: str, x: str) -> Gradients:
    shape = tape.types[x].shape
    if set(op.steps) - {1}:
        raise ModelError(f"op {tape.node.name!r} (slice) has steps, and no gradient here")
    before, after = [0] * len(shape), [0] * len(shape)
    for axis, start, end in zip(op.axes, op.starts, op.ends, strict=True):
        taken = range(shape[axis])[start:end]
        before[axis], after[axis] = taken.start, shape[axis] - taken.stop
    return [tape.add(Pad((*before, *after)), grad)]


@RULES.register(Gather)
def _gather(tape: Tape, op: Gather, grad: str, data: str, indices: str) -> Gradients:
    return [lambda: tape.add(GatherBackward(op.axis, tape.types[data].shape[op.axis]), grad, indices), None]
