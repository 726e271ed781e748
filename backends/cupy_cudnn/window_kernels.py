"""Kernels that read a neighbourhood of each element: pooling windows, and normalisation across channels.

A thread makes a few outputs below each other, of neighbouring channels where those lie innermost: what several windows
read is read once, and stays in registers. Windows are constants of the text, images are not. Averages count what
:mod:`iossim.ir.ops.pool` counts: padding only with ``count_include_pad``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np

from iossim.backends.cupy_cudnn.element_types import element_name
from iossim.backends.cupy_cudnn.kernel_text import (
    ENOUGH_THREADS,
    access_widths,
    kernel_source,
    place_arguments,
    place_lines,
    place_parameters,
)
from iossim.backends.cupy_cudnn.views import KernelCall, Scalar, View, coalesced, int32s, over_elements
from iossim.execution.backend import BackendError
from iossim.ir.ops.normalization import LocalResponseNorm
from iossim.ir.ops.pool import AveragePool, MaxPool
from iossim.ir.types import DType

_Pairs = tuple[tuple[int, int], ...]

#: The indices of an output; strides and sizes are named after them.
_AXES = ("n", "c", "oy", "ox")
#: Elements of a thread's window that are written out one by one; the rows of larger windows are a loop.
_MOST_UNROLLED = 64

#: Of constants: W channels an access, R outputs a thread; and, (Y, X) each: kernel K, strides S, padding before P,
#: dilations D, how far averaged elements reach beyond the image before (LOW) and behind it (HIGH). Arguments: threads,
#: and how their places are taken apart; height of the output; height and width of the input; input and output, each
#: with four strides.
_BODY = """const in_t* image = x + (long long)n * x_n + (long long)c * W * x_c;
out_t* made = y + (long long)n * y_n + (long long)c * W * y_c + (long long)ox * y_ox;
const int top = oy * R * SY - PY, left = ox * SX - PX;
float part[R][W];
#pragma unroll
for (int r = 0; r < R; ++r)
    for (int e = 0; e < W; ++e) part[r][e] = {start};
