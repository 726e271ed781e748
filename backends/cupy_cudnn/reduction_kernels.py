"""Kernels in which a block works on one row together: global pooling, reductions, softmax, layer and RMS normalisation.

A row is a run of equally spaced elements; rows are numbered by up to three axes. Threads of a block take every so
manieth element of the row and then halve their number as they combine what they found, always in the same order, so
that results do not change from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from iossim.backends.cupy_cudnn.element_types import typed
from iossim.backends.cupy_cudnn.views import MOST_ELEMENTS, Argument, KernelCall, View, coalesced, int32s
from iossim.execution.backend import BackendError

ROW_AXES = 3

#: Arguments: elements of a row; sizes of the last two of the three axes of rows; then input and output, each with the
#: step inside a row and the strides of the three axes. A block has a power of two of threads, at most 256.
_HEAD = """extern "C" __global__ void {name}(int length, unsigned int rows1, unsigned int rows2,
    const in_t* x, int xi, int x0, int x1, int x2, out_t* y, int yi, int y0, int y1, int y2{more}) {{
    __shared__ float shared[256];
    unsigned int rest = blockIdx.x;
    const long long r2 = rest % rows2; rest /= rows2;
    const long long r1 = rest % rows1;
    const long long r0 = rest / rows1;
    const in_t* from = x + r0 * x0 + r1 * x1 + r2 * x2;
    out_t* to = y + r0 * y0 + r1 * y1 + r2 * y2;
    const int thread = threadIdx.x;
"""
_COMBINE = """    shared[thread] = part;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {{
        if (thread < half) {{
            const float other = shared[thread + half]; part = shared[thread]; shared[thread] = {combine};
        }}
        __syncthreads();
    }}
"""
_WALK = "for (int i = thread; i < length; i += blockDim.x)"
_LOWEST = "-__int_as_float(0x7f800000)"

_SUM = _COMBINE.format(combine="part + other")
_MAX = _COMBINE.format(combine="fmaxf(part, other)")


def _fold(name: str, begin: str, step: str, combine: str, end: str) -> str:
    """A kernel that makes one number of a row: from ``begin`` by a ``step`` an element, ``combine``, and ``end``."""
    walked = f"    float part = {begin};\n    {_WALK} {step};\n"
    return _HEAD.format(name=name, more="") + walked + combine + f"    if (thread == 0) *to = {end};\n}}\n"


_ADD, _LARGER = "part += from[(long long)i * xi]", "part = fmaxf(part, from[(long long)i * xi])"
GLOBAL_AVERAGE = _fold("global_average_pool", "0.0f", _ADD, _SUM, "shared[0] / (float)length")
GLOBAL_MAX = _fold("global_max_pool", _LOWEST, _LARGER, _MAX, "shared[0]")
REDUCE_SUM = _fold("reduce_sum", "0.0f", _ADD, _SUM, "shared[0]")
SOFTMAX = (
    _HEAD.format(name="softmax", more="")
    + f"    float part = {_LOWEST};\n    {_WALK} part = fmaxf(part, from[(long long)i * xi]);\n"
    + _MAX
    + "    const float largest = shared[0];\n    __syncthreads();\n"
    + f"    part = 0.0f;\n    {_WALK} part += expf(from[(long long)i * xi] - largest);\n"
    + _SUM
    + "    const float total = shared[0];\n"
    + f"    {_WALK} to[(long long)i * yi] = expf(from[(long long)i * xi] - largest) / total;\n"
    + "}\n"
)
#: Further arguments: the scale of each element of a row, dense, and what is added to the mean of squares.
RMS_NORM = (
    _HEAD.format(name="rms_norm", more=",\n    const in_t* scale, float epsilon")
    + "    float part = 0.0f;\n"
    + f"    {_WALK} {{ const float own = from[(long long)i * xi]; part += own * own; }}\n"
    + _SUM
    + "    const float root = sqrtf(shared[0] / (float)length + epsilon);\n"
    + f"    {_WALK} to[(long long)i * yi] = from[(long long)i * xi] / root * scale[i];\n"
    + "}\n"
)
#: Further arguments: scale and shift of each element of a row, dense, and what is added to the variance.
LAYER_NORM = (
    _HEAD.format(name="layer_norm", more=",\n    const in_t* scale, const in_t* shift, float epsilon")
    + f"    float part = 0.0f;\n    {_WALK} part += from[(long long)i * xi];\n"
    + _SUM
    + "    const float mean = shared[0] / (float)length;\n    __syncthreads();\n    part = 0.0f;\n"
    + f"    {_WALK} {{ const float off = from[(long long)i * xi] - mean; part += off * off; }}\n"
    + _SUM
    + "    const float deviation = sqrtf(shared[0] / (float)length + epsilon);\n"
    + f"    {_WALK} to[(long long)i * yi] = (from[(long long)i * xi] - mean) / deviation * scale[i] + shift[i];\n"
    + "}\n"
)


def global_pool(x: View, y: View, *, is_average: bool) -> KernelCall:
    """``x [N, C, ...]`` to ``y [N, C, 1, ...]``: the mean of each image, or its largest element."""
    source, name = (GLOBAL_AVERAGE, "global_average_pool") if is_average else (GLOBAL_MAX, "global_max_pool")
    return _over_rows(source, name, x, y, list(range(2, len(x.shape))))


_REDUCTIONS = {
    "sum": (REDUCE_SUM, "reduce_sum"),
    "mean": (GLOBAL_AVERAGE, "global_average_pool"),
    "max": (GLOBAL_MAX, "global_max_pool"),
}


def reduction(function: str, x: View, y: View, axes: Sequence[int]) -> KernelCall:
    """``x`` over ``axes``, which are of one element in ``y``; raises BackendError for other functions than three."""
    if function not in _REDUCTIONS:
        raise BackendError(f"no kernel reduces to {function}, only {', '.join(_REDUCTIONS)}; use another backend")
    return _over_rows(*_REDUCTIONS[function], x, y, list(axes))


def softmax(x: View, y: View, axes: Sequence[int]) -> KernelCall:
    """Softmax over ``axes``, which are neighbours, of views of one shape."""
    return _over_rows(SOFTMAX, "softmax", x, y, list(axes))


def layer_norm(x: View, y: View, scale: View, shift: View, first: int, epsilon: float) -> KernelCall:
    """Over axis ``first`` and all behind it; raises BackendError unless scale and shift are dense, one an element."""
    axes = list(range(first, len(x.shape)))
    size = int(np.prod([x.shape[axis] for axis in axes]))
    if not all(view.is_dense and view.elements == size and view.dtype == x.dtype for view in (scale, shift)):
        raise BackendError("layer_norm takes a scale and a shift of the shape of a row; write them out")
    return _over_rows(LAYER_NORM, "layer_norm", x, y, axes, (scale, shift, np.float32(epsilon)))


def rms_norm(x: View, y: View, scale: View, first: int, epsilon: float) -> KernelCall:
    """Over axis ``first`` and all behind it; raises BackendError unless the scale is dense, one an element."""
    axes = list(range(first, len(x.shape)))
    if not (scale.is_dense and scale.elements == math.prod(x.shape[first:]) and scale.dtype == x.dtype):
        raise BackendError("rms_norm takes a scale of the shape of a row; write it out")
    return _over_rows(RMS_NORM, "rms_norm", x, y, axes, (scale, np.float32(epsilon)))


def _over_rows(
    source: str, name: str, x: View, y: View, axes: list[int], more: tuple[Argument, ...] = ()
) -> KernelCall:
    """A block for each place of the axes that are not ``axes``; raises BackendError for other strides."""
    reduced = y.shape != x.shape
    inside = [x.strides] if reduced else [x.strides, y.strides]
    lengths, steps = coalesced([x.shape[a] for a in axes], [[own[a] for a in axes] for own in inside])
    others = [axis for axis in range(len(x.shape)) if axis not in axes]
    sizes, strides = coalesced([x.shape[a] for a in others], [[v.strides[a] for a in others] for v in (x, y)])
    if len(lengths) > 1 or len(sizes) > ROW_AXES:
        raise BackendError(f"{name} takes tensors whose rows are equally spaced; copy them first")
    missing = ROW_AXES - len(sizes)
    rows = int(np.prod(sizes))
    if rows * lengths[0] > MOST_ELEMENTS:
        raise BackendError(f"{name} takes at most {MOST_ELEMENTS} elements; take a smaller batch")
    sizes = [1] * missing + sizes
    padded = [[0] * missing + own for own in strides]
    threads = 32
    while threads < min(256, lengths[0]):
        threads *= 2
    arguments = (
        np.int32(lengths[0]),
        *(np.uint32(size) for size in sizes[1:]),
        x,
        *int32s([steps[0][0], *padded[0]]),
        y,
        *int32s([0 if reduced else steps[1][0], *padded[1]]),
        *more,
    )
    return KernelCall(typed(source, x, y), name, rows, threads, arguments)
