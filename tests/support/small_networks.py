"""A small network for each op, and for each way in which ops meet in a unit or lie in memory."""

from collections.abc import Callable
from functools import partial

import numpy as np
from graph_builders import builder_with

from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array, Op
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.channels_last import AveragePoolNhwc, ConvNhwc, GlobalAveragePoolNhwc, GlobalMaxPoolNhwc, MaxPoolNhwc
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvTranspose
from iossim.ir.ops.functions import UNARY, Nary, Unary
from iossim.ir.ops.gather import Gather, GatherElements, GatherND
from iossim.ir.ops.grid_sample import GridSample
from iossim.ir.ops.grouped_matmul import GroupedMatMul
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add, Mul, PRelu, Where
from iossim.ir.ops.normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, LocalResponseNorm, RmsNorm
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from iossim.ir.ops.reduce import ArgExtreme, CumSum, Reduce, TopK
from iossim.ir.ops.reshape import DepthToSpace, Expand, Flatten, Pad, Reshape, SpaceToDepth, Tile, Transpose
from iossim.ir.ops.resize import Resize
from iossim.ir.ops.slice import Concat, Slice, Split
from iossim.ir.ops.softmax import LogSoftmax, Softmax
from iossim.ir.ops.unary import Cast, Clip, Identity, Relu, Sigmoid
from iossim.ir.types import Precision

Shape = tuple[int, ...]
IMAGE: Shape = (2, 6, 9, 7)


def of_op(op: Op, *shapes: Shape, weights: tuple[Shape, ...] = ()) -> Network:
    """One op of inputs of these shapes, then of weights."""
    b = GraphBuilder(op.kind)
    operands = [b.input(f"x{index}", shape) for index, shape in enumerate(shapes)]
    operands += [b.constant(f"w{index}", shape) for index, shape in enumerate(weights)]
    return b.network(b.add_all(op, *operands, name="op"))


def _add_to_itself() -> Network:
    b, x = builder_with("twice", x=IMAGE)
    return b.network([b.add(Add(), x, x)])


def _batch_norm() -> Network:
    return of_op(BatchNorm(0.9), IMAGE, weights=((6,), (6,), (6,), (6,)))


def _after_convolution(op: Op, bias: bool) -> Network:
    b, x = builder_with("epilogue", x=IMAGE)
    with b.unit("u", "Conv"):
        weights = [b.constant("w", (5, 6, 3, 3)), *([b.constant("b", (5,))] if bias else [])]
        y = b.add(op, b.add(Conv((1, 1), (1, 1, 1, 1)), x, *weights))
    return b.network([y])


def diamond(channels: int, size: int, *widths: int) -> Network:
    """a, then b (1x1) and c (3x3) of a, then their concat d; a, b and c are of these widths."""
    b, x = builder_with("diamond", x=(1, channels, size, size))
    with b.block("only"):
        a = b.conv(x, widths[0], name="a")
        left = b.conv(a, widths[1], name="b")
        right = b.conv(a, widths[2], kernel=3, padding=1, name="c")
        b.add(Concat(), left, right, name="d")
    return b.network(["d"])


def _residual() -> Network:
    """A sum with what is there already, before the activation; one with what broadcasts is none."""
    b, x, z = builder_with("residual", x=IMAGE, z=IMAGE)
    with b.unit("u", "Conv-Add-Relu"):
        y = b.add(Conv((1, 1), (1, 1, 1, 1)), x, b.constant("w", (6, 6, 3, 3)), b.constant("b", (6,)))
        y = b.add(Relu(), b.add(Add(), z, y))
    with b.unit("v", "Conv-Bias-Add"):
        v = b.add(Add(), b.add(Conv(), y, b.constant("v", (6, 6, 1, 1))), b.constant("c", (1, 6, 1, 1)))
        v = b.add(Add(), v, y)
    with b.unit("t", "Conv-Add"):
        t = b.add(Add(), b.add(Conv(), v, b.constant("t", (6, 6, 1, 1))), b.input("s", (2, 6, 1, 1)))
    return b.network([t])


