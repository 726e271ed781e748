"""Access patterns: the boxes of its inputs that an op reads for a box of its output, their order, and the op on slices.

An op kind is known once it has a function here. A box that an op cannot compute alone (half of the axis of a softmax)
has no :class:`Piece`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, repeat
from operator import and_, eq
from typing import NamedTuple

from iossim.execution.plan import Box
from iossim.ir.op import Array, KindTable, Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvTranspose
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul, Where
from iossim.ir.ops.normalization import BatchNorm, LayerNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from iossim.ir.ops.reshape import Flatten, Reshape, Transpose
from iossim.ir.ops.slice import Concat, Slice
from iossim.ir.ops.softmax import Softmax
from iossim.ir.ops.unary import Cast, Clip, Identity, Relu, Sigmoid
from iossim.ir.types import TensorType


class Order(NamedTuple):
    """Order in which an input is visited: its axes from the slowest to the fastest; None for the order in memory.

    ``window``, ``stride`` and ``before`` are the rows of a window, its stride, and the padding above: windows overlap,
    so that rows are read repeatedly.
    """

    axes: tuple[int, ...] | None = None
    window: int = 1
    stride: int = 1
    before: int = 0


AS_IT_LIES = Order()


@dataclass(frozen=True, slots=True)
class Piece:
    """An op that computes a box from the boxes of its inputs; only ``crop`` of its result is needed, by default all.

    ``orders`` are those in which the first inputs are visited; the others are visited as they lie.
    """

    op: Op
    inputs: tuple[Box, ...]
    orders: tuple[Order, ...] = ()
    crop: Box | None = None

    @property
    def reads(self) -> Iterator[tuple[Box, Order]]:
        """Box of each input, and the order in which it is visited."""
        return zip(self.inputs, chain(self.orders, repeat(AS_IT_LIES)), strict=False)

    def evaluate(self, arrays: Sequence[Array]) -> list[Array]:
        """Outputs of the op; only one of known access has a ``crop``."""
        made = list(self.op.evaluate(arrays))
        return made if self.crop is None else [each[self.crop.selection] for each in made]


#: Part of the parameters of a product: its first input channel and their number and, of windows, the same of each axis.
ParameterPart = tuple[tuple[int, int], ...]

#: Piece of an op by it, the box of its output, and the types of its operands; of a product also by a ``part``.
Access = Callable[..., Piece | None]
ACCESS = KindTable[Access]()


def piece(op: Op, inputs: Sequence[TensorType], box: Box, **part: ParameterPart) -> Piece | None:
    """Piece of ``op`` that computes ``box`` of its output; None if there is none, or the access pattern is unknown.
    Of a product with a ``part`` of its parameters, and without its bias, it computes a partial sum.
    """
    access = ACCESS.get(op.kind)
    return None if access is None else access(op, box, *inputs, **part)


def part_sizes(op: Op, weight: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes along which the parameters of a product can be cut: input channels, and the axes of windows."""
    match op:
        case Conv():
            return weight[1:]
        case ConvTranspose():
            return weight[:1]
        case Gemm():
            return weight[1:] if op.trans_b else weight[:1]
    return weight[-2:-1]


def is_known(op: Op) -> bool:
    """True if the op's access pattern is known."""
    return op.kind in ACCESS


@ACCESS.register(Add, Cast, Clip, Identity, Mul, Nary, Relu, Sigmoid, Unary, Where)
def _elementwise(op: Op, box: Box, *inputs: TensorType) -> Piece:
    return Piece(op, tuple(_broadcast(value.shape, box) for value in inputs))


def _broadcast(shape: tuple[int, ...], box: Box) -> Box:
    """Part of an input of that shape that is broadcast over the box."""
    skipped = len(box.shape) - len(shape)
    starts, sizes = zip(shape, box.starts[skipped:], strict=True), zip(shape, box.shape[skipped:], strict=True)
    return Box(
        tuple([0 if size == 1 else start for size, start in starts]),
        tuple([1 if size == 1 else length for size, length in sizes]),
    )


def _windowed(
    box: Box, channels: tuple[int, int], x: TensorType, windows: ParameterPart, op: Conv | MaxPool | AveragePool
) -> tuple[Box, tuple[int, ...]]:
    """Box of some channels (the first, and their number) of an image that windows, or a part of each, read, and the
    padding around it.
    """
    starts, shape, before, after = [box.starts[0], channels[0]], [box.shape[0], channels[1]], [], []
    for axis, (length, (tap, taps)) in enumerate(zip(x.shape[2:], windows, strict=True)):
        stride, dilation = op.strides[axis], op.dilations[axis]
        first = box.starts[2 + axis] * stride - op.pads[axis] + tap * dilation
        last = first + (box.shape[2 + axis] - 1) * stride + (taps - 1) * dilation + 1
        starts.append(max(0, first))
        shape.append(max(0, min(length, last) - max(0, first)))
        before.append(max(0, -first))
        after.append(max(0, last - length))
    return Box(tuple(starts), tuple(shape)), (*before, *after)


