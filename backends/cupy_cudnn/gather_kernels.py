"""Entries picked along one axis by constant indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iossim.backends.cupy_cudnn.element_types import typed
from iossim.backends.cupy_cudnn.views import KernelCall, View, coalesced, int32s, over_elements

#: Arguments: elements of the output; sizes of the axis and of what lies behind it; the indices; then input and output,
#: each with its steps before the axis, along it and behind it.
GATHER = """extern "C" __global__ void gather(unsigned int elements, unsigned int picked, unsigned int inner,
    const int* indices, const in_t* x, int x0, int x1, int x2, out_t* y, int y0, int y1, int y2) {
    unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
    if (rest >= elements) return;
    const long long i2 = rest % inner; rest /= inner;
    const long long i1 = rest % picked;
    const long long i0 = rest / picked;
    const float value = x[i0 * x0 + (long long)indices[i1] * x1 + i2 * x2];
    y[i0 * y0 + i1 * y1 + i2 * y2] = value;
}
"""


def gather(x: View, y: View, indices: View, axis: int) -> KernelCall:
    """``x`` at the flat ``indices`` along ``axis`` to ``y``, whose same axis has one entry an index.

    Both step evenly through the axes before it, and through those behind it (:func:`steps_evenly`).
    """
    picked = indices.elements
    inner = y.shape[axis + 1 :]
    steps = [*_steps(x, axis), *_steps(y, axis)]
    arguments = (np.uint32(picked), np.uint32(max(1, int(np.prod(inner)))), indices, x, *int32s(steps[:3]), y)
    return over_elements(
        typed(GATHER, x, y), "gather", y.elements, (np.uint32(y.elements), *arguments, *int32s(steps[3:]))
    )


def steps_evenly(view: View, axis: int) -> bool:
    """Whether the axes before one, and those behind it, are each walked in equal steps."""
    return all(len(coalesced(*part)[0]) == 1 for part in _parts(view, axis))


def _steps(view: View, axis: int) -> tuple[int, int, int]:
    before, behind = (coalesced(*part)[1][0][0] for part in _parts(view, axis))
    return before, view.strides[axis], behind


def _parts(view: View, axis: int) -> list[tuple[Sequence[int], list[tuple[int, ...]]]]:
    return [(view.shape[part], [view.strides[part]]) for part in (slice(axis), slice(axis + 1, None))]
