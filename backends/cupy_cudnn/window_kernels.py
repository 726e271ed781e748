"""Kernels that read a neighbourhood of each element: pooling windows, and normalisation across channels.

A thread makes a few outputs below each other, of neighbouring channels where those lie innermost: what several windows
read is read once, and stays in registers. Windows are constants of the text, images are not. Averages count what
:mod:`iossim.ir.ops.pool` counts: padding only with ``count_include_pad``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from iossim.backends.cupy_cudnn.kernel_text import ENOUGH_THREADS, access_width, kernel
from iossim.backends.cupy_cudnn.views import Argument, KernelCall, View, coalesced
from iossim.execution.backend import BackendError
from iossim.ir.ops.normalization import LocalResponseNorm
from iossim.ir.ops.pool import AveragePool, MaxPool

_Pairs = tuple[tuple[int, ...], ...]

#: The indices of an output; strides are named after them.
_AXES = ("n", "c", "oy", "ox")
#: Elements of a thread's window that are written out one by one; the rows of larger windows are a loop.
_MOST_UNROLLED = 64

#: Constants of the source: W channels per access, P of them per read, Q per write; R outputs per thread, one below the
#: other; and, (Y, X) each, kernel K, strides S, padding before P, dilations D, and how far averaged elements reach
#: beyond the image at its start (LOW) and end (HIGH).
_BODY = """const int channel = c * W, top = oy * R * SY - PY, left = ox * SX - PX;
x_t* image = x + (long long)n * x_n + (long long)channel * x_c;
y_t* made = y + (long long)n * y_n + (long long)channel * y_c + (long long)ox * y_ox;
float part[R][W];
#pragma unroll
for (int r = 0; r < R; ++r) ELEMENTS part[r][e] = START;
#pragma unroll UNROLLED
for (int row = 0; row < (R - 1) * SY + (KY - 1) * DY + 1; ++row) {
    const int iy = top + row;
    if (iy < 0 || iy >= h) continue;
    float line[W];
    ELEMENTS line[e] = START;
    #pragma unroll UNROLLED
    for (int kx = 0; kx < KX; ++kx) {
        const int ix = left + kx * DX;
        if (ix < 0 || ix >= w) continue;
        float own[W];
        take<P>(own, image + (long long)iy * x_oy + (long long)ix * x_ox);
        ELEMENTS line[e] = combined(line[e], VALUE);
    }
    #pragma unroll
    for (int r = 0; r < R; ++r) {
        const int down = row - r * SY;
        if (down >= 0 && down % DY == 0 && down / DY < KY) ELEMENTS part[r][e] = combined(part[r][e], line[e]);
    }
}
#pragma unroll
for (int r = 0; r < R; ++r) {
    if (oy * R + r >= out_h) break;
    FINISH
    y_t out[W];
    ELEMENTS out[e] = RESULT;
    put<Q>(made + (long long)(oy * R + r) * y_oy, out);
}
"""
_COUNT = """const int counted = inside(top + r * SY, KY, DY, -LOWY, h + HIGHY) * inside(left, KX, DX, -LOWX, w + HIGHX);
    const float share = 1.0f / (float)(counted > 0 ? counted : 1);"""
_INSIDE = """static __device__ inline int inside(int from, int size, int apart, int low, int high) {
    int found = 0;
    for (int k = 0; k < size; ++k) found += from + k * apart >= low && from + k * apart < high;
    return found;
}
"""
_MIDDLE = "float own[W]; take<P>(own, image + (long long)(top + r + PY) * x_oy);"
_LOWEST = "-__int_as_float(0x7f800000)"
#: By kind: first value, how ``a`` and ``b`` are combined, value of an element, and result of a window.
_KINDS = {
    "max_pool": (_LOWEST, "fmaxf(a, b)", "own[e]", "", "part[r][e]"),
    "average_pool": ("0.0f", "a + b", "own[e]", _COUNT, "part[r][e] * share"),
    "local_response_norm": (
        "0.0f",
        "a + b",
        "own[e] * own[e]",
        _MIDDLE,
        "own[e] / powf(bias + scale * part[r][e], beta)",
    ),
}


def pool(op: MaxPool | AveragePool, x: View, y: View) -> KernelCall:
    """A pooling over one or two spatial dimensions; raises BackendError for more."""
    rank = len(op.kernel)
    if rank > 2:
        raise BackendError(f"no kernel pools over {rank} dimensions; only over one or two")
    include = isinstance(op, AveragePool) and op.count_include_pad
    before, after = ((0, *pads)[-2:] for pads in (op.pads[:rank], op.pads[rank:]))
    window = ((1, *op.kernel)[-2:], (1, *op.strides)[-2:], before, (1, *op.dilations)[-2:])
    inside = (before, after) if include else ((0, 0), (0, 0))
    name = "max_pool" if isinstance(op, MaxPool) else "average_pool"
    return _over_windows(name, (*window, *inside), x.planar, y.planar)


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
    numbers = {"bias": op.bias, "scale": op.alpha / op.size, "beta": op.beta}
    more = {f"float {name}": np.float32(number) for name, number in numbers.items()}
    return _over_windows("local_response_norm", window, x, y, more)


def _over_windows(
    name: str, window: _Pairs, x: View, y: View, more: Mapping[str, Argument] | None = None
) -> KernelCall:
    """A call for images ``[N, C, H, W]``: a thread for a few rows of an access's channels."""
    order = sorted(range(4), key=lambda axis: -y.strides[axis] if y.shape[axis] > 1 else -math.inf)
    strides = [[view.strides[axis] for axis in (0, 2, 3, 1)] for view in (x, y)]
    width = access_width(y, strides[1]) if strides[0][-1] == strides[1][-1] == 1 else 1
    while y.shape[1] % width:
        width //= 2
    constants = {"W": width, "P": min(width, access_width(x, strides[0])), "Q": width, "R": 1}
    for key, pair in zip(("K", "S", "P", "D", "LOW", "HIGH"), window, strict=True):
        constants |= {f"{key}Y": pair[0], f"{key}X": pair[1]}
    if constants["KY"] > constants["SY"]:
        constants["R"] = next((n for n in (4, 2) if y.elements // width >= n * ENOUGH_THREADS), 1)
    reach = (constants["R"] - 1) * constants["SY"] + (constants["KY"] - 1) * constants["DY"] + 1
    sizes = (y.shape[0], y.shape[1] // width, -(-y.shape[2] // constants["R"]), y.shape[3])
    start, combined, value, finish, result = _KINDS[name]
    words = {"START": start, "VALUE": value, "FINISH": finish, "RESULT": result}
    words["UNROLLED"] = "1" * (reach * constants["KX"] > _MOST_UNROLLED)
    return kernel(
        name,
        re.sub(r"\b[A-Z]{5,}\b", lambda found: words.get(found[0], found[0]), _BODY),
        {"x": x, "y": y},
        dict(zip(_AXES, zip(x.strides, y.strides, strict=True), strict=True)),
        {_AXES[axis]: sizes[axis] for axis in order},
        constants=constants,
        functions=f"static __device__ inline float combined(float a, float b) {{ return {combined}; }}\n" + _INSIDE,
        more={"out_h": y.shape[2], "h": x.shape[2], "w": x.shape[3], **(more or {})},
    )
