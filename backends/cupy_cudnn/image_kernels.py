"""Kernels that read a neighbourhood of each element of an image, or write images of other sizes: pooling windows,
normalisation across channels, channels padded, and axes resampled by tables.

Of windows a thread makes a few outputs below each other, of neighbouring channels where those lie innermost: what
several windows read is read once, and stays in registers. Windows are constants of the text, images are not. Averages
count what :mod:`iossim.ir.ops.pool` counts: padding only with ``count_include_pad``.

Tensor cores take 16 bytes of channels at once. Three colours are padded to 4 or 8, 78 channels to 80; filters have
zeros there once, when they are uploaded, so that what stands in padding reaches no output.

Of a resampled axis each element is a weighted sum of entries, which the tables of its places name: so are resized
images, whatever the mode, and edges that are repeated or mirrored. The text depends on which axes have a table and on
the element types alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from iossim.backends.cupy_cudnn.element_kernels import functions_of
from iossim.backends.cupy_cudnn.kernel_text import ENOUGH_THREADS, access_width, filled, kernel, walked
from iossim.backends.cupy_cudnn.views import Argument, KernelCall, View, coalesced
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.execution.backend import BackendError
from iossim.ir.op import Array
from iossim.ir.ops.grid_sample import PADDINGS, GridSample
from iossim.ir.ops.normalization import LocalResponseNorm
from iossim.ir.ops.pool import AveragePool, MaxPool
from iossim.ir.types import DType, TensorType

#: The indices of an output; strides are named after them.
_AXES = ("n", "c", "oy", "ox")
#: Elements of a thread's window that are written out one by one; the rows of larger windows are a loop.
_MOST_UNROLLED = 64

#: Constants of the source: W channels per access, P of them per read, Q per write; R outputs per thread, one below the
#: other; and, (Y, X) each, kernel K, strides S, padding before P, dilations D, and how far averaged elements reach
#: beyond the image at its start (LOW) and end (HIGH).
_WINDOW = """const int channel = c * W, top = oy * R * SY - PY, left = ox * SX - PX;
x_t* image = x + (long long)n * x_n + (long long)channel * x_c;
y_t* made = y + (long long)n * y_n + (long long)channel * y_c + (long long)ox * y_ox;
float part[R][W];
#pragma unroll
for (int r = 0; r < R; ++r) ELEMENTS part[r][e] = $START;
#pragma unroll $UNROLLED
for (int row = 0; row < (R - 1) * SY + (KY - 1) * DY + 1; ++row) {
    const int iy = top + row;
    if (iy < 0 || iy >= h) continue;
    float line[W];
    ELEMENTS line[e] = $START;
    #pragma unroll $UNROLLED
    for (int kx = 0; kx < KX; ++kx) {
        const int ix = left + kx * DX;
        if (ix < 0 || ix >= w) continue;
        float own[W];
        take<P>(own, image + (long long)iy * x_oy + (long long)ix * x_ox);
        ELEMENTS line[e] = combined(line[e], $VALUE);
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
    $FINISH
    y_t out[W];
    ELEMENTS out[e] = $RESULT;
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
_NORMALISED = "own[e] / powf(bias + scale * part[r][e], beta)"
_LOWEST = "-__int_as_float(0x7f800000)"
#: By kind: first value, how ``a`` and ``b`` are combined, value of an element, and result of a window.
_KINDS = {
    "max_pool": (_LOWEST, "larger(a, b)", "own[e]", "", "part[r][e]"),
    "average_pool": ("0.0f", "a + b", "own[e]", _COUNT, "part[r][e] * share"),
    "local_response_norm": ("0.0f", "a + b", "own[e] * own[e]", _MIDDLE, _NORMALISED),
}
#: Channels of 16 bits that lie in 16 bytes; so few as the second are read 8 bytes at a time, too.
FITTING, FEW = 8, 4
_PADDED = """const x_t* from = $x;
y_t made[W];
ELEMENTS {
    const float a0 = first * W + e < CHANNELS ? (float)from[(long long)e * x_c] : 0.0f;
    made[e] = first * W + e < CHANNELS ? $PROLOGUE : 0.0f;
}
put<W>($y, made);
"""
_RESAMPLED = """x_t* from = $x;
float sum = 0.0f;
$LOOPS{ sum += $WEIGHT * from[$ENTRY]; }
*($y) = sum;
"""
#: Over the entries of an axis; those that weigh nothing are not read.
_LOOP = """for (int k@ = 0; k@ < taps@; ++k@)
if (const float w@ = weights@[i@ * taps@ + k@]; w@ != 0.0f)
"""
#: The entry of an axis at a place, which may be outside of the image; -1 is none.
_NEIGHBOURS = """static __device__ inline int entry_of(int place, int size) {
    const int period = size > ALIGNED ? 2 * (size - ALIGNED) : 1, rest = (place % period + period) % period;
    if (PADDING == 2) return rest < size ? rest : period - 1 + ALIGNED - rest;
    return place >= 0 && place < size ? place : PADDING == 0 ? -1 : place < 0 ? 0 : size - 1;
}
static __device__ inline float position_of(float given, int size) {
    const float at = (given + 1.0f) * (0.5f * (size - ALIGNED)) - 0.5f * (1 - ALIGNED);
    return TAPS == 1 ? rintf(at) : at;
}
"""
_SAMPLED = """x_t* from = $x;
g_t* at = $g;
const float across = position_of((float)at[0], width), down = position_of((float)at[g_axis], height);
const float left = floorf(across), top = floorf(down);
float sum = 0.0f;
for (int k = 0; k < TAPS; ++k) {
    const int column = entry_of((int)left + k % 2, width), row = entry_of((int)top + k / 2, height);
    const float weight = fabsf(1 - k % 2 - (across - left)) * fabsf(1 - k / 2 - (down - top));
    if (column >= 0 && row >= 0) sum += weight * from[(long long)row * x_row + (long long)column * x_column];
}
*($y) = sum;
"""


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
    name: str, window: Sequence[tuple[int, ...]], x: View, y: View, more: Mapping[str, Argument] | None = None
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
        filled(_WINDOW, **words),
        {"x": x, "y": y},
        dict(zip(_AXES, zip(x.strides, y.strides, strict=True), strict=True)),
        {_AXES[axis]: sizes[axis] for axis in order},
        constants=constants,
        functions=f"static __device__ inline float combined(float a, float b) {{ return {combined}; }}\n" + _INSIDE,
        more={"out_h": y.shape[2], "h": x.shape[2], "w": x.shape[3], **(more or {})},
    )


def fitting(channels: int) -> list[int]:
    """The numbers of channels to which so many may be padded; itself where they fit."""
    whole = -(-channels // FITTING) * FITTING
    return [FEW, whole] if channels <= FEW else [whole]


def padded(x: View, y: View, prologue: str) -> KernelCall:
    """``prologue`` (in ``a0``) of images, padded with zeros to dense ones of more channels, which lie innermost."""
    width = min(FITTING, y.shape[1])
    places, steps = walked((x, y), (0, *range(2, len(y.shape))), "i")
    steps |= {"first": (width * x.strides[1], width), "c": (x.strides[1], 1)}
    return kernel(
        "pad_channels",
        filled(_PADDED, PROLOGUE=prologue),
        {"x": x, "y": y},
        steps,
        places | {"first": y.shape[1] // width},
        constants={"W": width, "CHANNELS": x.shape[1]},
        functions=functions_of(prologue),
    )


def resample(x: View, y: View, tables: Mapping[int, Array], weights: Weights) -> KernelCall:
    """``x`` to ``y``, of which each axis of ``tables`` is a matrix ``[y's size, x's size]`` times that of ``x``.

    Axes are walked in the order in which ``y`` lies, so that neighbouring threads write neighbours.
    """
    order = sorted(range(len(y.shape)), key=lambda axis: -abs(y.strides[axis]))
    places: dict[str, int] = {}
    strides: dict[str, tuple[int, int]] = {}
    more: dict[str, Argument] = {}
    loops, factors, entries = "", ["1.0f"], ["0"]
    for has_table, run in groupby(order, lambda axis: axis in tables):
        axes = list(run)
        walked = [[view.strides[axis] for axis in axes] for view in (x, y)]
        sizes = [y.shape[axis] for axis in axes]
        if not has_table:
            sizes, walked = coalesced(sizes, walked)
        for axis, size, of_x, of_y in zip(axes, sizes, *walked, strict=False):
            place = len(places)
            places[f"i{place}"] = size
            strides[f"i{place}"] = (0 if has_table else of_x, of_y)
            if has_table:
                strides[f"e{place}"] = (of_x, 0)
                names = f"int taps{place}", f"const int* entries{place}", f"const float* weights{place}"
                more |= zip(names, _uploaded(tables[axis], weights), strict=True)
                loops += _LOOP.replace("@", str(place))
                factors.append(f"w{place}")
                entries.append(f"(long long)entries{place}[i{place} * taps{place} + k{place}] * x_e{place}")
    body = filled(_RESAMPLED, LOOPS=loops, WEIGHT=" * ".join(factors), ENTRY=" + ".join(entries))
    return kernel("resample", body, {"x": x, "y": y}, strides, places, more=more)


def grid_sample(op: GridSample, x: View, grid: View, y: View) -> KernelCall:
    """``x`` at the positions of ``grid``; a thread for each element, in the order in which ``y`` lies."""
    positions = grid.strides[0], 0, *grid.strides[1:3]
    steps = list(zip((*x.strides[:2], 0, 0), y.strides, positions, strict=True))
    order = sorted(range(4), key=lambda axis: -abs(y.strides[axis]))
    others = {"row": (x.strides[2], 0, 0), "column": (x.strides[3], 0, 0), "axis": (0, 0, grid.strides[3])}
    taps = 1 if op.mode == "nearest" else 4
    return kernel(
        "grid_sample",
        _SAMPLED,
        {"x": x, "y": y, "g": grid},
        {f"i{axis}": steps[axis] for axis in order} | others,
        {f"i{axis}": y.shape[axis] for axis in order},
        constants={"ALIGNED": int(op.align_corners), "PADDING": PADDINGS.index(op.padding), "TAPS": taps},
        functions=_NEIGHBOURS,
        more={"height": x.shape[2], "width": x.shape[3]},
    )


def _uploaded(matrix: Array, weights: Weights) -> tuple[np.int32, View, View]:
    """Number of entries that an element sums, their positions, and their weights."""
    most = int((matrix != 0).sum(axis=1).max())
    entries = np.argsort(matrix == 0, axis=1, kind="stable")[:, :most]
    found = np.take_along_axis(matrix, entries, axis=1)
    key = f"{matrix.shape} {hashlib.sha256(matrix.tobytes()).hexdigest()}"
    return (
        np.int32(most),
        weights.form(f"entries {key}", TensorType(entries.shape, DType.INT32), lambda: entries),
        weights.form(f"weights of entries {key}", TensorType(entries.shape), lambda: found),
    )
