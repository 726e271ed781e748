"""Axes resampled by tables: each element is a weighted sum of entries, which the tables of its places name.

So are resized images, whatever the mode, and edges that are repeated or mirrored. The text depends on which axes have a
table and on the element types alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import groupby

import numpy as np

from iossim.backends.cupy_cudnn.element_types import typed
from iossim.backends.cupy_cudnn.views import Argument, KernelCall, View, coalesced, int32s, over_threads
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.ir.op import Array
from iossim.ir.types import DType, TensorType

NAME = "resample"


def resample(x: View, y: View, tables: Mapping[int, Array], weights: Weights) -> KernelCall:
    """``x`` to ``y``, of which each axis of ``tables`` is a matrix ``[y's size, x's size]`` times that of ``x``.

    Axes are walked in the order in which ``y`` lies, so that neighbouring threads write neighbours.
    """
    order = sorted(range(len(y.shape)), key=lambda axis: -abs(y.strides[axis]))
    sizes: list[int] = []
    steps: list[list[int]] = [[], []]
    tabled: dict[int, Array] = {}
    for has_table, run in groupby(order, lambda axis: axis in tables):
        axes = list(run)
        if has_table:
            tabled.update((len(sizes) + place, tables[axis]) for place, axis in enumerate(axes))
            found = [y.shape[axis] for axis in axes], [[view.strides[axis] for axis in axes] for view in (x, y)]
        else:
            found = coalesced([y.shape[a] for a in axes], [[view.strides[a] for a in axes] for view in (x, y)])
        sizes += found[0]
        steps = [[*own, *more] for own, more in zip(steps, found[1], strict=True)]
    arguments: list[Argument] = [np.uint32(y.elements), *(np.uint32(size) for size in sizes[1:])]
    for matrix in tabled.values():
        arguments += _uploaded(matrix, weights)
    arguments += [x, *int32s(steps[0]), y, *int32s(steps[1])]
    return over_threads(typed(_source(len(sizes), tuple(tabled)), x, y), NAME, y.elements, tuple(arguments))


def _uploaded(matrix: Array, weights: Weights) -> tuple[np.int32, View, View]:
    """How many entries an element sums, which they are, and what they weigh; those that weigh nothing are not read."""
    most = int((matrix != 0).sum(axis=1).max())
    entries = np.argsort(matrix == 0, axis=1, kind="stable")[:, :most]
    found = np.take_along_axis(matrix, entries, axis=1)
    key = f"{matrix.shape} {hashlib.sha256(matrix.tobytes()).hexdigest()}"
    return (
        np.int32(most),
        weights.form(f"entries {key}", TensorType(entries.shape, DType.INT32), lambda: entries),
        weights.form(f"weights of entries {key}", TensorType(entries.shape), lambda: found),
    )


def _source(axes: int, tabled: tuple[int, ...]) -> str:
    parameters = ["unsigned int elements", *(f"unsigned int n{axis}" for axis in range(1, axes))]
    for axis in tabled:
        parameters += [f"int taps{axis}", f"const int* entries{axis}", f"const float* weights{axis}"]
    for pointer, step in (("const in_t* x", "x"), ("out_t* y", "y")):
        parameters += [pointer, *(f"int {step}{axis}" for axis in range(axes))]
    body = [f"const long long i{axis} = rest % n{axis}; rest /= n{axis};" for axis in range(axes - 1, 0, -1)]
    plain = " + ".join([f"i{axis} * x{axis}" for axis in range(axes) if axis not in tabled] or ["0"])
    body += ["const long long i0 = rest;", "float sum = 0.0f;", f"const in_t* from = x + ({plain});"]
    place, weight = [], []
    for axis in tabled:
        body += [
            f"for (int k{axis} = 0; k{axis} < taps{axis}; ++k{axis}) {{",
            f"const float w{axis} = weights{axis}[i{axis} * taps{axis} + k{axis}];",
            f"if (w{axis} == 0.0f) continue;",
            f"const long long e{axis} = entries{axis}[i{axis} * taps{axis} + k{axis}];",
        ]
        place.append(f"e{axis} * x{axis}")
        weight.append(f"w{axis}")
    body += [f"sum += {' * '.join(weight)} * from[{' + '.join(place)}];", "}" * len(tabled)]
    body.append(f"y[{' + '.join(f'i{axis} * y{axis}' for axis in range(axes))}] = sum;")
    lines = "\n    ".join(body)
    return f"""extern "C" __global__ void {NAME}({", ".join(parameters)}) {{
    unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
    if (rest >= elements) return;
    {lines}
}}
"""