def _product_with_residual() -> Network:
    b, x, z = builder_with("products", x=(2, 3, 8), z=(2, 3, 8))
    with b.unit("u", "Matmul-Bias-Add-Relu"):
        y = b.add(Add(), b.add(MatMul(), x, b.constant("w", (8, 8))), b.constant("b", (8,)))
        y = b.add(Relu(), b.add(Add(), y, z))
    return b.network([y])


def branches(precision: Precision = Precision.FP32) -> Network:
    """Three convolutions that may run side by side, and their concatenation."""
    b, x, y = builder_with("fire", precision, x=(1, 16, 44, 44), y=(1, 64, 44, 44))
    with b.block("fire"):
        ends = []
        for name, value, filters, kernel in (("wide", x, 128, 3), ("narrow", x, 128, 1), ("bypass", y, 256, 1)):
            with b.unit(name, "Conv-Relu"):
                ends.append(b.add(Relu(), b.conv(value, filters, kernel=kernel, padding=kernel // 2, name=name)))
        joined = b.add(Concat(1), *ends)
    return b.network([joined])


def _unary(name: str) -> Network:
    return of_op(Unary(name, tuple(value for _, value in UNARY[name].parameters)), IMAGE)


def _product_with_gelu() -> Network:
    b, x = builder_with("mlp", x=(2, 3, 8))
    with b.unit("u", "Matmul-Bias-Gelu"):
        y = b.add(Add(), b.add(MatMul(), x, b.constant("w", (8, 16))), b.constant("b", (16,)))
        y = b.add(Unary("gelu"), y)
    return b.network([y])


def _attention() -> Network:
    """Of two heads, as exporters write it, with a layer normalisation behind the residual."""
    b, x = builder_with("attention", x=(2, 5, 16))
    made = [b.add(MatMul(), x, b.constant(f"w{name}", (16, 16)), name=name) for name in "qkv"]
    split = [b.add(Reshape((2, 5, 2, 8)), value) for value in made]
    q, v = (b.add(Transpose((0, 2, 1, 3)), split[index]) for index in (0, 2))
    k = b.add(Transpose((0, 2, 3, 1)), split[1])
    p = b.add(Softmax(-1), b.add(Mul(), b.add(MatMul(), q, k), b.constant("scale", (1,))))
    y = b.add(Reshape((2, 5, 16)), b.add(Transpose((0, 2, 1, 3)), b.add(MatMul(), p, v)))
    with b.unit("out", "Matmul-Bias-Add"):
        y = b.add(Add(), b.add(Add(), b.add(MatMul(), y, b.constant("o", (16, 16))), b.constant("c", (16,))), x)
    return b.network([b.add(LayerNorm(), y, b.constant("g", (16,)), b.constant("h", (16,)))])


def attention_op(op: Attention, *shapes: Shape, mask: Array | None = None, head: int = 0) -> Network:
    """The op of inputs of these shapes, and a constant mask; ``head`` features of each begin a wider tensor."""
    b = GraphBuilder("attention_op")
    values = [b.input(f"x{index}", shape) for index, shape in enumerate(shapes)]
    with b.unit("u", "Attention"):
        if head:
            values = [b.add(Slice((0,), (head,), (2,), (1,)), value) for value in values]
        y = b.add(op, *values, *([b.numbers("mask", mask)] if mask is not None else []))
    return b.network([y])


def _picked(axis: int, indices: Array, shape: Shape) -> Network:
    b = GraphBuilder("picked")
    return b.network([b.add(Gather(axis), b.input("x", shape), b.numbers("indices", indices))])


def _truth() -> Network:
    """Comparisons, what is made of them, and a choice; a value of truth is an output."""
    b, x, z = builder_with("truth", x=IMAGE, z=(6, 1, 1))
    with b.unit("u", "Where"):
        small, odd = b.add(Nary("less"), x, z), b.add(Unary("not"), b.add(Nary("greater_or_equal"), x, z))
        both = b.add(Nary("xor"), small, b.add(Nary("and"), odd, b.add(Nary("equal"), x, x)))
        y = b.add(Where(), both, x, b.add(Relu(), z))
    return b.network([small, y])


def _whole_numbers() -> Network:
    """Numbers that no float holds, in 64 bits; and a cast that cuts inside a chain."""
    b, x = builder_with("whole", x=(2, 3))
    with b.unit("u", "Cast-Add"):
        ten, large = b.numbers("ten", np.array([10], np.float32)), b.numbers("large", np.array([2**53 + 1]))
        cut = b.add(Cast("fp32"), b.add(Cast("int32"), b.add(Mul(), x, ten)))
        whole = b.add(Add(), b.add(Cast("int64"), cut), large)
    return b.network([cut, b.add(Concat(1), whole, whole)])


def _embedded() -> Network:
    """Rows of a table by numbers that are computed."""
    b = GraphBuilder("embedded")
    tokens = b.add(ArgExtreme(1, keepdims=False), b.input("x", (2, 9, 5)))
    return b.network([b.add(Gather(0), b.constant("table", (9, 4)), tokens)])


def _picked_by_place() -> Network:
    b, scores, x = builder_with("places", scores=(2, 7, 1), x=(2, 7, 3))
    _, places = b.add_all(TopK(4, 1), scores)
    return b.network([b.add(GatherElements(1), x, b.add(Expand((2, 4, 3)), places))])


def _picked_in_turn(together: int, indices: Array) -> Network:
    b, x = builder_with("picked", x=(2, 3, 5, 4))
    return b.network([b.add(GatherND(together), b.add(Transpose((0, 2, 1, 3)), x), b.numbers("indices", indices))])


def _turned() -> Network:
    """A gather of neighbours inside a unit, and of a value that lies with gaps; a reduction of what was gathered."""
    b, x = builder_with("turned", x=(2, 3, 8))
    with b.unit("u", "Gather"):
        part = b.add(Slice((1,), (7,), (2,), (1,)), x)
        y = b.add(Gather(2), part, b.numbers("pairs", np.arange(6) ^ 1))
        y = b.add(Gather(1), b.add(Mul(), y, part), b.numbers("rows", np.array([[2, 0], [-1, 1]])))
        y = b.add(Reduce("sum", (2,), False), y)
    return b.network([y])


def _fully_connected_relu() -> Network:
    b, x = builder_with("classifier", x=(4, 12))
    with b.unit("u", "Gemm-Relu"):
        y = b.add(Relu(), b.add(Gemm(trans_b=True), x, b.constant("w", (8, 12)), b.constant("b", (8,))))
    return b.network([y])


def _separable() -> Network:
    b, x, z = builder_with("separable", x=IMAGE, z=IMAGE)
    with b.unit("u", "Relu-SepConv"):
        y = b.add(Relu(), b.add(Add(), x, z, b.add(Add(), x, x)))
        y = b.conv(b.conv(y, 6, 3, padding=1, groups=6), 8)
    return b.network([y])


def _concat_of_sums() -> Network:
    b, x, z = builder_with("concat", x=IMAGE, z=IMAGE)
    with b.unit("u", "Concat"):
        y = b.add(Concat(), b.add(Add(), x, z), z, b.add(Relu(), b.add(Add(), x, z, z)))
    return b.network([y])


def _chain_with_two_ends() -> Network:
    """A value inside a chain that is read outside too must be written."""
    b, x = builder_with("ends", x=IMAGE)
    with b.unit("u", "Chain"):
        inner = b.add(Sigmoid(), x)
        y = b.add(Mul(), inner, b.add(Relu(), x))
    return b.network([inner, y])


def _head() -> Network:
    b, x = builder_with("head", x=IMAGE)
    with b.unit("u", "Head"):
        y = b.add(Flatten(), b.add(GlobalAveragePool(), x))
        y = b.add(Gemm(), y, b.constant("w", (6, 5)), b.constant("b", (5,)))
        y = b.add(Softmax(), b.add(Identity(), y))
    return b.network([y])


def _odd_channels() -> Network:
    """With 3x3 images, channel 1 begins 36 bytes behind an aligned address."""
    b, x = builder_with("odd", x=(2, 3, 3, 3))
    parts = [b.conv(x, channels, name=f"c{channels}") for channels in (1, 2, 3)]
    joined = b.add(Concat(), *parts, name="joined")
    cut = b.add_all(Split(1, (1, 2, 3)), joined, name="cut")
    with b.unit("u", "Conv"):
        y = b.add(Relu(), b.conv(cut[1], 4, name="last"))
    return b.network([y, b.conv(cut[2], 4, name="other")])


def _pooled_slices() -> Network:
    b = GraphBuilder("slices")
    x = b.conv(b.input("x", IMAGE), 8, name="before")
    parts = b.add_all(Split(1, (3, 5)), x, name="parts")
    pooled = b.add(AveragePool((2, 2), (1, 1), (0, 1, 1, 0)), parts[1], name="pooled")
    means = [b.add(op, part) for op in (GlobalAveragePool(), GlobalMaxPool(), Softmax(1)) for part in parts]
    normal = b.add(LocalResponseNorm(3), parts[0])
    return b.network([pooled, normal, *means, b.add(Flatten(), parts[1]), b.add(Reshape((6, -1)), parts[0])])


def _parts_of_rows() -> Network:
    """One product split by columns, as queries, keys and values are, and parts of rows written side by side."""
    b = GraphBuilder("rows")
    x = b.add(MatMul(), b.input("x", (2, 5, 16)), b.constant("w", (16, 48)), name="projections")
    q, k, v = b.add_all(Split(2, (16, 16, 16)), x, name="split")
    mixed = b.add(MatMul(), b.add(MatMul(), q, b.add(Transpose((0, 2, 1)), k), name="scores"), v, name="mixed")
    one, other = b.add(Relu(), k, name="relu"), b.add(MatMul(), v, b.constant("u", (16, 8)), name="product")
    normal = b.add(LayerNorm(), q, b.constant("g", (16,)), b.constant("h", (16,)), name="normal")
    joined = b.add(Concat(2), one, b.add(Softmax(-1), v, name="softmax"), other, normal, mixed, name="joined")
    return b.network([joined, b.add(Add(), q, b.add(Slice((16,), (32,), (2,), (1,)), x, name="slice"))])


def _grouped_product(rows: int, *ends: int) -> Network:
    """Rows by the weights of their experts, each weighed after that."""
    b, x, shares = builder_with("grouped", x=(rows, 70), shares=(rows, 1))
    with b.unit("u", "Grouped-Matmul-Mul"):
        operands = b.constant("w", (len(ends), 70, 72)), b.numbers("ends", np.array(ends))
        y = b.add(Mul(), b.add(GroupedMatMul(), x, *operands), shares)
    return b.network([y])


def _routed() -> Network:
    """Five tokens, each to the two of three experts that their first numbers choose, and back in their order."""
    b, x = builder_with("routed", x=(5, 8))
    _, chosen = b.add_all(TopK(2), b.add(Slice((0,), (3,), (1,), (1,)), x), name="choice")
    expert, order = b.add_all(TopK(10, 0, False), b.add(Reshape((10,)), chosen), name="order")
    is_below = b.add(Nary("less_or_equal"), expert, b.numbers("experts", np.arange(3)[:, None]))
    ends = b.add(Cast("int32"), b.add(Reduce("sum", (1,), False), b.add(Cast("fp32"), is_below)))
    sent = b.add(Gather(), x, b.add(Nary("div"), order, b.numbers("each", np.array(2))))
    made = b.add(GroupedMatMul(), sent, b.constant("w", (3, 8, 8)), ends)
    _, place = b.add_all(TopK(10, 0, False), order, name="place")
    return b.network([b.add(Gather(), made, place)])


#: Four queries, the last of six tokens that have keys: each sees those before it.
_SEEN = np.tri(4, 6, 2, dtype=np.bool_)
OPS: dict[str, Callable[[], Network]] = {
    "attention op": lambda: attention_op(Attention(), (2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 16)),
    "attention op, heads side by side": lambda: attention_op(Attention(2, 2), (2, 5, 16), (2, 5, 16), (2, 5, 16)),
    "attention op, causal": lambda: attention_op(Attention(2, 2, is_causal=True), *[(2, 5, 16)] * 3),
    "attention op, shared keys": lambda: attention_op(Attention(6, 2), (2, 4, 48), (2, 5, 16), (2, 5, 16)),
    "attention op, shared keys, one query": lambda: attention_op(Attention(6, 2), (2, 1, 48), *[(2, 5, 16)] * 2),
    "attention op, shared keys of a past": lambda: attention_op(
        Attention(4, 2), (1, 4, 32), (1, 6, 16), (1, 6, 16), mask=_SEEN
    ),
    "attention op, soft cap and scale": lambda: attention_op(
        Attention(2, 2, scale=0.7, softcap=1.5, is_causal=True), *[(2, 5, 16)] * 3
    ),
    "attention op, a mask that is added": lambda: attention_op(Attention(2, 2), *[(2, 5, 16)] * 3, (2, 1, 5, 5)),
    "attention op, rows that are not aligned": lambda: attention_op(Attention(3, 3), *[(1, 5, 12)] * 3),
    "attention op, of parts": lambda: attention_op(Attention(2, 2), (1, 3, 20), (1, 5, 20), (1, 5, 24), head=16),
    "rms norm": lambda: of_op(RmsNorm(), (2, 3, 11), weights=((11,),)),
    "rms norm of rows of two axes": lambda: of_op(RmsNorm(1, 0.1), (2, 3, 11), weights=((3, 11),)),
    "gather of images": lambda: _picked(0, np.array([1, 0, -1]), (2, 3, 5)),
    "gather by a table of indices": lambda: _picked(1, np.array([[2, 0], [-1, 1]]), (2, 3, 5)),
    "gather of features": lambda: _picked(-1, np.arange(6) ^ 1, (2, 3, 6)),
    "gather of one": lambda: _picked(1, np.array(2), (2, 3, 5)),
    "gather of rows": lambda: _picked_in_turn(0, np.array([[1, -1], [0, 3], [-2, 0]])),
    "gather of one number": lambda: _picked_in_turn(0, np.array([1, 4, -1, 2])),
    "gather of rows of each image": lambda: _picked_in_turn(1, np.array([[[4, 2]], [[-5, 0]]])),
    "sum over an axis": lambda: of_op(Reduce("sum", (2,), False), (2, 3, 5, 4)),
    "mean over axes": lambda: of_op(Reduce("mean", (-1, 1)), (2, 3, 1, 4)),
    "largest of all": lambda: of_op(Reduce("max", (0, 1, 2)), (2, 3, 4)),
    "add of three": lambda: of_op(Add(), IMAGE, IMAGE, IMAGE),
    "add to itself": _add_to_itself,
    "add, broadcast": lambda: of_op(Add(), IMAGE, (6, 1, 1), (1, 1, 9, 7)),
    "add of a weight": lambda: of_op(Add(), IMAGE, weights=((1, 6, 1, 1),)),
    "mul, per channel": lambda: of_op(Mul(), IMAGE, (2, 6, 1, 1)),
    "clip": lambda: of_op(Clip(-0.5, 0.6), IMAGE),
    "clip from above": lambda: of_op(Clip(None, 0.25), IMAGE),
    "sigmoid": lambda: of_op(Sigmoid(), IMAGE),
    "relu of a vector": lambda: of_op(Relu(), (11,)),
    "identity": lambda: of_op(Identity(), IMAGE),
    "flatten": lambda: of_op(Flatten(2), IMAGE),
    "reshape": lambda: of_op(Reshape((3, -1)), IMAGE),
    "batch norm": _batch_norm,
    "concat of channels": lambda: of_op(Concat(), IMAGE, (2, 1, 9, 7), IMAGE),
    "concat of rows": lambda: of_op(Concat(2), IMAGE, (2, 6, 2, 7)),
    "parts of rows": _parts_of_rows,
    "split of columns": lambda: of_op(Split(3, (1, 4, 2)), IMAGE),
    "slice backwards": lambda: of_op(Slice((8, 1), (-100, 5), (2, 1), (-2, 3)), IMAGE),
    "transpose": lambda: of_op(Transpose((0, 2, 3, 1)), IMAGE),
    "softmax of a matrix": lambda: of_op(Softmax(1), (3, 300)),
    "softmax of channels": lambda: of_op(Softmax(1), IMAGE),
    "softmax of columns": lambda: of_op(Softmax(-1), IMAGE),
    "softmax, flattened": lambda: of_op(Softmax(1, flatten=True), IMAGE),
    "lrn, even": lambda: of_op(LocalResponseNorm(4, 0.5, 0.75, 2.0), IMAGE),
    "lrn, odd": lambda: of_op(LocalResponseNorm(3, 0.5, 0.5, 1.0), IMAGE),
    "global average pool": lambda: of_op(GlobalAveragePool(), IMAGE),
    "global max pool": lambda: of_op(GlobalMaxPool(), (1, 3, 20, 20)),
    "global average pool of rows": lambda: of_op(GlobalAveragePool(), (2, 3, 20)),
    "max pool": lambda: of_op(MaxPool((3, 2), (2, 1), (1, 0, 1, 1)), IMAGE),
    "max pool, dilated": lambda: of_op(MaxPool((2, 2), (1, 1), (0, 1, 1, 0), (2, 3)), IMAGE),
    "max pool, hanging over": lambda: of_op(MaxPool((3, 3), (2, 2), (0, 0, 0, 0), ceil_mode=True), (1, 2, 8, 6)),
    "average pool": lambda: of_op(AveragePool((3, 3), (1, 1), (1, 1, 1, 1)), IMAGE),
    "average pool with padding": lambda: of_op(AveragePool((3, 3), (2, 2), (1, 1, 1, 1), True, True), (1, 2, 8, 6)),
    "average pool of rows": lambda: of_op(AveragePool((3,), (2,), (1, 0), dilations=(1,)), (2, 3, 9)),
    "conv": lambda: of_op(Conv((1, 1), (1, 0, 2, 1)), IMAGE, weights=((5, 6, 3, 3),)),
    "conv, strided and dilated": lambda: of_op(Conv((2, 1), (1, 1, 0, 2), (1, 2)), IMAGE, weights=((4, 6, 3, 3), (4,))),
    "conv, grouped": lambda: of_op(Conv((1, 1), (1, 1, 1, 1), (1, 1), 3), IMAGE, weights=((9, 2, 3, 3), (9,))),
    "conv, depthwise": lambda: of_op(Conv((1, 1), (1, 1, 1, 1), (1, 1), 6), IMAGE, weights=((6, 1, 3, 3),)),
    "conv of rows": lambda: of_op(Conv((2,), (1, 0), (1,)), (2, 6, 11), weights=((4, 6, 3), (4,))),
    "conv of volumes": lambda: of_op(Conv((1,) * 3, (1,) * 6, (1,) * 3), (1, 2, 4, 5, 6), weights=((3, 2, 3, 3, 3),)),
    "conv with weights from outside": lambda: of_op(Conv(), IMAGE, (4, 6, 1, 1), (4,)),
    "conv of nhwc": lambda: of_op(ConvNhwc((1, 2), (1, 0, 2, 1)), (2, 9, 7, 6), weights=((5, 6, 3, 3), (5,))),
    "max pool of nhwc": lambda: of_op(MaxPoolNhwc((3, 2), (2, 1), (1, 0, 1, 1)), (2, 9, 7, 6)),
    "average pool of nhwc": lambda: of_op(AveragePoolNhwc((3, 3), (1, 1), (1, 1, 1, 1)), (2, 9, 7, 6)),
    "global average pool of nhwc": lambda: of_op(GlobalAveragePoolNhwc(), (2, 9, 7, 6)),
    "global max pool of nhwc": lambda: of_op(GlobalMaxPoolNhwc(), (2, 9, 7, 6)),
    "sub and div": lambda: of_op(Nary("sub"), IMAGE, (2, 6, 1, 1)),
    "max of three": lambda: of_op(Nary("max"), IMAGE, IMAGE, IMAGE),
    "div": lambda: of_op(Nary("div"), IMAGE, weights=((1,),)),
    **{f"unary {name}": partial(_unary, name) for name, each in UNARY.items() if each.takes in ("any", "real")},
    **{f"nary {name}": partial(of_op, Nary(name), IMAGE, (2, 6, 1, 1)) for name in ("mod", "fmod", "mean", "less")},
    "functions of truth values": _truth,
    "whole numbers": _whole_numbers,
    "prelu": lambda: of_op(PRelu(), IMAGE, weights=((6, 1, 1),)),
    "conv, transposed": lambda: of_op(ConvTranspose((2, 2)), IMAGE, weights=((6, 4, 2, 2), (4,))),
    "conv, transposed and grouped": lambda: of_op(
        ConvTranspose((2, 1), (1, 0, 0, 1), (1, 2), 2, (1, 0)), IMAGE, weights=((6, 2, 3, 2),)
    ),
    "conv of rows, transposed": lambda: of_op(
        ConvTranspose((2,), (1, 1), (1,), 1, (1,)), (2, 6, 9), weights=((6, 4, 4), (4,))
    ),
    "conv, backward data": lambda: of_op(
        ConvBackwardData((2, 2), (1, 1, 1, 1), (1, 1), 1, (10, 8)), (2, 6, 5, 4), weights=((6, 4, 3, 3),)
    ),
    **{
        f"resize {mode}, {coordinates}": partial(of_op, Resize((1.0, 1.0, *scales), (), mode, coordinates), IMAGE)
        for mode, coordinates, scales in (
            *(("nearest", "asymmetric", (2.0, 2.0)), ("linear", "half_pixel", (2.0, 1.5))),
            *(("linear", "align_corners", (1.0, 3.0)), ("cubic", "pytorch_half_pixel", (0.5, 1.7))),
        )
    },
    "resize by an antialiasing filter": lambda: of_op(
        Resize((), (2, 6, 4, 3), "linear", "half_pixel", antialias=True), IMAGE
    ),
    "resize of volumes": lambda: of_op(Resize((1.0, 1.0, 2.0, 2.0, 3.0), (), "linear"), (1, 2, 2, 3, 2)),
    **{
        f"sample, {mode} {padding}": partial(of_op, GridSample(mode, padding, aligned), IMAGE, (2, 4, 3, 2))
        for mode, padding, aligned in (
            *(("linear", "zeros", False), ("linear", "reflection", True)),
            *(("linear", "border", False), ("nearest", "reflection", False)),
        )
    },
    "depth to space": lambda: of_op(DepthToSpace(2), (2, 12, 3, 2)),
    "depth to space, pixels shuffled": lambda: of_op(DepthToSpace(2, True), (2, 12, 3, 2)),
    "space to depth": lambda: of_op(SpaceToDepth(3), (2, 2, 9, 6)),
    "expand": lambda: of_op(Expand((2, 3, 1, 5)), (3, 4, 1)),
    "tile": lambda: of_op(Tile((2, 1, 3)), (2, 3, 4)),
    "pad by a number": lambda: of_op(Pad((0, 1, 2, 0, 0, 0, -1, 3), "constant", 0.5), IMAGE),
    **{
        f"pad, {mode}": partial(of_op, Pad((0, 0, 2, 1, 0, 0, 1, 3), mode), IMAGE)
        for mode in ("reflect", "edge", "wrap")
    },
    "group norm": lambda: of_op(GroupNorm(3), IMAGE, weights=((6,), (6,))),
    "instance norm": lambda: of_op(InstanceNorm(0.1), IMAGE, weights=((6,), (6,))),
    "log softmax": lambda: of_op(LogSoftmax(1), IMAGE),
    "log softmax, flattened": lambda: of_op(LogSoftmax(1, flatten=True), IMAGE),
    **{
        f"reduce to {function}": partial(of_op, Reduce(function, (1, 3)), IMAGE)
        for function in ("sum", "min", "l1", "l2", "sum_square", "log_sum_exp")
    },
    "largest place": lambda: of_op(ArgExtreme(1), (3, 300)),
    "smallest place, of channels": lambda: of_op(ArgExtreme(1, True, False, True), IMAGE),
    "top k": lambda: of_op(TopK(5), (2, 3, 11)),
    "smallest k, of channels": lambda: of_op(TopK(2, 1, False), IMAGE),
    "running sums": lambda: of_op(CumSum(2), IMAGE),
    "running sums from the end": lambda: of_op(CumSum(1, True, True), (2, 5)),
    "grouped product": lambda: _grouped_product(13, 2, 2, 11, 12),
    "grouped product of few rows": lambda: _grouped_product(1, 0, 0, 1, 1),
    "routed rows": _routed,
    "picked by place": _picked_by_place,
    "embedded": _embedded,
    "layer norm": lambda: of_op(LayerNorm(), (2, 5, 24), weights=((24,), (24,))),
    "layer norm of matrices without shift": lambda: of_op(LayerNorm(1), (3, 5, 8), weights=((5, 8),)),
    "products of stacks": lambda: of_op(MatMul(), (2, 3, 5, 8), (2, 3, 8, 8)),
    "products of one and a stack": lambda: of_op(MatMul(), (2, 3, 4, 8), (3, 8, 16)),
    "product of two inputs": lambda: of_op(MatMul(), (5, 8), (8, 8)),
    "gemm": lambda: of_op(Gemm(trans_b=True), (3, 10), weights=((8, 10), (8,))),
    "gemm, all options": lambda: of_op(Gemm(0.5, 2.0, True, False), (10, 3), weights=((10, 8), (1, 8))),
    "gemm with a matrix to add": lambda: of_op(Gemm(1.0, 0.5), (3, 10), (10, 8), (3, 8)),
    "gemm with a number to add": lambda: of_op(Gemm(), (3, 10), weights=((10, 8), (1,))),
    "matmul": lambda: of_op(MatMul(), (2, 3, 10), weights=((10, 8),)),
}

UNITS: dict[str, Callable[[], Network]] = {
    "conv and relu without bias": lambda: _after_convolution(Relu(), bias=False),
    "conv and sigmoid": lambda: _after_convolution(Sigmoid(), bias=True),
    "conv and clip without bias": lambda: _after_convolution(Clip(0.0, 0.5), bias=False),
    "conv and swish": lambda: _after_convolution(Unary("swish", (1.0,)), bias=True),
    "conv, residual and relu": _residual,
    "gemm, bias, residual and relu": _product_with_residual,
    "gemm, bias and gelu": _product_with_gelu,
    "attention": _attention,
    "gather of a part": _turned,
    "gemm and relu": _fully_connected_relu,
    "separable conv of a sum": _separable,
    "concat of sums": _concat_of_sums,
    "chain with two ends": _chain_with_two_ends,
    "head": _head,
    "channels that cuDNN cannot be pointed at": _odd_channels,
    "pooled slices": _pooled_slices,
}
