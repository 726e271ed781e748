"""Small networks of whole numbers with scales, as they come: of both types, around any zero point, with and without
padding, with products whose second matrix is constant or computed.
"""

from collections.abc import Callable
from functools import partial

import ml_dtypes
import numpy as np

from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.pool import MaxPool
from iossim.ir.ops.quantize import (
    Dequantize,
    DequantizedMatMul,
    DynamicQuantize,
    IntegerConv,
    IntegerMatMul,
    Quantize,
    QuantizedConv,
    QuantizedMatMul,
    ScaledConv,
    ScaledMatMul,
)
from iossim.ir.ops.reshape import Reshape, Transpose
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Cast, Relu
from iossim.ir.types import DType, Precision

Integer = type[np.int8] | type[np.uint8]


def whole(seed: int, shape: tuple[int, ...], dtype: Integer) -> Array:
    """Numbers of the whole range but for the lowest, so that a zero point of the middle leaves int8."""
    limits = np.iinfo(dtype)
    made: Array = np.random.default_rng(seed).integers(limits.min + 1, limits.max + 1, shape).astype(dtype)
    return made


def scales(b: GraphBuilder, name: str, scale: float | Array, zero: Array | int, dtype: Integer) -> tuple[str, str]:
    return b.numbers(f"{name} scale", np.asarray(scale, np.float32)), b.numbers(f"{name} zero", np.asarray(zero, dtype))


def convolution(
    op: QuantizedConv,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    x: tuple[Integer, int] = (np.uint8, 120),
    w: tuple[Integer, int] = (np.int8, 0),
    y: tuple[Integer, int] = (np.uint8, 131),
    *,
    bias: bool = True,
    each: bool = True,
) -> Network:
    """Of an input that is quantised, the filters with a scale ``each`` or one for all, to numbers again."""
    b = GraphBuilder("convolution")
    filters = w_shape[0]
    x_scales, y_scales = scales(b, "x", 0.02, x[1], x[0]), scales(b, "y", 0.3, y[1], y[0])
    own: float | Array = np.linspace(0.01, 0.05, filters) if each else 0.03
    w_scales = scales(b, "w", own, np.full(filters, w[1]) if each else w[1], w[0])
    operands = [b.numbers("w", whole(1, w_shape, w[0])), *w_scales, *y_scales]
    operands += [b.numbers("bias", np.arange(-filters, filters, 2, dtype=np.int32) * 301)] if bias else []
    with b.unit("u", "Quantize"):
        quantised = b.add(Quantize(), b.input("x", x_shape), *x_scales)
    with b.unit("v", "QLinearConv"):
        made = b.add(op, quantised, *x_scales, *operands)
    with b.unit("t", "Dequantize"):
        number = b.add(Dequantize(), made, *y_scales)
    return b.network([made, number])


def _product(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], computed: bool, a: Integer, b_type: Integer
) -> Network:
    b = GraphBuilder("product")
    a_scales, b_scales = scales(b, "a", 0.02, 3, a), scales(b, "b", 0.01, 128 if b_type is np.uint8 else 0, b_type)
    y_scales = scales(b, "y", 0.2, 4, np.int8)
    left = b.add(Quantize(), b.input("x", a_shape), *a_scales)
    right = (
        b.add(Quantize(), b.input("z", b_shape), *b_scales) if computed else b.numbers("b", whole(2, b_shape, b_type))
    )
    return b.network([b.add(QuantizedMatMul(), left, *a_scales, right, *b_scales, *y_scales)])


def _by_range(a_shape: tuple[int, ...], b_shape: tuple[int, ...], zero: bool, computed: bool) -> Network:
    """A product as networks quantise it when they run: by the range of its input, back to numbers by both scales."""
    b = GraphBuilder("by range")
    with b.unit("u", "DynamicQuantize"):
        a, a_scale, a_zero = b.add_all(DynamicQuantize(), b.input("x", a_shape))
    if computed:
        with b.unit("v", "DynamicQuantize"):
            right, b_scale, b_zero = b.add_all(DynamicQuantize(), b.input("z", b_shape))
    else:
        right, b_scale = b.numbers("b", whole(3, b_shape, np.int8)), b.numbers("b scale", np.float32(0.01))
        b_zero = b.numbers("b zero", np.int8(0))
    with b.unit("t", "MatMulInteger-Cast-Mul"):
        sums = b.add(IntegerMatMul(), a, right, a_zero, *([b_zero] if zero else []))
        y = b.add(Mul(), b.add(Cast(DType.FLOAT32), sums), b.add(Mul(), a_scale, b_scale))
    return b.network([y, a, a_scale, a_zero])


