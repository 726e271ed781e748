"""Kernels in which threads work on one row together: pooling, reductions, softmax, norms of layers and of groups.

A row is a run of equally spaced elements. Where its elements are neighbours, a few threads take accesses of it in turn
(a warp, up to eight for long rows), keep them in registers if they are few, and combine what they found by shuffles.
Where the rows are neighbours (channels of images with channels innermost), a thread folds an access's width of rows,
and the threads of a block share their lengths. Both combine in an order of their own that is always the same, so
that results do not change from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from iossim.backends.cupy_cudnn.kernel_text import access_width, access_widths, kernel
from iossim.backends.cupy_cudnn.views import BLOCK_THREADS, ENOUGH_BLOCKS, Argument, KernelCall, View, coalesced
from iossim.execution.backend import BackendError
from iossim.ir.ops.normalization import GroupNorm, InstanceNorm

WARP = 32
#: Accesses of a row that a thread keeps in registers, and neighbouring threads that fold neighbouring rows.
_MOST_HELD, _LANES = 4, 8

_LOWEST = "-__int_as_float(0x7f800000)"
#: Folds to one number: where they begin, how numbers are combined, and the result.
_FOLDS = {
    "global_average_pool": ("0.0f", "sum", "part / (float)length"),
    "global_max_pool": (_LOWEST, "larger", "part"),
    "reduce_sum": ("0.0f", "sum", "part"),
}
_COMBINED = """static __device__ inline float sum(float a, float b) { return a + b; }
static __device__ inline float larger(float a, float b) { return fmaxf(a, b); }
"""
_OF_ROW = """#define OF_ROW(name, combined) static __device__ inline float name(float part, float* shared) { \\
    for (int other = WARP / 2; other > 0; other /= 2) \\
        part = combined(part, __shfl_xor_sync(0xffffffffu, part, other)); \\
    if (T > WARP) { \\
        __syncthreads(); \\
        shared[threadIdx.x / WARP] = part; \\
        __syncthreads(); \\
        part = shared[0]; \\
        for (int warp = 1; warp < T / WARP; ++warp) part = combined(part, shared[warp]); \\
    } \\
    return part; \\
}
OF_ROW(row_sum, sum)
OF_ROW(row_larger, larger)
"""
#: Constants of the text: W elements of an access, P of them by one read, Q by one write, O of further operands; T
#: threads a row, and K accesses that each holds, or 0 where all are read anew each time. Rows past the last are empty.
_ROW = """__shared__ float shared[T / WARP];
const unsigned int number = blockIdx.x * (blockDim.x / T) + threadIdx.x / T;
$places
const int thread = threadIdx.x % T, length = number < count ? elements : 0;
x_t* from = $x;
y_t* to = $y;
float held[HELD][W];
#pragma unroll
for (int k = 0; k < K; ++k) {
    const int i = (k * T + thread) * W;
    if (i < length) take<P>(held[k], from + (long long)i * x_i);
}
auto each = [&](auto use) {
    #pragma unroll HELD
    for (int k = 0; K == 0 || k < K; ++k) {
        const int i = (k * T + thread) * W;
        if (i >= length) break;
        if (K == 0) take<P>(held[0], from + (long long)i * x_i);
        use(held[K == 0 ? 0 : k], i);
    }
};
"""
_FOLD = """float part = START;
each([&](float (&v)[W], int) { ELEMENTS part = COMBINED(part, v[e]); });
part = row_COMBINED(part, shared);
if (thread == 0 && length > 0) *to = RESULT;
"""
_SOFTMAX = """float largest = LOWEST, total = 0.0f;
each([&](float (&v)[W], int) { ELEMENTS largest = fmaxf(largest, v[e]); });
largest = row_larger(largest, shared);
each([&](float (&v)[W], int) { ELEMENTS { v[e] = expf(v[e] - largest); total += v[e]; } });
const float share = 1.0f / row_sum(total, shared);
each([&](float (&v)[W], int i) {
    y_t out[W];
    ELEMENTS out[e] = (K == 0 ? expf(v[e] - largest) : v[e]) * share;
    put<Q>(to + (long long)i * y_i, out);
});
""".replace("LOWEST", _LOWEST)
_NORM = """const float mean = MEAN;
float squares = 0.0f;
each([&](float (&v)[W], int) { ELEMENTS squares += (v[e] - mean) * (v[e] - mean); });
const float inverse = 1.0f / sqrtf(row_sum(squares, shared) / (float)elements + epsilon);
each([&](float (&v)[W], int i) {
    float factor[W], term[W] = {};
    take<O>(factor, scale + i);
    TERM
    y_t out[W];
    ELEMENTS out[e] = (v[e] - mean) * inverse * factor[e] + term[e];
    put<Q>(to + (long long)i * y_i, out);
});
"""
_TOTAL = """float total = 0.0f;
each([&](float (&v)[W], int) { ELEMENTS total += v[e]; });
"""
_LAYER_NORM = _TOTAL + _NORM.replace("MEAN", "row_sum(total, shared) / (float)elements").replace(
    "TERM", "take<O>(term, shift + i);"
)
_RMS_NORM = _NORM.replace("MEAN", "0.0f").replace("TERM\n", "\n")
_OF_ROWS = {"softmax": _SOFTMAX, "layer_norm": _LAYER_NORM, "rms_norm": _RMS_NORM}
#: A block of T threads for each group of CHANNELS, which lie along an inner axis (where they are LAST) or an outer one.
_GROUP_NORM = """__shared__ float shared[T / WARP];
$places
const int packs = inner / W, length = outer * packs;
const float size = (float)length * W;
x_t* from = $x;
y_t* to = $y;
auto each = [&](auto use) {
    for (int k = threadIdx.x; k < length; k += T) {
        const int o = k / packs, i = (k - o * packs) * W;
        float v[W];
        take<P>(v, from + (long long)o * x_o + (long long)i * x_i);
        use(v, o, i);
    }
};
float total = 0.0f, squares = 0.0f;
each([&](float (&v)[W], int, int) { ELEMENTS total += v[e]; });
const float mean = row_sum(total, shared) / size;
each([&](float (&v)[W], int, int) { ELEMENTS squares += (v[e] - mean) * (v[e] - mean); });
const float deviation = sqrtf(row_sum(squares, shared) / size + epsilon);
each([&](float (&v)[W], int o, int i) {
    y_t out[W];
    ELEMENTS {
        const long long c = g * CHANNELS + (LAST ? i + e : o);
        out[e] = (v[e] - mean) / deviation * s[c * s_c] + b[c * b_c];
    }
    put<Q>(to + (long long)o * y_o + (long long)i * y_i, out);
});
"""
#: Threads of a block share rows among LANES, and lengths among SHARES, of which each has a power of two.
_COLUMNS = """__shared__ float shared[W][LANES * SHARES];
$places
const int lane = threadIdx.x % LANES, member = threadIdx.x / LANES, column = (inner * LANES + lane) * W;
const bool is_row = column < columns;
float folded[W];
ELEMENTS folded[e] = START;
#pragma unroll 4
for (int i = member; is_row && i < length; i += SHARES) {
    float v[W];
    take<P>(v, $x + (long long)column * x_column + (long long)i * x_i);
    ELEMENTS folded[e] = COMBINED(folded[e], v[e]);
}
for (int half = SHARES / 2; half > 0; half /= 2) {
    ELEMENTS shared[e][threadIdx.x] = folded[e];
    __syncthreads();
    ELEMENTS if (member < half) folded[e] = COMBINED(folded[e], shared[e][threadIdx.x + half * LANES]);
    __syncthreads();
}
if (member > 0 || !is_row) return;
y_t out[W];
ELEMENTS { const float part = folded[e]; out[e] = RESULT; }
put<Q>($y + (long long)column * y_column, out);
"""


_REDUCTIONS = {"sum": "reduce_sum", "mean": "global_average_pool", "max": "global_max_pool"}


def reduction(function: str, x: View, y: View, axes: Sequence[int]) -> KernelCall:
    """``x`` over ``axes``, which are of one element in ``y``; raises BackendError for other functions than three."""
    if function not in _REDUCTIONS:
        raise BackendError(f"no kernel reduces to {function}, only {', '.join(_REDUCTIONS)}; use another backend")
    return _over_rows(_REDUCTIONS[function], x, y, list(axes))


def softmax(x: View, y: View, axes: Sequence[int]) -> KernelCall:
    """Softmax over ``axes``, which are neighbours, of views of one shape."""
    return _over_rows("softmax", x, y, list(axes))


def layer_norm(x: View, y: View, scale: View, shift: View | None, first: int, epsilon: float) -> KernelCall:
    """Normalisation over axis ``first`` and all later ones; without a shift, RMS normalisation.

    Raises BackendError unless scale and shift are dense, with a value per element.
    """
    name, needed = ("rms_norm", "a scale") if shift is None else ("layer_norm", "a scale and a shift")
    axes, size = list(range(first, len(x.shape))), math.prod(x.shape[first:])
    parameters = {"x_t* scale": scale} | ({} if shift is None else {"x_t* shift": shift})
    if not all(view.is_dense and view.elements == size and view.dtype == x.dtype for view in parameters.values()):
        raise BackendError(f"{name} takes {needed} of the shape of a row; write what it takes out")
    return _over_rows(name, x, y, axes, {**parameters, "float epsilon": np.float32(epsilon)})


def group_norm(op: GroupNorm | InstanceNorm, x: View, scale: View, shift: View, y: View) -> KernelCall:
    """``x [N, C, ...]`` to ``y``; ``scale`` and ``shift`` are ``[C]``. Raises BackendError for uneven steps."""
    groups = op.groups if isinstance(op, GroupNorm) else x.shape[1]
    places, steps = coalesced(x.shape[2:], [x.strides[2:], y.strides[2:]])
    if len(places) > 1:
        raise BackendError("group_norm takes images whose places are equally spaced; copy them first")
    channels, is_last = x.shape[1] // groups, x.strides[1] == 1 and x.shape[1] > groups
    of_channels, of_places = (x.strides[1], y.strides[1]), (steps[0][0], steps[1][0])
    (inner, near), (outer, far) = (channels, of_channels), (places[0], of_places)
    if not is_last:
        (inner, near), (outer, far) = (outer, far), (inner, near)
    walked = [(v.strides[0], channels * v.strides[1], *own) for v, *own in zip((x, y), far, near, strict=True)]
    width, (read, written) = access_widths((x, y), walked, inner)
    threads = WARP
    while threads < BLOCK_THREADS and threads * width < inner * outer:
        threads *= 2
    axes = dict(zip(("n", "g", "o", "i"), ((*pair, 0, 0) for pair in zip(*walked, strict=True)), strict=True))
    return kernel(
        "group_norm",
        _GROUP_NORM,
        {"x": x, "y": y, "s": scale, "b": shift},
        axes | {"c": (0, 0, *scale.strides, *shift.strides)},
        {"n": x.shape[0], "g": groups},
        place="blockIdx.x",
        constants={"W": width, "P": read, "Q": written, "T": threads, "WARP": WARP, "CHANNELS": channels}
        | {"LAST": int(is_last)},
        functions=_COMBINED + _OF_ROW,
        more={"inner": inner, "outer": outer, "float epsilon": np.float32(op.epsilon)},
        grid=(x.shape[0] * groups, threads),
    )


def _over_rows(name: str, x: View, y: View, axes: list[int], more: Mapping[str, Argument] | None = None) -> KernelCall:
    """A row for each place of the axes that are not ``axes``; raises BackendError unless these are equally spaced."""
    is_fold = name in _FOLDS
    inside = [x.strides] if is_fold else [x.strides, y.strides]
    lengths, steps = coalesced([x.shape[a] for a in axes], [[own[a] for a in axes] for own in inside])
    others = [axis for axis in range(len(x.shape)) if axis not in axes]
    sizes, strides = coalesced([x.shape[a] for a in others], [[v.strides[a] for a in others] for v in (x, y)])
    if len(lengths) > 1:
        raise BackendError(f"{name} takes tensors whose rows are equally spaced; copy them first")
    (length,), ((step, *_), *_) = lengths, steps
    rows = math.prod(sizes)
    if is_fold and step != 1 and strides[0][-1] == 1 and sizes[-1] > 1:
        return _over_columns(name, x, y, length, step, sizes, strides)
    views, walked = ((x,), strides[:1]) if is_fold else ((x, y), strides)
    width, own = access_widths(views, [[*far, *near] for far, near in zip(walked, steps, strict=True)], length)
    accesses, threads = length // width, WARP
    while threads < BLOCK_THREADS and accesses > _MOST_HELD * threads:
        threads *= 2
    block = threads
    while threads == WARP and block < 4 * WARP and rows >= 2 * ENOUGH_BLOCKS * (block // threads):
        block *= 2
    held = -(-accesses // threads) if accesses <= _MOST_HELD * threads else 0
    constants = {"W": width, "P": own[0], "Q": own[-1], "T": threads, "WARP": WARP, "K": held, "HELD": held or 1}
    constants["O"] = min(
        [width, *(access_width(item, (1,)) for item in (more or {}).values() if isinstance(item, View))]
    )
    return kernel(
        name,
        _ROW + (_folding(name, _FOLD) if is_fold else _OF_ROWS[name]),
        {"x": x, "y": y},
        {f"r{axis}": own for axis, own in enumerate(zip(*strides, strict=True))} | {"i": (step, steps[-1][0])},
        {f"r{axis}": size for axis, size in enumerate(sizes)},
        place="(number < count ? number : 0)",
        constants=constants,
        functions=_COMBINED + _OF_ROW,
        more={"elements": length, **(more or {})},
        grid=(-(-rows * threads // block), block),
    )


def _over_columns(
    name: str, x: View, y: View, length: int, step: int, sizes: list[int], strides: list[list[int]]
) -> KernelCall:
    """The fold of rows that lie beside each other, whose elements are ``step`` apart."""
    width, (read, written) = access_widths((x, y), ([step, *strides[0]], strides[1]), sizes[-1])
    shares = 1
    while shares < BLOCK_THREADS // _LANES and 2 * shares < length:
        shares *= 2
    lanes = BLOCK_THREADS // shares
    while lanes > _LANES and lanes * width >= 2 * sizes[-1]:
        lanes //= 2
    names = [*(f"r{axis}" for axis in range(len(sizes) - 1)), "inner"]
    chunks = [*sizes[:-1], -(-sizes[-1] // (width * lanes))]
    return kernel(
        name,
        _folding(name, _COLUMNS),
        {"x": x, "y": y},
        dict(zip([*names[:-1], "column", "i"], [*zip(*strides, strict=True), (step, 0)], strict=True)),
        dict(zip(names, chunks, strict=True)),
        place="blockIdx.x",
        more={"columns": sizes[-1], "length": length},
        constants={"W": width, "P": read, "Q": written, "LANES": lanes, "SHARES": shares},
        functions=_COMBINED,
        grid=(math.prod(chunks), lanes * shares),
    )


def _folding(name: str, body: str) -> str:
    start, combined, result = _FOLDS[name]
    return body.replace("START", start).replace("COMBINED", combined).replace("RESULT", result)
