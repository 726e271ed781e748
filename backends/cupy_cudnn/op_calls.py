"""Ops that are calls of their own kernels, views, or copies between views: each in a function, found by its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from iossim.backends.cupy_cudnn import image_kernels, ordering_kernels
from iossim.backends.cupy_cudnn.element_kernels import COPY, as_it_is, chain, literal, looked_up
from iossim.backends.cupy_cudnn.image_kernels import resample
from iossim.backends.cupy_cudnn.product_kernels import grouped_product
from iossim.backends.cupy_cudnn.reduction_kernels import group_norm, norm, reduction, softmax
from iossim.backends.cupy_cudnn.unit_chains import UnitChains
from iossim.backends.cupy_cudnn.views import KernelCall, View
from iossim.execution.backend import BackendError
from iossim.ir.graph import Node
from iossim.ir.op import KindTable, Op, normal_axis
from iossim.ir.ops.channels_last import ChannelsLast
from iossim.ir.ops.gather import Gather
from iossim.ir.ops.grouped_matmul import GroupedMatMul
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm, LayerNorm, RmsNorm
from iossim.ir.ops.pool import GlobalAveragePool, GlobalMaxPool
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import DepthToSpace, Expand, Flatten, Pad, Reshape, SpaceToDepth, Tile, Transpose
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.slice import Slice, Split
from iossim.ir.ops.softmax import LogSoftmax, Softmax
from iossim.ir.ops.unary import Identity
from iossim.ir.types import TO_FIRST

#: Makes the calls of an op, of its node; raises BackendError for one that it does not cover.
OpCalls = Callable[[UnitChains, Node, Any], None]
OP_CALLS = KindTable[OpCalls]()


def _of_kernel(make: Callable[..., KernelCall]) -> OpCalls:
    """The call of an op that is one kernel, of the op, and of each of its operands and outputs, channels first."""

    def called(calls: UnitChains, node: Node, op: Op) -> None:
        views = [*map(calls.view, node.inputs), *map(calls.target, node.outputs)]
        if isinstance(op, ChannelsLast):
            op, views = op.channels_first, [view.permuted(TO_FIRST) for view in views]
        calls.calls.append(make(op, *views))

    return called


def _global_pool(op: GlobalAveragePool | GlobalMaxPool, x: View, y: View) -> KernelCall:
    function = "mean" if isinstance(op, GlobalAveragePool) else "max"
    return reduction(function, as_it_is(x), y, range(2, len(x.shape)))


#: Kinds of ops that are one kernel, by what makes it.
_KERNELS: Mapping[Callable[..., KernelCall], str] = {
    image_kernels.pool: "max_pool average_pool max_pool_nhwc average_pool_nhwc",
    _global_pool: "global_average_pool global_max_pool global_average_pool_nhwc global_max_pool_nhwc",
    image_kernels.local_response_norm: "local_response_norm",
    image_kernels.grid_sample: "grid_sample",
    ordering_kernels.arg_extreme: "arg_extreme",
    ordering_kernels.top_k: "top_k",
    ordering_kernels.cumsum: "cumsum",
    ordering_kernels.pick_elements: "gather_elements",
    ordering_kernels.pick: "gather_nd",
}
for _make, _kinds in _KERNELS.items():
    OP_CALLS.register(*_kinds.split())(_of_kernel(_make))


@OP_CALLS.register(Slice, Split, Transpose)
def _move(calls: UnitChains, node: Node, op: Slice | Split | Transpose) -> None:
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
def _reshape(calls: UnitChains, node: Node, op: Op) -> None:
    value, view = node.outputs[0], calls.read(node)
    shape = calls.graph.types[value].shape
    if value not in calls.places:
        calls.values[value] = calls.flat(view, shape)
        return
    target = calls.target(value)
    as_input = target.reshaped(view.shape)
    if as_input != view:
        calls.copy(*((calls.flat(view, shape), target) if as_input is None else (view, as_input)))


@OP_CALLS.register(Softmax, LogSoftmax)
def _softmax(calls: UnitChains, node: Node, op: Softmax | LogSoftmax) -> None:
    x, y = calls.before(node), calls.written(node)
    first = normal_axis(op.axis, len(y.shape))
    axes = range(first, len(y.shape) if op.flatten else first + 1)
    calls.calls.append(softmax(x, y, axes, isinstance(op, LogSoftmax)))


@OP_CALLS.register(LayerNorm, RmsNorm, GroupNorm, InstanceNorm)
def _norm(calls: UnitChains, node: Node, op: LayerNorm | RmsNorm | GroupNorm | InstanceNorm) -> None:
    """With what is computed before it and after it, its scale and shift first: each has a value a channel, or a place
    of a row.
    """
    x, parameters = calls.before(node), [calls.view(name) for name in node.inputs[1:]]
    rank = len(calls.graph.types[node.inputs[0]].shape)
    if isinstance(op, GroupNorm | InstanceNorm):
        parameters = [view.along(1, rank) for view in parameters]
    (after, _), value = calls.after(node, parameters, "a0 * a1 + a2" if len(parameters) > 1 else "a0 * a1")
    y = calls.target(value)
    if isinstance(op, LayerNorm | RmsNorm):
        axes = range(normal_axis(op.axis, rank), rank)
        made = norm(x, y, after, axes, op.epsilon, isinstance(op, LayerNorm))
    else:
        made = group_norm(x, y, after, op.groups if isinstance(op, GroupNorm) else y.shape[1], op.epsilon)
    calls.calls.append(made)


@OP_CALLS.register(GroupedMatMul)
def _grouped_product(calls: UnitChains, node: Node, op: GroupedMatMul) -> None:
    x, weight, ends = map(calls.view, node.inputs)
    epilogue, value = calls.after(node)
    calls.calls.append(grouped_product(x, weight, ends, calls.target(value), epilogue.computed))


@OP_CALLS.register(Gather)
def _gather(calls: UnitChains, node: Node, op: Gather) -> None:
    """A lookup at flat indices; the output's view has one axis for all of them."""
    x, given, axis = calls.looked_up(node)
    y, shape = calls.written(node), calls.graph.types[node.inputs[1]].shape
    indices = given if given.is_dense else calls.dense_copy(given)
    flat = (*y.shape[:axis], indices.elements, *y.shape[axis + len(shape) :])
    first, lookup = looked_up(x, indices, axis)
    with calls.written_as(y, flat) as made:
        calls.calls.append(chain(COPY, [first], made, lookup))