def _whole(sizes: Sequence[int]) -> ParameterPart:
    return tuple([(0, size) for size in sizes])


def channels_first(rank: int) -> tuple[int, ...]:
    """Order of axes: all channels of a pixel, then those of the next."""
    return (0, *range(2, rank), 1)


@ACCESS.register(Conv)
def _conv(
    op: Conv, box: Box, x: TensorType, weight: TensorType, *bias: TensorType, part: ParameterPart = ()
) -> Piece | None:
    first, count = box.starts[1], box.shape[1]
    filters, inner = weight.shape[0] // op.groups, weight.shape[1]
    (begin, channels), *taps = part or _whole(weight.shape[1:])
    if first % filters + count <= filters:
        groups, read_channels = 1, (first // filters * inner + begin, channels)
    elif first % filters == count % filters == 0 and channels == inner:
        groups, read_channels = count // filters, (first // filters * inner, count // filters * inner)
    else:
        return None
    read, pads = _windowed(box, read_channels, x, tuple(taps), op)
    if not part and not all(read.shape):
        return None  # only padding
    kernel = Box((first, begin, *(tap for tap, _ in taps)), (count, channels, *(size for _, size in taps)))
    axes = channels_first(len(x.shape)) if inner > 1 else None
    extent = (weight.shape[2] - 1) * op.dilations[0] + 1
    added = () if part else (Box((first,), (count,)),) * len(bias)
    order = Order(axes, extent, op.strides[0], op.pads[0])
    return Piece(replace(op, pads=pads, groups=groups), (read, kernel, *added), (order,))


@ACCESS.register(ConvTranspose)
def _conv_transpose(
    op: ConvTranspose, box: Box, x: TensorType, weight: TensorType, *bias: TensorType, part: ParameterPart = ()
) -> Piece | None:
    if op.groups > 1:
        return None
    first, count = box.starts[1], box.shape[1]
    ((begin_in, channels),) = part or _whole(x.shape[1:2])
    starts, sizes, crop = [], [], []
    for axis, (k, s, d) in enumerate(zip(weight.shape[2:], op.strides, op.dilations, strict=True)):
        extent = (k - 1) * d + 1
        low = box.starts[2 + axis] + op.pads[axis]
        begin = max(0, -(-(low - extent + 1) // s))
        end = min(x.shape[2 + axis], (low + box.shape[2 + axis] - 1) // s + 1)
        if begin >= end or low < begin * s or (end - 1) * s + extent < low + box.shape[2 + axis]:
            return None  # only rows of bias
        starts.append(begin)
        sizes.append(end - begin)
        crop.append(low - begin * s)
    rank = len(starts)
    bare = replace(op, pads=(0,) * 2 * rank, output_padding=(0,) * rank)
    read = Box((box.starts[0], begin_in, *starts), (box.shape[0], channels, *sizes))
    kernel = Box((begin_in, first, *(0,) * rank), (channels, count, *weight.shape[2:]))
    added = () if part else (Box((first,), (count,)),) * len(bias)
    return Piece(bare, (read, kernel, *added), (Order(channels_first(len(x.shape))),), Box((0, 0, *crop), box.shape))


@ACCESS.register(MaxPool, AveragePool)
def _pool(op: MaxPool | AveragePool, box: Box, x: TensorType) -> Piece | None:
    if op.ceil_mode:
        return None
    read, pads = _windowed(box, (box.starts[1], box.shape[1]), x, _whole(op.kernel), op)
    extent = (op.kernel[0] - 1) * op.dilations[0] + 1
    return Piece(replace(op, pads=pads), (read,), (Order(None, extent, op.strides[0], op.pads[0]),))


@ACCESS.register(GlobalAveragePool, GlobalMaxPool)
def _global_pool(op: Op, box: Box, x: TensorType) -> Piece:
    size = x.shape[2:]
    return Piece(op, (Box((*box.starts[:2], *(0,) * len(size)), (*box.shape[:2], *size)),))


@ACCESS.register(Gemm)
def _gemm(op: Gemm, box: Box, a: TensorType, b: TensorType, *c: TensorType, part: ParameterPart = ()) -> Piece:
    (row, column), (rows, columns) = box
    ((begin, inner),) = part or _whole(a.shape[:1] if op.trans_a else a.shape[1:])
    read_a = Box((begin, row), (inner, rows)) if op.trans_a else Box((row, begin), (rows, inner))
    read_b = Box((column, begin), (columns, inner)) if op.trans_b else Box((begin, column), (inner, columns))
    orders = (Order((1, 0)) if op.trans_a else AS_IT_LIES, AS_IT_LIES if op.trans_b else Order((1, 0)))
    added = () if part else (_broadcast(each.shape, box) for each in c)
    return Piece(op, (read_a, read_b, *added), orders)


@ACCESS.register(MatMul)
def _matmul(op: MatMul, box: Box, a: TensorType, b: TensorType, part: ParameterPart = ()) -> Piece | None:
    if len(a.shape) < 2 or len(b.shape) < 2:
        return None
    ((begin, inner),) = part or _whole(a.shape[-1:])
    stack = Box(box.starts[:-2], box.shape[:-2])
    left, right = _broadcast(a.shape[:-2], stack), _broadcast(b.shape[:-2], stack)
    read_a = Box((*left.starts, box.starts[-2], begin), (*left.shape, box.shape[-2], inner))
    read_b = Box((*right.starts, begin, box.starts[-1]), (*right.shape, inner, box.shape[-1]))
    rank = len(b.shape)
    columns = Order((*range(rank - 2), rank - 1, rank - 2))
    return Piece(op, (read_a, read_b), (AS_IT_LIES, columns))


@ACCESS.register(LayerNorm, Softmax)
def _over_axes(op: LayerNorm | Softmax, box: Box, x: TensorType, *parameters: TensorType) -> Piece | None:
    """A piece of an op that sums over axes; None unless the box is whole along these."""
    first = op.axis % len(x.shape)
    last = first + 1 if isinstance(op, Softmax) and not op.flatten else len(x.shape)
    is_whole = box.shape[first:last] == x.shape[first:last]
    return Piece(op, (box, *(Box.whole(value.shape) for value in parameters))) if is_whole else None


@ACCESS.register(BatchNorm)
def _batch_norm(op: BatchNorm, box: Box, x: TensorType, *parameters: TensorType) -> Piece:
    return Piece(op, (box, *[Box(box.starts[1:2], box.shape[1:2])] * len(parameters)))


@ACCESS.register(Concat)
def _concat(op: Concat, box: Box, *terms: TensorType) -> Piece:
    axis = op.axis % len(box.shape)
    boxes, offset = [], 0
    for value in terms:
        low = max(box.starts[axis], offset)
        high = min(box.starts[axis] + box.shape[axis], offset + value.shape[axis])
        size = max(0, high - low)
        boxes.append(box.along(axis, low - offset if size else 0, size))
        offset += value.shape[axis]
    return Piece(op, tuple(boxes))


@ACCESS.register(Transpose)
def _transpose(op: Transpose, box: Box, x: TensorType) -> Piece:
    places = [op.permutation.index(axis) for axis in range(len(x.shape))]
    read = Box(tuple(box.starts[place] for place in places), tuple(box.shape[place] for place in places))
    return Piece(op, (read,), (Order(op.permutation),))


@ACCESS.register(Slice)
def _slice(op: Slice, box: Box, x: TensorType) -> Piece | None:
    starts, shape = list(box.starts), list(box.shape)
    for axis, begin, step in zip(op.axes, op.starts, op.steps, strict=True):
        if step != 1:
            return None
        starts[axis] += slice(begin, None).indices(x.shape[axis])[0]
    return Piece(Identity(), (Box(tuple(starts), tuple(shape)),))


@ACCESS.register(Reshape, Flatten)
def _reshape(op: Reshape | Flatten, box: Box, x: TensorType) -> Piece | None:
    """Axes at the start or end that both shapes share can be split; those between are whole."""
    before, after = x.shape, op.output(x).shape
    head = _leading(before, after)
    tail = _leading(before[head:][::-1], after[head:][::-1])
    between, end = before[head : len(before) - tail], len(after) - tail
    if box.shape[head:end] != after[head:end]:
        return None
    starts = (*box.starts[:head], *(0,) * len(between), *box.starts[end:])
    shape = (*box.shape[:head], *between, *box.shape[end:])
    return Piece(Reshape(box.shape), (Box(starts, shape),))


def _leading(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """Number of axes from the first on that have the same sizes in both."""
    return sum(accumulate(map(eq, before, after), and_))
