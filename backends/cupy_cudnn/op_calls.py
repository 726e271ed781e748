"""Ops that are calls of their own kernels, views, or copies between views: each in a function, found by its kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from iossim.backends.cupy_cudnn import ordering_kernels, window_kernels
from iossim.backends.cupy_cudnn.element_kernels import chain, gather, literal
from iossim.backends.cupy_cudnn.image_kernels import grid_sample, resample
from iossim.backends.cupy_cudnn.reduction_kernels import group_norm, layer_norm, reduction, softmax
from iossim.backends.cupy_cudnn.unit_calls import UnitCalls
from iossim.backends.cupy_cudnn.views import KernelCall, View
from iossim.execution.backend import BackendError
from iossim.ir.graph import Node
from iossim.ir.op import KindTable, Op, normal_axis
from iossim.ir.ops.channels_last import (
    AveragePoolNhwc,
    ChannelsLast,
    GlobalAveragePoolNhwc,
    GlobalMaxPoolNhwc,
    MaxPoolNhwc,
)
from iossim.ir.ops.gather import Gather, GatherElements
from iossim.ir.ops.grid_sample import GridSample
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm, LayerNorm, LocalResponseNorm, RmsNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from iossim.ir.ops.reduce import ArgExtreme, CumSum, Reduce, TopK
from iossim.ir.ops.reshape import DepthToSpace, Expand, Flatten, Pad, Reshape, SpaceToDepth, Tile, Transpose
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.slice import Slice, Split
from iossim.ir.ops.softmax import LogSoftmax, Softmax
from iossim.ir.ops.unary import Identity
from iossim.ir.types import TO_FIRST, DType

#: Functions that make the calls of an op, by its kind; each raises BackendError for ops that it does not cover.
OP_CALLS: KindTable[Callable[[UnitCalls, Node, Any], None]] = KindTable()
#: Reductions by another one: expression of each element, the other reduction, expression of its result.
_BY_OTHERS: Mapping[str, tuple[str, str, str]] = {
    "min": ("-a0", "max", "-a0"),
    "l1": ("fabsf(a0)", "sum", "a0"),
    "l2": ("a0 * a0", "sum", "sqrtf(a0)"),
    "log_sum": ("a0", "sum", "logf(a0)"),
    "sum_square": ("a0 * a0", "sum", "a0"),
}


def _of_kernel(make: Callable[..., KernelCall]) -> Callable[[UnitCalls, Node, Any], None]:
    """The call of an op that is one kernel, of the op, and of each of its operands and outputs, channels first."""

    def called(calls: UnitCalls, node: Node, op: Any) -> None:
        views = [*map(calls.view, node.inputs), *map(calls.target, node.outputs)]
        if isinstance(op, ChannelsLast):
            op, views = op.channels_first, [view.permuted(TO_FIRST) for view in views]
        calls.calls.append(make(op, *views))

    return called


def _global_pool(op: GlobalAveragePool | GlobalMaxPool, x: View, y: View) -> KernelCall:
    return reduction("mean" if isinstance(op, GlobalAveragePool) else "max", x, y, range(2, len(x.shape)))


#: Ops that are one kernel, by what makes it.
_KERNELS: Mapping[Callable[..., KernelCall], tuple[type[Op], ...]] = {
    window_kernels.pool: (MaxPool, AveragePool, MaxPoolNhwc, AveragePoolNhwc),
    _global_pool: (GlobalAveragePool, GlobalMaxPool, GlobalAveragePoolNhwc, GlobalMaxPoolNhwc),
    window_kernels.local_response_norm: (LocalResponseNorm,),
    grid_sample: (GridSample,),
    group_norm: (GroupNorm, InstanceNorm),
    ordering_kernels.arg_extreme: (ArgExtreme,),
    ordering_kernels.top_k: (TopK,),
    ordering_kernels.cumsum: (CumSum,),
    ordering_kernels.pick: (GatherElements,),
}
for _make, _kinds in _KERNELS.items():
    OP_CALLS.register(*_kinds)(_of_kernel(_make))


@OP_CALLS.register(Slice, Split, Transpose)
def _move(calls: UnitCalls, node: Node, op: Slice | Split | Transpose) -> None:
    """The outputs are views of the input."""
    x = calls.read(node)
    match op:
        case Transpose():
            calls.pass_on(node.outputs[0], x.permuted(op.permutation))
        case Split():
            axis = normal_axis(op.axis, len(x.shape))
            for index, value in enumerate(node.outputs):
                calls.pass_on(value, x.part(axis, sum(op.sizes[:index]), op.sizes[index]))
        case Slice():
            for given, start, end, step in zip(op.axes, op.starts, op.ends, op.steps, strict=True):
                axis = normal_axis(given, len(x.shape))
                taken = range(*slice(start, end, step).indices(x.shape[axis]))
                x = x.part(axis, taken.start, len(taken), step)
            calls.pass_on(node.outputs[0], x)


@OP_CALLS.register(Reshape, Flatten, Identity)
def _reshape(calls: UnitCalls, node: Node, op: Op) -> None:
    value, view = node.outputs[0], calls.read(node)
    shape = calls.graph.types[value].shape
    if value not in calls.places:
        calls.values[value] = calls.flat(view, shape)
        return
    target = calls.target(value)
    as_input = target.reshaped(view.shape)
    if as_input != view:
        calls.copy(*((calls.flat(view, shape), target) if as_input is None else (view, as_input)))


@OP_CALLS.register(Softmax)
def _softmax(calls: UnitCalls, node: Node, op: Softmax) -> None:
    x, y = calls.read(node), calls.written(node)
    first = normal_axis(op.axis, len(x.shape))
    shape = (math.prod(x.shape[:first]), math.prod(x.shape[first:])) if op.flatten else x.shape
    x = calls.flat(x, shape)
    with calls.written_as(y, shape) as made:
        calls.calls.append(softmax(x, made, [1 if op.flatten else first]))


@OP_CALLS.register(LayerNorm, RmsNorm)
def _layer_norm(calls: UnitCalls, node: Node, op: LayerNorm | RmsNorm) -> None:
    x, scale = calls.read(node), calls.read(node, 1)
    shift = calls.read(node, 2) if len(node.inputs) > 2 else None
    if shift is None and isinstance(op, LayerNorm):
        shift = calls.weights.zeros(scale.elements, x.dtype)
    first = normal_axis(op.axis, len(x.shape))
    calls.calls.append(layer_norm(x, calls.written(node), scale, shift, first, op.epsilon))


@OP_CALLS.register(Gather)
def _gather(calls: UnitCalls, node: Node, op: Gather) -> None:
    x, given, axis = calls.looked_up(node)
    y, shape = calls.written(node), calls.graph.types[node.inputs[1]].shape
    indices = given if given.is_dense else calls.dense_copy(given)
    flat = (*y.shape[:axis], indices.elements, *y.shape[axis + len(shape) :])
    with calls.written_as(y, flat) as made:
        calls.calls.append(gather(x, made, indices, axis))


@OP_CALLS.register(Expand)
def _expand(calls: UnitCalls, node: Node, op: Expand) -> None:
    calls.pass_on(node.outputs[0], calls.read(node).broadcast(calls.graph.types[node.outputs[0]].shape))


@OP_CALLS.register(Tile)
def _tile(calls: UnitCalls, node: Node, op: Tile) -> None:
    x, y = calls.read(node), calls.written(node)
    for axis in reversed(range(len(x.shape))):
        repeated = op.repeats[axis], x.shape[axis]
        y, shape = y.split(axis, repeated), (*x.shape[:axis], *repeated, *x.shape[axis + 1 :])
        x = replace(x, shape=shape, strides=(*x.strides[:axis], 0, *x.strides[axis:]))
    calls.copy(x, y)


@OP_CALLS.register(DepthToSpace, SpaceToDepth)
def _blocks(calls: UnitCalls, node: Node, op: DepthToSpace | SpaceToDepth) -> None:
    ends = [calls.read(node), calls.written(node)]
    deep, wide = ends if isinstance(op, DepthToSpace) else reversed(ends)
    b, channels = op.block, wide.shape[1]
    split = deep.split(1, (channels, b, b) if op.columns_first else (b, b, channels))
    parts = split.permuted((0, 1, 4, 2, 5, 3) if op.columns_first else (0, 3, 4, 1, 5, 2))
    whole = wide.split(3, (deep.shape[3], b)).split(2, (deep.shape[2], b))
    calls.copy(*((parts, whole) if deep is ends[0] else (whole, parts)))


@OP_CALLS.register(Pad)
def _pad(calls: UnitCalls, node: Node, op: Pad) -> None:
    """Between edges of one number a copy; repeated and mirrored edges by tables."""
    x, y = calls.read(node), calls.written(node)
    rank = len(x.shape)
    sides = list(zip(op.pads[:rank], op.pads[rank:], strict=True))
    for axis, (before, after) in enumerate(sides):
        x = x.part(axis, max(0, -before), x.shape[axis] + min(0, before) + min(0, after))
    grown = {axis: (max(0, before), max(0, after)) for axis, (before, after) in enumerate(sides)}
    if op.mode != "constant":
        if not x.dtype.is_floating:
            raise BackendError(f"no kernel pads {x.dtype} by mode {op.mode}")
        units = {axis: np.eye(x.shape[axis]) for axis, added in grown.items() if any(added)}
        alone = {axis: Pad((grown[axis][0], 0, grown[axis][1], 0), op.mode) for axis in units}
        tables = {axis: alone[axis].evaluate((unit,))[0] for axis, unit in units.items()}
        calls.calls.append(resample(x, y, tables, calls.weights))
        return
    inner = y
    for axis, (before, _) in grown.items():
        inner = inner.part(axis, before, x.shape[axis])
    if inner.shape != y.shape:
        calls.calls.append(chain(literal(op.value), [], y))
    calls.copy(x, inner)


@OP_CALLS.register(Resize)
def _resize(calls: UnitCalls, node: Node, op: Resize) -> None:
    x, y = calls.read(node), calls.written(node)
    calls.calls.append(resample(x, y, op.tables(x.shape, y.shape), calls.weights))


@OP_CALLS.register(Reduce)
def _reduce(calls: UnitCalls, node: Node, op: Reduce) -> None:
    x, y = calls.read(node), calls.written(node)
    axes = sorted(normal_axis(axis, len(x.shape)) for axis in op.axes)
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    y = y.with_ones(kept)
    if op.function == "log_sum_exp":
        most, total = _softened(calls, x, axes)
        calls.calls.append(chain("logf(a0) + a1", [total, most], y))
    elif op.function in _BY_OTHERS:
        before, function, after = _BY_OTHERS[op.function]
        total = _made(calls, kept, "", [])
        _reduced(calls, function, x if before == "a0" else _made(calls, x.shape, before, [x]), total, axes)
        calls.calls.append(chain(after, [total], y))
    else:
        _reduced(calls, op.function, x, y, axes)


@OP_CALLS.register(LogSoftmax)
def _log_softmax(calls: UnitCalls, node: Node, op: LogSoftmax) -> None:
    x, y = calls.read(node), calls.written(node)
    first = normal_axis(op.axis, len(x.shape))
    most, total = _softened(calls, x, list(range(first, len(x.shape))) if op.flatten else [first])
    calls.calls.append(chain("a0 - a1 - logf(a2)", [x, most, total], y))


def _softened(calls: UnitCalls, x: View, axes: list[int]) -> tuple[View, View]:
    """The largest elements over axes, and the sums of the exponentials of what is below those."""
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    most, total = (_made(calls, kept, "", []) for _ in range(2))
    _reduced(calls, "max", x, most, axes)
    _reduced(calls, "sum", _made(calls, x.shape, "expf(a0 - a1)", [x, most]), total, axes)
    return most, total


def _made(calls: UnitCalls, shape: tuple[int, ...], expression: str, operands: list[View]) -> View:
    """Scratch in fp32, with an expression in it."""
    made = calls.scratch(shape, DType.FLOAT32)
    if expression:
        calls.calls.append(chain(expression, operands, made))
    return made


def _reduced(calls: UnitCalls, function: str, x: View, y: View, axes: list[int]) -> None:
    """A reduction; elements that do not lie in evenly spaced rows are copied so first."""
    order = [*(axis for axis in range(len(x.shape)) if axis not in axes), *axes]
    try:
        made = reduction(function, x, y, axes)
    except BackendError:
        rows = list(range(len(order) - len(axes), len(order)))
        made = reduction(function, calls.dense_copy(x.permuted(order)), y.permuted(order), rows)
    calls.calls.append(made)
