"""Products by kernels of ours: grouped convolutions, those of whole numbers, and stacks of matrices in fp32.

The prologue and epilogue of a convolution are in the same launch. A thread computes a few neighbouring channels of a
few neighbouring columns: where channels lie innermost, it reads and writes up to 16 bytes at a time, and keeps the
inputs that windows of neighbouring columns share. All sizes are constants of the source, so that the compiler divides
indices by multiplication and unrolls loops over the window. Sums are in fp32 and are rounded once, after the epilogue;
sums of 8-bit integers are in int32. No model chooses how many channels and columns a thread takes: a few ways are
offered, and timed beside the library's plans.

cuDNN multiplies stacks of matrices on tensor cores only: on an H200 it returned TF32 digits where fp32 was requested,
or had no plan at all. Here a thread computes one element; neighbours read neighbouring columns. That is far from peak
speed, but whoever asks for products in plain fp32 wants its digits.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from iossim.backends.cupy_cudnn.element_kernels import functions_of
from iossim.backends.cupy_cudnn.kernel_text import (
    ACCESS_BYTES,
    MOST_ELEMENTS,
    access_width,
    element_name,
    kernel,
    kernel_source,
    value_name,
    walked,
)
from iossim.backends.cupy_cudnn.views import KernelCall, View, spread
from iossim.ir.ops.conv import Conv
from iossim.ir.types import DType

NAME = "grouped_convolution"
#: The most bytes of channels, and the columns, that a thread takes.
CHANNELS_BYTES, COLUMNS = (ACCESS_BYTES, 4), (1, 4)

#: Constants of the text: C channels and T columns of the output a thread; FILTERS in all, and CHANNELS of the input a
#: group; images of H x W, and columns OUTW of the output; (Y, X) each: kernel K, strides S, padding P, dilations D;
#: COLS input columns under T windows where the input is read by column, else U channels by one read.
_BODY = """const unsigned int index = blockIdx.x * blockDim.x + threadIdx.x;
if (index >= {threads}u) return;
unsigned int rest = index;
{place}
const int top = oy * SY - PY, left = ox * SX - PX;
{y}* const to = y + {at};
sum_t sums[T][C] = {{}};
{sum}
#pragma unroll
for (int t = 0; t < T; ++t) {{
    if (ox + t >= OUTW) break;
    {loads}
    {y} made[C];
    #pragma unroll
    for (int i = 0; i < C; ++i) {{
        const sum_t a0 = sums[t][i]{names};
        made[i] = {expression};
    }}
    put<C>(to + t * {step}, made);
}}
"""
#: Each channel by a window of its own.
_DEPTHWISE = """const in_t* image = x + (long long)n * x_n + (long long)k * x_c;
#pragma unroll
for (int ky = 0; ky < KY; ++ky) {
    const int iy = top + ky * DY;
    if (iy < 0 || iy >= H) continue;
    sum_t taps[KX][C];
    #pragma unroll
    for (int kx = 0; kx < KX; ++kx) take<C>(taps[kx], w + (ky * KX + kx) * FILTERS + k);
    #pragma unroll
    for (int j = 0; j < COLS; ++j) {
        const int ix = left + j;
        if (ix < 0 || ix >= W) continue;
        sum_t found[C];
        take<C>(found, image + (long long)iy * x_h + (long long)ix * x_w);
        #pragma unroll
        for (int i = 0; i < C; ++i) found[i] = before(found[i]);
        #pragma unroll
        for (int kx = 0; kx < KX; ++kx) {
            const int ahead = j - kx * DX;
            if (ahead < 0 || ahead % SX || ahead / SX >= T) continue;
            #pragma unroll
            for (int i = 0; i < C; ++i) sums[ahead / SX][i] += found[i] * taps[kx][i];
        }
    }
}"""
#: Filters of one group by all of its channels.
_GROUPED = """const in_t* image = x + (long long)n * x_n + (long long)(k / SHARE * CHANNELS) * x_c;
for (int ky = 0; ky < KY; ++ky) {
    const int iy = top + ky * DY;
    if (iy < 0 || iy >= H) continue;
    for (int kx = 0; kx < KX; ++kx) {
        const in_t* own = w + (long long)((ky * KX + kx) * CHANNELS) * FILTERS + k;
        for (int c = 0; c < CHANNELS; c += U) {
            sum_t found[T][U] = {};
            #pragma unroll
            for (int t = 0; t < T; ++t) {
                const int ix = left + t * SX + kx * DX;
                if (ix < 0 || ix >= W) continue;
                take<U>(found[t], image + (long long)iy * x_h + (long long)ix * x_w + (long long)c * x_c);
                #pragma unroll
                for (int u = 0; u < U; ++u) found[t][u] = before(found[t][u]);
            }
            #pragma unroll
            for (int u = 0; u < U; ++u) {
                sum_t taps[C];
                take<C>(taps, own + (long long)(c + u) * FILTERS);
                #pragma unroll
                for (int t = 0; t < T; ++t)
                    #pragma unroll
                    for (int i = 0; i < C; ++i) sums[t][i] += found[t][u] * taps[i];
            }
        }
    }
}"""
_PRODUCT = """const a_t* left = a + STACK_a + (long long)row * a_row;
const b_t* right = b + STACK_b + (long long)column * b_column;
sum_t sum = 0;
for (int k = 0; k < depth; ++k) sum += (sum_t)left[(long long)k * a_column] * (sum_t)right[(long long)k * b_row];
*($y) = sum;
"""


def convolutions(
    op: Conv, prologue: str, x: View, taps: View, y: View, expression: str, operands: Sequence[View]
) -> Mapping[str, KernelCall]:
    """Ways to compute ``y = expression(conv(prologue(x), taps), *operands)`` in one launch, by name.

    ``prologue`` is an expression in ``a0``, an element of ``x``; ``expression`` one in ``a0``, a sum, and ``a1``, ...,
    operands that are broadcast to ``y``. ``taps`` are filters with the window outermost, their number innermost:
    ``[kernel_y, kernel_x, channels of a group, filters]``. None for more than two dimensions of space.
    """
    rank = len(op.strides)
    if rank > 2:
        return {}
    x, y, *operands = (view.planar for view in (x, y, *(operand.broadcast(y.shape) for operand in operands)))
    if any(max(view.elements, view.extent) > MOST_ELEMENTS for view in (y, *operands)):
        return {}
    filters, channels = y.shape[1], taps.shape[-2]
    share = filters // op.groups
    is_depthwise = channels == share == 1
    own = _width(y, filters if is_depthwise else share)
    own = min(own, _width(x, filters)) if is_depthwise else own
    widths = dict.fromkeys(min(own, most // y.dtype.bytes) for most in CHANNELS_BYTES)
    window = {
        "K": (1, *taps.shape[:rank])[-2:],
        "S": (1, *op.strides)[-2:],
        "P": (0, *op.pads[:rank])[-2:],
        "D": (1, *op.dilations)[-2:],
    }
    constants = {
        **{f"{name}{axis}": value for name, values in window.items() for axis, value in zip("YX", values, strict=True)},
        **{"H": x.shape[2], "W": x.shape[3], "OUTW": y.shape[3], "FILTERS": filters, "CHANNELS": channels},
        **{"SHARE": share, "U": _width(x, channels)},
        **{f"x_{axis}": stride for axis, stride in zip("nchw", x.strides, strict=True)},
    }
    found: dict[str, KernelCall] = {}
    for width, count in itertools.product(widths, (count for count in COLUMNS if count <= y.shape[3])):
        tiles = -(-y.shape[3] // count)
        threads = y.shape[0] * y.shape[2] * tiles * (filters // width)
        reach = (count - 1) * constants["SX"] + (constants["KX"] - 1) * constants["DX"] + 1
        sizes = {**constants, "C": width, "T": count, "COLS": reach}
        text = _BODY.format(
            threads=threads,
            place=_place(filters // width, tiles, y.shape[2], y.strides[1] == 1),
            sum=_DEPTHWISE if is_depthwise else _GROUPED,
            loads="\n    ".join(_load(index, view, width) for index, view in enumerate(operands, 1)),
            names="".join(f", a{index} = v{index}[i]" for index in range(1, len(operands) + 1)),
            y=element_name(y.dtype),
            expression=expression,
            step=y.strides[3],
            at=_at(y),
        )
        read = [f"{name} = {value}" for name, value in sizes.items() if re.search(rf"\b{name}\b", text)]
        body = f"constexpr int {', '.join(read)};\n{text}"
        pointers = [f"const {element_name(view.dtype)}* p{index}" for index, view in enumerate(operands, 1)]
        # An operand may be the output itself, which is written in place: those are not declared __restrict__.
        parameters = ["const in_t* __restrict__ x", "const in_t* __restrict__ w", *pointers]
        before = f"{functions_of(prologue + expression)}typedef {element_name(x.dtype)} in_t;\n"
        before += f"typedef {value_name(y.dtype)} sum_t;\n"
        before += f"static __device__ sum_t before(sum_t a0) {{ return {prologue}; }}\n"
        text = kernel_source(
            NAME, (v.dtype for v in (x, y, *operands)), [*parameters, f"{element_name(y.dtype)}* y"], body, before
        )
        found[f"own{width}x{count}"] = KernelCall(text, NAME, *spread(threads), (x, taps, *operands, y))
    return found


def _width(view: View, channels: int) -> int:
    """Number of channels that an aligned access moves, anywhere in images; it divides ``channels``."""
    steps = [stride if size > 1 else 0 for size, stride in zip(view.shape, view.strides, strict=True)]
    return math.gcd(access_width(view, (steps[0], *steps[2:], view.strides[1])), channels)


def _place(packs: int, tiles: int, out_h: int, is_last: bool) -> str:
    """Index of the output of a thread: neighbouring threads write neighbours in memory."""
    taken = {"k": ("C", packs), "ox": ("T", tiles), "oy": ("1", out_h)}
    lines = [
        f"const int {name} = (int)(rest % {taken[name][1]}u) * {taken[name][0]}; rest /= {taken[name][1]}u;"
        for name in (("k", "ox", "oy") if is_last else ("ox", "oy", "k"))
    ]
    return "\n".join([*lines, "const unsigned int n = rest;"])


def _load(index: int, view: View, width: int) -> str:
    """The statement that reads an operand for all channels of a thread."""
    place = f"p{index} + {_at(view)} + t * {view.strides[3]}"
    if _width(view, width) == width:
        return f"float v{index}[C]; take<C>(v{index}, {place});"
    return f"float v{index}[C]; pick(v{index}, {place}, {view.strides[1]});"


def _at(view: View) -> str:
    """Place at which the channels of a thread begin in the first of its columns.

    In 32 bits: from sums of several signed numbers the compiler does not see that accesses are of neighbours.
    """
    n, c, h, w = view.strides
    return f"(n * {n}u + k * {c}u + oy * {h}u + ox * {w}u)"


def product(a: View, b: View, y: View) -> KernelCall:
    """``y [..., M, N] = a [..., M, K] b [..., K, N]``; stacks are broadcast by NumPy's rules.

    Sums are of int32 where ``y`` is, else of fp32. Raises BackendError for more elements than a kernel
    counts.
    """
    stack = y.shape[:-2]
    views = {"a": a.broadcast((*stack, *a.shape[-2:])), "b": b.broadcast((*stack, *b.shape[-2:])), "y": y}
    places, steps = walked(list(views.values()), range(len(stack)), "s")
    body = _PRODUCT
    for name in "ab":
        body = body.replace(f"STACK_{name}", " + ".join(f"(long long){axis} * {name}_{axis}" for axis in places))
    for axis, at in (("row", -2), ("column", -1)):
        places[axis], steps[axis] = y.shape[at], tuple(view.strides[at] for view in views.values())
    return kernel(
        "product",
        body,
        views,
        steps,
        places,
        more={"depth": a.shape[-1]},
        functions=f"typedef {'int' if y.dtype is DType.INT32 else 'float'} sum_t;\n",
    )