#pragma unroll {unrolled}
for (int row = 0; row < (R - 1) * SY + (KY - 1) * DY + 1; ++row) {{
    const int iy = top + row;
    if (iy < 0 || iy >= h) continue;
    float line[W];
    #pragma unroll
    for (int e = 0; e < W; ++e) line[e] = {start};
    #pragma unroll {unrolled}
    for (int kx = 0; kx < KX; ++kx) {{
        const int ix = left + kx * DX;
        if (ix < 0 || ix >= w) continue;
        float own[W];
        take<P>(own, image + (long long)iy * x_oy + (long long)ix * x_ox);
        #pragma unroll
        for (int e = 0; e < W; ++e) line[e] = combined(line[e], {value});
    }}
    #pragma unroll
    for (int r = 0; r < R; ++r) {{
        const int down = row - r * SY;
        if (down < 0 || down % DY != 0 || down / DY >= KY) continue;
        #pragma unroll
        for (int e = 0; e < W; ++e) part[r][e] = combined(part[r][e], line[e]);
    }}
}}
#pragma unroll
for (int r = 0; r < R; ++r) {{
    if (oy * R + r >= out_h) break;
    {finish}
    out_t out[W];
    #pragma unroll
    for (int e = 0; e < W; ++e) out[e] = {result};
    put<Q>(made + (long long)(oy * R + r) * y_oy, out);
}}
"""
_COUNT = """int down = 0, across = 0;
    for (int k = 0; k < KY; ++k) {
        const int iy = top + r * SY + k * DY;
        down += iy >= -LOWY && iy < h + HIGHY;
    }
    for (int k = 0; k < KX; ++k) {
        const int ix = left + k * DX;
        across += ix >= -LOWX && ix < w + HIGHX;
    }
    const float counted = (float)(down * across > 0 ? down * across : 1);"""
_MIDDLE = """float own[W];
    take<P>(own, image + (long long)(top + r + PY) * x_oy);"""
#: What is different between kernels, and the parameters that only one has.
_LOWEST = "-__int_as_float(0x7f800000)"
_KINDS = {
    "max_pool": (_LOWEST, "fmaxf(a, b)", "own[e]", "", "part[r][e]", ()),
    "average_pool": ("0.0f", "a + b", "own[e]", _COUNT, "part[r][e] / counted", ()),
    "local_response_norm": (
        *("0.0f", "a + b", "own[e] * own[e]", _MIDDLE, "own[e] / powf(bias + scale * part[r][e], beta)"),
        ("float bias", "float scale", "float beta"),
    ),
}


def pool(op: MaxPool | AveragePool, x: View, y: View) -> KernelCall:
    """A pooling over one or two spatial dimensions; raises BackendError for more."""
    rank = len(op.kernel)
    if rank > 2:
        raise BackendError(f"no kernel pools over {rank} dimensions; only over one or two")
    include = isinstance(op, AveragePool) and op.count_include_pad
    before, after = (_planar(pads, 0) for pads in (op.pads[:rank], op.pads[rank:]))
    if rank == 1:
        x, y = (
            replace(v, shape=(*v.shape[:2], 1, v.shape[2]), strides=(*v.strides[:2], 0, v.strides[2])) for v in (x, y)
        )
    window = (_planar(op.kernel, 1), _planar(op.strides, 1), before, _planar(op.dilations, 1))
    inside = (before, after) if include else ((0, 0), (0, 0))
    return _over_windows("max_pool" if isinstance(op, MaxPool) else "average_pool", (*window, *inside), x, y)


def local_response_norm(op: LocalResponseNorm, x: View, y: View) -> KernelCall:
    """Local response normalisation of views whose positions are equally spaced; raises BackendError for others.

    Channels are the rows of windows of one column, and positions what lies beside each other.
    """
    positions, steps = coalesced(x.shape[2:], [x.strides[2:], y.strides[2:]])
    if len(positions) > 1:
        raise BackendError("local_response_norm takes images whose rows are dense; copy them first")
    x, y = (
        replace(v, shape=(v.shape[0], *positions, v.shape[1], 1), strides=(v.strides[0], *own, v.strides[1], 0))
        for v, own in zip((x, y), steps, strict=True)
    )
    window = ((op.size, 1), (1, 1), ((op.size - 1) // 2, 0), (1, 1), (0, 0), (0, 0))
    numbers = tuple(np.float32(number) for number in (op.bias, op.alpha / op.size, op.beta))
    return _over_windows("local_response_norm", window, x, y, numbers)


def _over_windows(name: str, window: _Pairs, x: View, y: View, more: tuple[Scalar, ...] = ()) -> KernelCall:
    """A call for images ``[N, C, H, W]``: a thread for a few rows of an access's channels."""
    order = sorted(range(4), key=lambda axis: -y.strides[axis] if y.shape[axis] > 1 else -math.inf)
    strides = [[view.strides[axis] for axis in (0, 2, 3, 1)] for view in (x, y)]
    width, widths = access_widths((x, y), strides, y.shape[1])
    (kernel, *_), (stride, *_) = window[:2]
    threads = y.elements // width
    rows = next((n for n in (4, 2) if kernel > stride and threads >= n * ENOUGH_THREADS), 1)
    sizes = (y.shape[0], y.shape[1] // width, -(-y.shape[2] // rows), y.shape[3])
    arguments = (
        np.uint32(math.prod(sizes)),
        *place_arguments([sizes[axis] for axis in order]),
        *int32s([y.shape[2], *x.shape[2:]]),
        *(item for view in (x, y) for item in (view, *int32s(view.strides))),
        *more,
    )
    text = _source(name, window, (x.dtype, y.dtype), (width, rows, *widths), tuple(order))
    return over_elements(text, name, y.elements, arguments, math.prod(sizes))


@cache
def _source(
    name: str, window: _Pairs, dtypes: tuple[DType, DType], sizes: tuple[int, ...], order: tuple[int, ...]
) -> str:
    start, combined, value, finish, result, more = _KINDS[name]
    pairs = dict(zip(("K", "S", "P", "D", "LOW", "HIGH"), window, strict=True))
    constants = {f"{key}{axis}": number for key, pair in pairs.items() for axis, number in zip("YX", pair, strict=True)}
    constants |= dict(zip("WRPQ", sizes, strict=True))
    reach = (sizes[1] - 1) * constants["SY"] + (constants["KY"] - 1) * constants["DY"] + 1
    names = [_AXES[axis] for axis in order]
    parameters = ["unsigned int threads", *place_parameters(names), "int out_h", "int h", "int w"]
    for of_type, letter in (("const in_t", "x"), ("out_t", "y")):
        parameters += [f"{of_type}* {letter}", *(f"int {letter}_{axis}" for axis in _AXES)]
    in_t, out_t = map(element_name, dtypes)
    before = f"""typedef {in_t} in_t;
typedef {out_t} out_t;
constexpr int {", ".join(f"{key} = {number}" for key, number in constants.items())};
static __device__ inline float combined(float a, float b) {{ return {combined}; }}
"""
    body = _BODY.format(
        start=start,
        value=value,
        finish=finish,
        result=result,
        unrolled=1 if reach * constants["KX"] > _MOST_UNROLLED else "",
    )
    thread = "blockIdx.x * blockDim.x + threadIdx.x"
    head = f"if ({thread} >= threads) return;\n{place_lines(names, thread)}"
    return kernel_source(name, dtypes, [*parameters, *more], head + body, before)


def _planar(values: tuple[int, ...], missing: int) -> tuple[int, int]:
    """The values of two spatial dimensions, where there may be one."""
    first, second = (missing,) * (2 - len(values)) + values
    return first, second
