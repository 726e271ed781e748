"""Entries picked along one axis by indices: constant ones, or computed at run time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iossim.backends.cupy_cudnn.element_types import element_name, typed
from iossim.backends.cupy_cudnn.views import KernelCall, View, coalesced, int32s, over_elements

#: Arguments: elements of the output; sizes of the axis there and in the input, and of what lies behind it; the indices,
#: of which negative ones count from the end and none reaches outside; then input and output, each with its steps before
#: the axis, along it and behind it.
GATHER = """extern "C" __global__ void gather(unsigned int elements, unsigned int picked, int size, unsigned int inner,
    const index_t* indices, const in_t* x, int x0, int x1, int x2, out_t* y, int y0, int y1, int y2) {
    unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
    if (rest >= elements) return;
    const long long i2 = rest % inner; rest /= inner;
    const long long i1 = rest % picked;
    const long long i0 = rest / picked;
    const long long given = indices[i1], entry = given < 0 ? given + size : given;
    y[i0 * y0 + i1 * y1 + i2 * y2] = x[i0 * x0 + (entry < 0 ? 0 : entry < size ? entry : size - 1) * x1 + i2 * x2];
}
"""


def gather(x: View, y: View, indices: View, axis: int) -> KernelCall:
    """``x`` at the flat ``indices`` along ``axis`` to ``y``, whose same axis has one entry an index.

    Both step evenly through the axes before it, and through those behind it (:func:`steps_evenly`).
    """
    picked = indices.elements
    inner = y.shape[axis + 1 :]
    steps = [*_steps(x, axis), *_steps(y, axis)]
    sizes = (np.uint32(picked), np.int32(x.shape[axis]), np.uint32(max(1, int(np.prod(inner)))))
    arguments = (np.uint32(y.elements), *sizes, indices, x, *int32s(steps[:3]), y, *int32s(steps[3:]))
    source = f"typedef {element_name(indices.dtype)} index_t;\n{typed(GATHER, x, y)}"
    return over_elements(source, "gather", y.elements, arguments)


def steps_evenly(view: View, axis: int) -> bool:
    """Whether the axes before one, and those behind it, are each walked in equal steps."""
    return all(len(coalesced(*part)[0]) == 1 for part in _parts(view, axis))


def _steps(view: View, axis: int) -> tuple[int, int, int]:
    before, behind = (coalesced(*part)[1][0][0] for part in _parts(view, axis))
    return before, view.strides[axis], behind


def _parts(view: View, axis: int) -> list[tuple[Sequence[int], list[tuple[int, ...]]]]:
    return [(view.shape[part], [view.strides[part]]) for part in (slice(axis), slice(axis + 1, None))]