@OP_CALLS.register(Expand)
def _expand(calls: UnitChains, node: Node, op: Expand) -> None:
    calls.pass_on(node.outputs[0], calls.read(node).broadcast(calls.graph.types[node.outputs[0]].shape))


@OP_CALLS.register(Tile)
def _tile(calls: UnitChains, node: Node, op: Tile) -> None:
    x, y = calls.read(node), calls.written(node)
    for axis in reversed(range(len(x.shape))):
        repeated = op.repeats[axis], x.shape[axis]
        y, shape = y.split(axis, repeated), (*x.shape[:axis], *repeated, *x.shape[axis + 1 :])
        x = replace(x, shape=shape, strides=(*x.strides[:axis], 0, *x.strides[axis:]))
    calls.copy(x, y)


@OP_CALLS.register(DepthToSpace, SpaceToDepth)
def _blocks(calls: UnitChains, node: Node, op: DepthToSpace | SpaceToDepth) -> None:
    x = calls.read(node)
    parts, order = op.parts(x.shape)
    calls.copy(x.with_ones(parts).permuted(order), calls.written(node).with_ones([parts[axis] for axis in order]))


@OP_CALLS.register(Pad)
def _pad(calls: UnitChains, node: Node, op: Pad) -> None:
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
def _resize(calls: UnitChains, node: Node, op: Resize) -> None:
    x, y = calls.read(node), calls.written(node)
    calls.calls.append(resample(x, y, op.tables(x.shape, y.shape), calls.weights))


@OP_CALLS.register(Reduce)
def _reduce(calls: UnitChains, node: Node, op: Reduce) -> None:
    x, y, shape = calls.before(node), calls.written(node), calls.graph.types[node.inputs[0]].shape
    axes = sorted(normal_axis(axis, len(shape)) for axis in op.axes)
    kept = [1 if axis in axes else size for axis, size in enumerate(shape)]
    calls.calls.append(reduction(op.function, x, y.with_ones(kept), axes))
