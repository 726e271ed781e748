"""What the gradient of each op kind is, as other ops: the rules of reverse-mode differentiation.

A rule has the node, and the gradient of its output; it adds ops to the tape and returns the gradient of each input, None where that
has none. A rule for another op kind is a function registered by :func:`gradient_of`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar, cast

from iossim.base.errors import ModelError
from iossim.ir.graph import Node
from iossim.ir.op import Op
from iossim.ir.ops.add import Add
from iossim.ir.ops.batch_norm import BatchNorm
from iossim.ir.ops.concat import Concat
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_backward import ConvBackwardData, ConvBackwardFilter
from iossim.ir.ops.expand import Expand
from iossim.ir.ops.flatten import Flatten
from iossim.ir.ops.gemm import Gemm
from iossim.ir.ops.identity import Identity
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.mul import Mul
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from iossim.ir.ops.pool_backward import AveragePoolBackward, MaxPoolBackward
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.relu import Relu
from iossim.ir.ops.reshape import Reshape
from iossim.ir.ops.sigmoid import Sigmoid
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.split import Split
from iossim.ir.ops.transpose import Transpose
from iossim.ir.ops.unary import Unary
from iossim.ir.types import TensorType


class Tape(Protocol):
    """Where rules write. ``needed``: whether the gradient of a value is asked for."""

    def type(self, value: str) -> TensorType: ...

    def needed(self, value: str) -> bool: ...

    def filled(self, shape: Sequence[int], value: float) -> str:
        """A constant, the same everywhere."""
        ...

    def add(self, op: Op, *inputs: str) -> str:
        """The value that the op makes: a unit of its own outside :meth:`unit`."""
        ...

    def add_all(self, op: Op, *inputs: str) -> tuple[str, ...]: ...

    def unit(self, kind: str) -> AbstractContextManager[None]:
        """Ops added inside are one unit."""
        ...


Gradients = Sequence[str | None]
Rule = Callable[[Tape, Node, str], Gradients]
_Op = TypeVar("_Op", bound=Op)
_RULES: dict[type[Op], Rule] = {}


def gradient_of(*kinds: type[Op]) -> Callable[[Rule], Rule]:
    """Register a rule for classes of ops."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def gradients(tape: Tape, node: Node, grad: str) -> Gradients:
    """The gradient of each input of a node with one output. Raises ModelError where its op kind has no rule."""
    if type(node.op) not in _RULES:
        raise ModelError(
            f"op {node.name!r} ({node.op.kind}) has no gradient here; leave out `training`, or register a rule for its kind"
        )
    return _RULES[type(node.op)](tape, node, grad)


def _op(node: Node, kind: type[_Op]) -> _Op:
    return cast(_Op, node.op)


def _summed(tape: Tape, grad: str, like: str) -> str:
    """A gradient as the value has it that was broadcast: summed over the axes along which it was."""
    have, want = tape.type(grad).shape, tape.type(like).shape
    if have == want:
        return grad
    added = len(have) - len(want)
    axes = tuple(axis for axis, size in enumerate(have) if axis < added or (want[axis - added] == 1 and size != 1))
    with tape.unit("Sum"):
        total = tape.add(Reduce("sum", axes, keepdims=True), grad) if axes else grad
        return total if tape.type(total).shape == want else tape.add(Reshape(want), total)


@gradient_of(Conv)
def _conv(tape: Tape, node: Node, grad: str) -> Gradients:
    op, (x, weight, *bias) = _op(node, Conv), node.inputs
    shared = (op.strides, op.pads, op.dilations, op.groups)
    sizes = tape.type(x).shape[2:], tape.type(weight).shape[2:]
    data = ConvBackwardData(*shared, input_size=sizes[0])
    filters = ConvBackwardFilter(*shared, kernel_size=sizes[1])
    spatial = (0, *range(2, len(tape.type(grad).shape)))
    return [
        tape.add(data, grad, weight) if tape.needed(x) else None,
        tape.add(filters, x, grad) if tape.needed(weight) else None,
        *(tape.add(Reduce("sum", spatial, keepdims=False), grad) if tape.needed(each) else None for each in bias),
    ]


@gradient_of(Gemm)
def _gemm(tape: Tape, node: Node, grad: str) -> Gradients:
    op, (a, b, *bias) = _op(node, Gemm), node.inputs
    found: list[str | None] = [None, None]
    if tape.needed(a):
        if op.trans_a:
            found[0] = tape.add(Gemm(op.alpha, trans_a=op.trans_b, trans_b=True), b, grad)
        else:
            found[0] = tape.add(Gemm(op.alpha, trans_b=not op.trans_b), grad, b)
    if tape.needed(b):
        if op.trans_b:
            found[1] = tape.add(Gemm(op.alpha, trans_a=True, trans_b=op.trans_a), grad, a)
        else:
            found[1] = tape.add(Gemm(op.alpha, trans_a=not op.trans_a), a, grad)
    for each in bias:
        total = _summed(tape, grad, each) if tape.needed(each) else None
        if total is not None and op.beta != 1:
            total = tape.add(Mul(), total, tape.filled((1,), op.beta))
        found.append(total)
    return found


