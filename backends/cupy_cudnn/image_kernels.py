"""Kernels that write images of other sizes: channels padded, and axes resampled by tables.

Tensor cores take 16 bytes of channels at once. Three colours are padded to 4 or 8, 78 channels to 80; filters have
zeros there once, when they are uploaded, so that what stands in padding reaches no output.

Of a resampled axis each element is a weighted sum of entries, which the tables of its places name: so are resized
images, whatever the mode, and edges that are repeated or mirrored. The text depends on which axes have a table and on
the element types alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import groupby

import numpy as np

from iossim.backends.cupy_cudnn.element_kernels import functions_of
from iossim.backends.cupy_cudnn.kernel_text import kernel, walked
from iossim.backends.cupy_cudnn.views import Argument, KernelCall, View, coalesced
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.ir.op import Array
from iossim.ir.ops.grid_sample import PADDINGS, GridSample
from iossim.ir.types import DType, TensorType

#: Channels of 16 bits that lie in 16 bytes; so few as the second are read 8 bytes at a time, too.
FITTING, FEW = 8, 4
_PADDED = """const x_t* from = $x;
y_t made[W];
ELEMENTS {
    const float a0 = first * W + e < CHANNELS ? (float)from[(long long)e * x_c] : 0.0f;
    made[e] = first * W + e < CHANNELS ? PROLOGUE : 0.0f;
}
put<W>($y, made);
"""
_RESAMPLED = """x_t* from = $x;
float sum = 0.0f;
LOOPS{ sum += WEIGHT * from[ENTRY]; }
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
        _PADDED.replace("PROLOGUE", prologue),
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
    body = _RESAMPLED.replace("LOOPS", loops).replace("WEIGHT", " * ".join(factors))
    return kernel("resample", body.replace("ENTRY", " + ".join(entries)), {"x": x, "y": y}, strides, places, more=more)


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