def _integers(dtype: Integer) -> Network:
    """Without any zero point; the sums themselves are an output."""
    b = GraphBuilder("integers")
    x = b.add(Quantize(), b.input("x", (3, 8)), *scales(b, "x", 0.02, 0, dtype))
    return b.network([b.add(IntegerMatMul(), x, b.numbers("b", whole(4, (8, 5), np.int8)))])


def _convolved_sums(zero: bool) -> Network:
    b = GraphBuilder("convolved sums")
    x = b.add(Quantize(), b.input("x", (2, 6, 9, 7)), *scales(b, "x", 0.02, 9, np.uint8))
    w = b.numbers("w", whole(5, (4, 6, 3, 3), np.int8))
    with b.unit("u", "ConvInteger-Cast-Mul"):
        sums = b.add(IntegerConv((1, 1), (1, 1, 1, 1)), x, w, *(["x zero"] if zero else []))
        y = b.add(Mul(), b.add(Cast(DType.FLOAT32), sums), b.numbers("scale", np.float32(0.001)))
    return b.network([y, sums])


def _chain() -> Network:
    """Two branches of whole numbers that meet, in units of several ops."""
    b = GraphBuilder("chain")
    own = scales(b, "own", 0.05, 100, np.uint8)
    each = scales(b, "each", np.linspace(0.01, 0.03, 6), np.zeros(6), np.int8)
    with b.unit("u", "Quantize"):
        x = b.add(Quantize(), b.input("x", (2, 6, 9, 7)), *own)
    made = []
    for index, size in enumerate((1, 3)):
        with b.unit(f"v{index}", "QLinearConv-MaxPool"):
            w = b.numbers(f"w{index}", whole(index, (6, 6, size, size), np.int8))
            y = b.add(QuantizedConv((1, 1), (size // 2,) * 4), x, *own, w, *each, *own)
            made.append(b.add(MaxPool((2, 2), (1, 1), (0, 0, 0, 0)), y))
    with b.unit("t", "Concat-Dequantize-Relu"):
        y = b.add(Relu(), b.add(Dequantize(), b.add(Concat(1), *made), *own))
    with b.unit("s", "Quantize-Dequantize"):
        each = scales(b, "twelve", np.linspace(0.01, 0.03, 12), np.arange(-6, 6), np.int8)
        z = b.add(Dequantize(1), b.add(Quantize(1), y, *each), *each)
    return b.network([y, z])


def _no_zero() -> Network:
    b = GraphBuilder("no zero")
    scale = b.numbers("scale", np.float32(0.01))
    x = b.add(Quantize(), b.input("x", (2, 5)), scale)
    return b.network([x, b.add(Dequantize(), x, scale)])


WEIGHTS = {
    DType.INT4: (ml_dtypes.int4, -8, 8),
    DType.UINT4: (ml_dtypes.uint4, 0, 16),
    DType.INT8: (np.int8, -128, 128),
    DType.UINT8: (np.uint8, 0, 256),
}


def dequantised(
    dtype: DType,
    leading: tuple[int, ...],
    sizes: tuple[int, int],
    block: int,
    has_zero: bool,
    precision: Precision = Precision.FP32,
    fused: bool = True,
) -> Network:
    """A product, maybe with a bias, a residual and a ReLU in its unit."""
    b, random = GraphBuilder("product", precision), np.random.default_rng(0)
    of_array, low, high = WEIGHTS[dtype]
    inner, columns = sizes
    shape = (-(-inner // block), columns)
    operands = [b.input("x", (*leading, inner)), b.numbers("w", random.integers(low, high, sizes).astype(of_array))]
    operands.append(b.numbers("s", random.uniform(0.01, 0.1, shape).astype(precision.storage.numpy)))
    operands += [b.numbers("z", random.integers(low, high, shape).astype(of_array))] * has_zero
    with b.unit("u", "Dequantized-Matmul-Bias-Add-Relu"):
        y = b.add(DequantizedMatMul(block), *operands)
        if fused:
            y = b.add(
                Relu(), b.add(Add(), b.add(Add(), y, b.constant("b", (columns,))), b.input("r", (*leading, columns)))
            )
    return b.network([y])


def of_fp8(precision: Precision = Precision.FP32) -> Network:
    """Convolutions of fp8, one in groups, with a residual; products by constants, of stacks, of what is computed, and by
    a weight alone; quantised again, in chains and after casts.
    """
    b, random = GraphBuilder("fp8", precision), np.random.default_rng(0)
    e4m3, own = ml_dtypes.float8_e4m3fn, precision.storage.numpy

    def stored(name: str, *shape: int, dtype: type = e4m3) -> str:
        return b.numbers(name, (random.standard_normal(shape) * 4).astype(dtype))

    s, zero = b.numbers("s", np.asarray(0.05, own)), b.numbers("zero", np.zeros((), e4m3))
    each = b.numbers("each", np.linspace(0.01, 0.03, 4).astype(own))
    with b.unit("u", "Quantize"):
        x = b.add(Quantize(), b.input("x", (2, 4, 5, 6)), s, zero)
    with b.unit("v", "Scaled-Conv-Dequantize-Add-Relu-Quantize"):
        bias = b.numbers("bias", np.arange(4).astype(own))
        y = b.add(ScaledConv((1, 1), (1, 1, 1, 1)), x, s, stored("f", 4, 4, 3, 3), each, bias)
        y = b.add(Quantize(), b.add(Relu(), b.add(Add(), y, b.add(Dequantize(), x, s))), s, zero)
    with b.unit("w", "Scaled-Conv-Quantize-Dequantize"):
        y = b.add(
            ScaledConv((1, 1), (0,) * 4, (1, 1), 2), y, s, stored("g", 4, 2, 1, 1, dtype=ml_dtypes.float8_e5m2), each
        )
        y = b.add(Dequantize(), b.add(Quantize(), y, s, zero), s)
    with b.unit("t", "Cast"):
        rows = b.add(Cast(DType.FLOAT8_E5M2), b.add(Reshape((2, 20, 6)), y))
    with b.unit("r", "Scaled-Matmul"):
        rows = b.add(ScaledMatMul(), rows, s, stored("m", 6, 4), each)
    with b.unit("q", "Quantize"):
        rows = b.add(Quantize(), rows, s, zero)
    with b.unit("p", "Scaled-Matmul"):
        squares = b.add(ScaledMatMul(), rows, s, b.add(Transpose((0, 2, 1)), rows), s)
    with b.unit("o", "Dequantized-Matmul"):
        scale = b.numbers("blocks", np.full((5, 3), 0.02, own))
        z = b.add(DequantizedMatMul(4), squares, stored("n", 20, 3), scale)
    return b.network([y, squares, z])


_SAME = QuantizedConv((1, 1), (1, 1, 1, 1))
IMAGE, FILTERS = (2, 6, 9, 7), (4, 6, 3, 3)
QUANTISED: dict[str, Callable[[], Network]] = {
    "convolution": partial(convolution, _SAME, IMAGE, FILTERS),
    "convolution around the middle": partial(convolution, _SAME, IMAGE, FILTERS, (np.uint8, 128), bias=False),
    "convolution of int8": partial(convolution, _SAME, IMAGE, FILTERS, (np.int8, 0), y=(np.int8, -3)),
    "convolution of int8, padded": partial(convolution, _SAME, IMAGE, FILTERS, (np.int8, -9), each=False),
    "convolution by uint8": partial(convolution, _SAME, IMAGE, FILTERS, w=(np.uint8, 128), each=False),
    "convolution in groups": partial(convolution, QuantizedConv((2, 1), (1, 0, 0, 2), (1, 2), 2), IMAGE, (4, 3, 3, 3)),
    "convolution of each channel": partial(
        convolution, QuantizedConv((1, 1), (1, 1, 1, 1), (1, 1), 6), IMAGE, (6, 1, 3, 3)
    ),
    "convolution of rows": partial(convolution, QuantizedConv((1,), (1, 1), (1,)), (2, 6, 9), (4, 6, 3)),
    "pointwise convolution": partial(convolution, QuantizedConv(), (2, 16, 4, 4), (4, 16, 1, 1)),
    "product": partial(_product, (3, 8), (8, 5), False, np.uint8, np.int8),
    "product of stacks": partial(_product, (2, 3, 8), (8, 5), False, np.int8, np.uint8),
    "product of computed ones": partial(_product, (2, 3, 8), (2, 8, 5), True, np.uint8, np.uint8),
    "by range": partial(_by_range, (3, 8), (8, 5), True, False),
    "by range, no zero": partial(_by_range, (2, 3, 8), (8, 5), False, False),
    "by range, both": partial(_by_range, (2, 3, 8), (2, 8, 5), True, True),
    "sums": partial(_integers, np.int8),
    "sums of uint8": partial(_integers, np.uint8),
    "convolved sums": partial(_convolved_sums, False),
    "convolved sums around a zero": partial(_convolved_sums, True),
    "chain": _chain,
    "no zero": _no_zero,
}