@gradient_of(MatMul)
def _matmul(tape: Tape, node: Node, grad: str) -> Gradients:
    a, b = node.inputs
    rows, columns = tape.type(a), tape.type(b)
    if len(columns.shape) == 2 and len(rows.shape) >= 2:
        inner, width = columns.shape
        with tape.unit("MatMul"):
            flat = tape.add(Reshape((-1, width)), grad)
            grad_a = tape.add(Reshape(rows.shape), tape.add(Gemm(trans_b=True), flat, b)) if tape.needed(a) else None
        if not tape.needed(b):
            return [grad_a, None]
        with tape.unit("MatMul"):
            left, right = tape.add(Reshape((-1, inner)), a), tape.add(Reshape((-1, width)), grad)
            return [grad_a, tape.add(Gemm(trans_a=True), left, right)]
    if rows.shape[:-2] != columns.shape[:-2] or len(rows.shape) < 2:
        raise ModelError(f"op {node.name!r} (matmul) broadcasts {rows} and {columns}, which has no gradient here")
    swap = Transpose((*range(len(rows.shape) - 2), len(rows.shape) - 1, len(rows.shape) - 2))
    found: list[str | None] = [None, None]
    if tape.needed(a):
        with tape.unit("MatMul"):
            found[0] = tape.add(MatMul(), grad, tape.add(swap, b))
    if tape.needed(b):
        with tape.unit("MatMul"):
            found[1] = tape.add(MatMul(), tape.add(swap, a), grad)
    return found


@gradient_of(Relu)
def _relu(tape: Tape, node: Node, grad: str) -> Gradients:
    with tape.unit("Relu"):
        return [tape.add(Mul(), grad, tape.add(Unary("sign"), node.outputs[0]))]


@gradient_of(Sigmoid)
def _sigmoid(tape: Tape, node: Node, grad: str) -> Gradients:
    (y,) = node.outputs
    with tape.unit("Sigmoid"):
        rest = tape.add(Add(), tape.add(Unary("neg"), y), tape.filled((1,), 1.0))
        return [tape.add(Mul(), grad, tape.add(Mul(), y, rest))]


@gradient_of(Softmax)
def _softmax(tape: Tape, node: Node, grad: str) -> Gradients:
    op, (y,) = _op(node, Softmax), node.outputs
    if op.flatten:
        raise ModelError(f"op {node.name!r} (softmax over several axes) has no gradient here")
    with tape.unit("Softmax"):
        mean = tape.add(Reduce("sum", (op.axis % len(tape.type(y).shape),)), tape.add(Mul(), grad, y))
        return [tape.add(Mul(), tape.add(Add(), grad, tape.add(Unary("neg"), mean)), y)]


@gradient_of(MaxPool)
def _max_pool(tape: Tape, node: Node, grad: str) -> Gradients:
    op = _op(node, MaxPool)
    return [tape.add(MaxPoolBackward(**op.attributes()), node.inputs[0], grad)]


@gradient_of(AveragePool)
def _average_pool(tape: Tape, node: Node, grad: str) -> Gradients:
    op, size = _op(node, AveragePool), tape.type(node.inputs[0]).shape[2:]
    return [tape.add(AveragePoolBackward(**op.attributes(), input_size=size), grad)]


@gradient_of(GlobalAveragePool)
def _global_average_pool(tape: Tape, node: Node, grad: str) -> Gradients:
    shape = tape.type(node.inputs[0]).shape
    with tape.unit("AveragePool"):
        share = tape.add(Mul(), grad, tape.filled((1,), 1 / math.prod(shape[2:])))
        return [tape.add(Expand(shape), share)]


@gradient_of(BatchNorm)
def _batch_norm(tape: Tape, node: Node, grad: str) -> Gradients:
    """At inference: its mean and variance are numbers, and have none."""
    x, scale, bias, mean, variance = node.inputs
    channels, epsilon = tape.type(scale).shape, _op(node, BatchNorm).epsilon
    zeros, ones = tape.filled(channels, 0.0), tape.filled(channels, 1.0)
    others = tuple(axis for axis in range(len(tape.type(x).shape)) if axis != 1)
    found: list[str | None] = [None, None, None, None, None]
    if tape.needed(x):
        found[0] = tape.add(BatchNorm(epsilon), grad, scale, zeros, zeros, variance)
    if tape.needed(scale):
        with tape.unit("BatchNorm"):
            normal = tape.add(BatchNorm(epsilon), x, ones, zeros, mean, variance)
            found[1] = tape.add(Reduce("sum", others, keepdims=False), tape.add(Mul(), grad, normal))
    if tape.needed(bias):
        found[2] = tape.add(Reduce("sum", others, keepdims=False), grad)
    return found


@gradient_of(Concat)
def _concat(tape: Tape, node: Node, grad: str) -> Gradients:
    axis = _op(node, Concat).axis
    return tape.add_all(Split(axis, tuple(tape.type(each).shape[axis] for each in node.inputs)), grad)


@gradient_of(Add)
def _add(tape: Tape, node: Node, grad: str) -> Gradients:
    return [_summed(tape, grad, each) if tape.needed(each) else None for each in node.inputs]


@gradient_of(Mul)
def _mul(tape: Tape, node: Node, grad: str) -> Gradients:
    return [
        _summed(tape, tape.add(Mul(), grad, other), each) if tape.needed(each) else None
        for each, other in zip(node.inputs, reversed(node.inputs), strict=True)
    ]


@gradient_of(Flatten, Reshape)
def _reshape(tape: Tape, node: Node, grad: str) -> Gradients:
    return [tape.add(Reshape(tape.type(node.inputs[0]).shape), grad)]


@gradient_of(Identity)
def _identity(tape: Tape, node: Node, grad: str) -> Gradients:
    return [grad]


@gradient_of(Transpose)
def _transpose(tape: Tape, node: Node, grad: str) -> Gradients:
    order = _op(node, Transpose).permutation
    return [tape.add(Transpose(tuple(order.index(axis) for axis in range(len(order)))), grad)]
