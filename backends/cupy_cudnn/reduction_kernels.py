"""Kernels in which threads work on one row together: pooling, reductions, softmax, norms of layers and of groups.

A row is what lies along some axes. Where its elements are neighbours, a few threads take accesses of it in turn (a
warp, up to eight for long rows), keep them in registers if they are few, and combine what they found by shuffles.
Where the rows are neighbours (channels of images with channels innermost), a thread folds an access's width of rows,
and the threads of a block share their lengths. Both combine in an order of their own that is always the same, so
that results do not change from run to run.

What a row is made of is an expression, as in :mod:`.element_kernels`: a residual sum before a norm, say. So is what
becomes of its results: the scale and shift of a norm, and whatever follows on it. Each operand is read once, as long
as the row is kept in registers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from iossim.backends.cupy_cudnn.element_kernels import AS_IT_IS, Computed, called, functions_of
from iossim.backends.cupy_cudnn.kernel_text import access_width, filled, kernel, read, value_name, widths_of
from iossim.backends.cupy_cudnn.views import BLOCK_THREADS, ENOUGH_BLOCKS, Argument, KernelCall, View, coalesced
from iossim.execution.backend import BackendError

WARP = 32
#: Accesses of a row that a thread keeps in registers, and neighbouring threads that fold neighbouring rows.
_MOST_HELD, _LANES = 4, 8

_LOWEST = "-__int_as_float(0x7f800000)"
_SUM, _MEAN, _LARGEST = "reduce_sum", "global_average_pool", "global_max_pool"
#: Kernels that fold to one number: where they begin, and how numbers are combined.
_FOLDS = {_SUM: ("0.0f", "sum"), _MEAN: ("0.0f", "sum"), _LARGEST: (_LOWEST, "larger")}
#: By function the kernel, the value of each element, and the result of a row of ``elements``.
_REDUCTIONS = {
    "sum": (_SUM, "{}", "a0"),
    "mean": (_MEAN, "{}", "a0 / (float)elements"),
    "max": (_LARGEST, "{}", "a0"),
    "min": (_LARGEST, "-({})", "-a0"),
    "l1": (_SUM, "fabsf({})", "a0"),
    "l2": (_SUM, called("square", "{}"), "sqrtf(a0)"),
    "log_sum": (_SUM, "{}", "logf(a0)"),
    "sum_square": (_SUM, called("square", "{}"), "a0"),
    "log_sum_exp": ("log_sum_exp", "{}", "a0"),
}
_COMBINED = "static __device__ inline float sum(float a, float b) { return a + b; }\n"
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
#: Constants of the text: W elements of an access, Q of them by one write; T threads a row, and K accesses that each
#: holds, or 0 where all are read anew each time. Rows past the last are empty.
_ROW = """__shared__ float shared[T / WARP];
const unsigned int number = blockIdx.x * (blockDim.x / T) + threadIdx.x / T;
$places
const int thread = threadIdx.x % T, length = number < count ? elements / W : 0;
$PLACED
auto load = [&](float (&v)[W], unsigned int step) {
    $inside
    $READ_BEFORE
    ELEMENTS { $NAMED_BEFORE v[e] = $VALUE; }
};
float held[HELD][W];
#pragma unroll
for (int k = 0; k < K; ++k) if (k * T + thread < length) load(held[k], k * T + thread);
auto each = [&](auto use) {
    #pragma unroll HELD
    for (int k = 0; K == 0 || k < K; ++k) {
        const int step = k * T + thread;
        if (step >= length) break;
        if (K == 0) load(held[0], step);
        use(held[K == 0 ? 0 : k], step);
    }
};
"""
_WRITTEN = """auto write = [&](float (&v)[W], unsigned int step) {
    $inside
    $READ_AFTER
    y_t out[W];
    ELEMENTS { const float a0 = v[e]; $NAMED_AFTER out[e] = $RESULT; }
    put<Q>(from_y + $in_y, out);
};
"""
_FOLDED = """if (thread == 0 && length > 0) *from_y = $RESULT;
"""
_FOLD = """float a0 = $START;
each([&](float (&v)[W], int) { ELEMENTS a0 = $COMBINED(a0, v[e]); });
a0 = row_$COMBINED(a0, shared);
"""
_LARGEST_OF_ROW = f"""float largest = {_LOWEST}, total = 0.0f;
each([&](float (&v)[W], int) {{ ELEMENTS largest = larger(largest, v[e]); }});
largest = row_larger(largest, shared);
"""
_SOFTMAX = """each([&](float (&v)[W], int) { ELEMENTS { v[e] = expf(v[e] - largest); total += v[e]; } });
const float share = 1.0f / row_sum(total, shared);
each([&](float (&v)[W], int step) {
    ELEMENTS v[e] = (K == 0 ? expf(v[e] - largest) : v[e]) * share;
    write(v, step);
});
"""
_LOGARITHM = """each([&](float (&v)[W], int) { ELEMENTS total += expf(v[e] - largest); });
const float a0 = largest + logf(row_sum(total, shared));
"""
_FINITE = "if (fabsf(largest) == __int_as_float(0x7f800000)) largest = 0.0f;\n"
_LESS_LOGARITHM = "each([&](float (&v)[W], int step) { ELEMENTS v[e] -= a0; write(v, step); });\n"
_TOTAL = """float total = 0.0f;
each([&](float (&v)[W], int) { ELEMENTS total += v[e]; });
const float mean = row_sum(total, shared) / (float)elements;
"""
_NORM = """float squares = 0.0f;
each([&](float (&v)[W], int) { ELEMENTS squares += (v[e] - mean) * (v[e] - mean); });
const float inverse = 1.0f / sqrtf(row_sum(squares, shared) / (float)elements + epsilon);
each([&](float (&v)[W], int step) {
    ELEMENTS v[e] = (v[e] - mean) * inverse;
    write(v, step);
});
"""
_OF_ROWS = {
    "softmax": _WRITTEN + _LARGEST_OF_ROW + _SOFTMAX,
    "log_softmax": _WRITTEN + _LARGEST_OF_ROW + _LOGARITHM + _LESS_LOGARITHM,
    "log_sum_exp": _LARGEST_OF_ROW + _FINITE + _LOGARITHM + _FOLDED,
    "layer_norm": _WRITTEN + _TOTAL + _NORM,
    "rms_norm": _WRITTEN + "const float mean = 0.0f;\n" + _NORM,
    **dict.fromkeys(_FOLDS, _FOLD + _FOLDED),
}
#: Threads of a block share rows among LANES, and lengths among SHARES, of which each has a power of two.
_COLUMNS = """__shared__ float shared[W][LANES * SHARES];
$places
const int lane = threadIdx.x % LANES, member = threadIdx.x / LANES, column = (inner * LANES + lane) * W;
const bool is_row = column < columns;
$PLACED
float folded[W];
ELEMENTS folded[e] = $START;
#pragma unroll 4
for (int step = member; is_row && step < elements; step += SHARES) {
    $inside
    $READ_BEFORE
    ELEMENTS { $NAMED_BEFORE folded[e] = $COMBINED(folded[e], $VALUE); }
}
for (int half = SHARES / 2; half > 0; half /= 2) {
    ELEMENTS shared[e][threadIdx.x] = folded[e];
    __syncthreads();
    ELEMENTS if (member < half) folded[e] = $COMBINED(folded[e], shared[e][threadIdx.x + half * LANES]);
    __syncthreads();
}
if (member > 0 || !is_row) return;
y_t out[W];
ELEMENTS { const float a0 = folded[e]; out[e] = $RESULT; }
put<Q>(from_y, out);
"""


def reduction(function: str, x: Computed, y: View, axes: Sequence[int]) -> KernelCall:
    """``x`` over ``axes``, which are of one element in ``y``; raises BackendError for other functions than nine."""
    if function not in _REDUCTIONS:
        raise BackendError(f"no kernel reduces to {function}, only {', '.join(_REDUCTIONS)}; use another backend")
    name, value, result = _REDUCTIONS[function]
    return _over_rows(name, Computed(value.format(x.expression), x.operands), y, axes, Computed(result, ()))


def softmax(x: Computed, y: View, axes: Sequence[int], logarithm: bool = False) -> KernelCall:
    """Softmax over ``axes``, or its ``logarithm``."""
    return _over_rows("log_softmax" if logarithm else "softmax", x, y, axes, AS_IT_IS)


def norm(
    x: Computed, y: View, after: Computed, axes: Sequence[int], epsilon: float, is_centred: bool = True
) -> KernelCall:
    """Normalisation over ``axes``, by the mean square alone unless ``is_centred``.

    ``after`` has the normalised element as ``a0``, and its operands, which are broadcast to ``y``, from ``a1`` on.
    """
    more = {"float epsilon": np.float32(epsilon)}
    return _over_rows("layer_norm" if is_centred else "rms_norm", x, y, axes, after, more)


def group_norm(x: Computed, y: View, after: Computed, groups: int, epsilon: float) -> KernelCall:
    """:func:`norm` of each image ``[C, ...]`` of ``y [N, C, ...]`` in ``groups`` of channels."""

    def split(view: View) -> View:
        return view.broadcast(y.shape).split(1, (groups, y.shape[1] // groups))

    of_x, of_y = (Computed(each.expression, tuple(map(split, each.operands))) for each in (x, after))
    return norm(of_x, split(y), of_y, range(2, 1 + len(y.shape)), epsilon)


def _over_rows(
    name: str, x: Computed, y: View, axes: Sequence[int], after: Computed, more: Mapping[str, Argument] | None = None
) -> KernelCall:
    """A row for each place of the axes that are not ``axes``."""
    is_fold = name in _FOLDS or name == "log_sum_exp"
    shape = np.broadcast_shapes(*(view.shape for view in x.operands)) if is_fold else y.shape
    before = {f"x{index}": view.broadcast(shape) for index, view in enumerate(x.operands)}
    behind = {f"z{index}": view.broadcast(y.shape) for index, view in enumerate(after.operands, 1)}
    views = {**before, **behind, "y": y.broadcast(y.shape)}
    main = max(before, key=lambda each: views[each].narrow.elements) if is_fold else "y"
    order = sorted(range(len(shape)), key=lambda axis: -abs(views[main].strides[axis]))

    def walk(kept: list[int]) -> tuple[list[int], list[list[int]]]:
        return coalesced([shape[axis] for axis in kept], [[v.strides[axis] for axis in kept] for v in views.values()])

    sizes, far = walk([axis for axis in order if axis not in axes])
    lengths, near = walk([axis for axis in order if axis in axes])
    at = list(views).index(main)
    is_over_columns = name in _FOLDS and near[at][-1] != 1 and far[at][-1] == 1 and sizes[-1] > 1
    inner, outer, last = (far, near, sizes[-1]) if is_over_columns else (near, far, lengths[-1])
    walked = [[*steps, *own] for steps, own in zip(outer, inner, strict=True)]
    width = access_width(views[main], walked[at]) if walked[at][-1] == 1 else 1
    while last % width or (is_over_columns and width > 1 and walked[-1][-1] != 1):
        width //= 2
    widths = dict(zip(views, widths_of(list(views.values()), walked, width), strict=True))
    constants, length = {"W": width, "Q": widths["y"]}, math.prod(lengths)
    if is_over_columns:
        body, along, last_name = _COLUMNS, "column", "column"
        lanes, shares = _shared(length, width, sizes[-1])
        constants |= {"LANES": lanes, "SHARES": shares}
        places = [*sizes[:-1], -(-sizes[-1] // (width * lanes))]
        grid = "blockIdx.x", math.prod(places), lanes * shares
    else:
        body, along, last_name = _ROW + _OF_ROWS[name], f"i{len(lengths) - 1} / W", f"r{len(sizes) - 1}"
        places, lengths = sizes, [*lengths[:-1], lengths[-1] // width]
        near = [[*steps, width * step] for *steps, step in near]
        threads, block = _threads(length // width, math.prod(sizes))
        held = -(-length // (width * threads)) if length <= width * _MOST_HELD * threads else 0
        constants |= {"T": threads, "WARP": WARP, "K": held, "HELD": held or 1}
        grid = "(number < count ? number : 0)", -(-math.prod(sizes) * threads // block), block
    names = [*(f"r{axis}" for axis in range(len(sizes) - 1)), last_name]
    inside = [f"i{axis}" for axis in range(len(lengths))]
    added = f" + (long long){along} * {{0}}_{along}" if is_over_columns else ""
    words = {"VALUE": x.expression, "RESULT": after.expression}
    words |= dict(zip(("START", "COMBINED"), _FOLDS.get(name, ()), strict=False))
    words["PLACED"] = "".join(f"{each}_t* const from_{each} = ${each}{added.format(each)};\n" for each in views)
    words["READ_BEFORE"], words["NAMED_BEFORE"] = _read(before, widths, along, 0)
    words["READ_AFTER"], words["NAMED_AFTER"] = _read(behind, widths, along, 1)
    return kernel(
        name,
        filled(body, **words),
        views,
        dict(zip([*names, *inside], [*zip(*far, strict=True), *zip(*near, strict=True)], strict=True)),
        dict(zip([*names[:-1], "inner" if is_over_columns else last_name], places, strict=True)),
        inside=dict(zip(inside, lengths, strict=True)),
        constants=constants,
        functions=functions_of(x.expression + after.expression) + _COMBINED + _OF_ROW * (not is_over_columns),
        more={"elements": length, "columns": sizes[-1], **(more or {})},
        grid=grid,
    )


def _threads(accesses: int, rows: int) -> tuple[int, int]:
    """Threads of a row and of a block: enough of the former to hold a row's accesses, of the latter to fill the GPU."""
    threads = WARP
    while threads < BLOCK_THREADS and accesses > _MOST_HELD * threads:
        threads *= 2
    block = threads
    while threads == WARP and block < 4 * WARP and rows >= 2 * ENOUGH_BLOCKS * (block // threads):
        block *= 2
    return threads, block


def _shared(length: int, width: int, columns: int) -> tuple[int, int]:
    """Threads of a block beside each other, for ``width`` rows each, and threads that share the length of a row."""
    shares = 1
    while shares < BLOCK_THREADS // _LANES and 2 * shares < length:
        shares *= 2
    lanes = BLOCK_THREADS // shares
    while lanes > _LANES and lanes * width >= 2 * columns:
        lanes //= 2
    return lanes, shares


def _read(views: Mapping[str, View], widths: Mapping[str, int], along: str, first: int) -> tuple[str, str]:
    """The statements that read an access of each operand, and those that name an element of each, ``first`` and on."""
    reads = named = ""
    for index, (name, view) in enumerate(views.items(), first):
        kind = value_name(view.dtype)
        at = f"from_{name} + $in_{name}"
        reads += f"{kind} v{index}[W];\n" + read(f"v{index}", at, widths[name], f"{name}_{along}")
        named += f"const {kind} a{index} = v{index}[e];\n"
    return reads, named
