"""Kernels in which threads work on one row together: global pooling, reductions, softmax, layer and RMS normalisation.

A row is a run of equally spaced elements. Where its elements are neighbours, a few threads take accesses of it in turn
(a warp, up to eight for long rows), keep them in registers if they are few, and combine what they found by shuffles.
Where the rows are neighbours (channels of images with channels innermost), a thread folds an access's width of rows,
and the threads of a block share their lengths. Both combine in an order of their own that is always the same, so
that results do not change from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from iossim.backends.cupy_cudnn.element_types import element_name
from iossim.backends.cupy_cudnn.kernel_text import (
    access_width,
    access_widths,
    kernel_source,
    offset,
    place_arguments,
    place_lines,
    place_parameters,
)
from iossim.backends.cupy_cudnn.views import (
    BLOCK_THREADS,
    ENOUGH_BLOCKS,
    MOST_ELEMENTS,
    Argument,
    KernelCall,
    View,
    coalesced,
    int32s,
)
from iossim.execution.backend import BackendError
from iossim.ir.types import DType

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
#: Of constants: W elements an access of the input, made of P at once, Q of the output; T threads a row; K accesses held.
_COMBINED = """static __device__ inline float sum(float a, float b) { return a + b; }
static __device__ inline float larger(float a, float b) { return fmaxf(a, b); }
#define OF_ROW(name, combined) static __device__ inline float name(float part, float* shared) { \\
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
_ROW = """__shared__ float shared[T / WARP];
const unsigned int number = blockIdx.x * (blockDim.x / T) + threadIdx.x / T;
{places}
const int thread = threadIdx.x % T, length = number < rows ? elements : 0;
const in_t* from = x + {x};
out_t* to = y + {y};
"""
#: Threads of a block share rows among LANES, and lengths among the others. Also of constants: SHARES of a length.
_COLUMNS = """__shared__ float shared[W][LANES * SHARES];
{places}
const int lane = threadIdx.x % LANES, share = threadIdx.x / LANES, column = (chunk * LANES + lane) * W;
const in_t* from = x + {x} + (long long)column * x_inner;
float folded[W];
#pragma unroll
for (int e = 0; e < W; ++e) folded[e] = {start};
if (column < columns) {{
    #pragma unroll 4
    for (int i = share; i < length; i += SHARES) {{
        float v[W];
        take<P>(v, from + (long long)i * x_i);
        #pragma unroll
        for (int e = 0; e < W; ++e) folded[e] = {combined}(folded[e], v[e]);
    }}
}}
for (int half = SHARES / 2; half > 0; half /= 2) {{
    #pragma unroll
    for (int e = 0; e < W; ++e) shared[e][threadIdx.x] = folded[e];
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < W; ++e)
        if (share < half) folded[e] = {combined}(folded[e], shared[e][threadIdx.x + half * LANES]);
    __syncthreads();
}}
if (share == 0 && column < columns) {{
    out_t out[W];
    #pragma unroll
    for (int e = 0; e < W; ++e) {{ const float part = folded[e]; out[e] = {end}; }}
    put<Q>(y + {y} + (long long)column * y_inner, out);
}}
"""


def _softmax(is_held: bool) -> str:
    power = "expf(v[e] - largest)"
    return (
        _each("part = fmaxf(part, v[e]);", is_held, _LOWEST)
        + "const float largest = row_larger(part, shared);\n"
        + _each(f"v[e] = {power}; part += v[e];", is_held)
        + "const float total = row_sum(part, shared);\n"
        + _written(f"{'v[e]' if is_held else power} / total", is_held)
    )


def _layer_norm(is_held: bool) -> str:
    return (
        _each("part += v[e];", is_held)
        + "const float mean = row_sum(part, shared) / (float)elements;\n"
        + _each("const float off = v[e] - mean; part += off * off;", is_held)
        + "const float deviation = sqrtf(row_sum(part, shared) / (float)elements + epsilon);\n"
        + _written("(v[e] - mean) / deviation * factor[e] + term[e]", is_held, ("scale", "factor"), ("shift", "term"))
    )


def _rms_norm(is_held: bool) -> str:
    return (
        _each("part += v[e] * v[e];", is_held)
        + "const float root = sqrtf(row_sum(part, shared) / (float)elements + epsilon);\n"
        + _written("v[e] / root * factor[e]", is_held, ("scale", "factor"))
    )


#: Kernels that make rows of rows, and their further parameters: dense operands of a row's size, and numbers.
_NORMALISATIONS = {
    "softmax": (_softmax, ()),
    "layer_norm": (_layer_norm, ("const in_t* scale", "const in_t* shift", "float epsilon")),
    "rms_norm": (_rms_norm, ("const in_t* scale", "float epsilon")),
}


def _each(step: str, is_held: bool, begin: str = "0.0f") -> str:
    """A ``step`` of ``part`` for each element ``v[e]`` of a thread's share of the row."""
    return f"part = {begin};\n" + _accesses(f"#pragma unroll\nfor (int e = 0; e < W; ++e) {{ {step} }}\n", is_held)


def _written(result: str, is_held: bool, *operands: tuple[str, str]) -> str:
    """The ``result`` for each element, with what lies at the same place of rows of ``operands``."""
    read = "".join(f"float {name}[W];\ntake<O>({name}, {source} + i);\n" for source, name in operands)
    each = f"out_t out[W];\n#pragma unroll\nfor (int e = 0; e < W; ++e) out[e] = {result};\n"
    return _accesses(f"{read}{each}put<Q>(to + (long long)i * y_i, out);\n", is_held)


def _accesses(body: str, is_held: bool) -> str:
    """``body`` for each access of ``v`` at ``i`` that is a thread's."""
    if not is_held:
        read = "float v[W];\ntake<P>(v, from + (long long)i * x_i);\n"
        return f"for (int i = thread * W; i < length; i += T * W) {{\n{read}{body}}}\n"
    place = "const int i = (k * T + thread) * W;\nif (i >= length) break;\nfloat (&v)[W] = held[k];\n"
    return f"#pragma unroll\nfor (int k = 0; k < K; ++k) {{\n{place}{body}}}\n"


def global_pool(x: View, y: View, *, is_average: bool) -> KernelCall:
    """``x [N, C, ...]`` to ``y [N, C, 1, ...]``: the mean of each image, or its largest element."""
    return _over_rows("global_average_pool" if is_average else "global_max_pool", x, y, list(range(2, len(x.shape))))


_REDUCTIONS = {"sum": "reduce_sum", "mean": "global_average_pool", "max": "global_max_pool"}


def reduction(function: str, x: View, y: View, axes: Sequence[int]) -> KernelCall:
    """``x`` over ``axes``, which are of one element in ``y``; raises BackendError for other functions than three."""
    if function not in _REDUCTIONS:
        raise BackendError(f"no kernel reduces to {function}, only {', '.join(_REDUCTIONS)}; use another backend")
    return _over_rows(_REDUCTIONS[function], x, y, list(axes))


def softmax(x: View, y: View, axes: Sequence[int]) -> KernelCall:
    """Softmax over ``axes``, which are neighbours, of views of one shape."""
    return _over_rows("softmax", x, y, list(axes))


def layer_norm(x: View, y: View, scale: View, shift: View, first: int, epsilon: float) -> KernelCall:
    """Over axis ``first`` and all behind it; raises BackendError unless scale and shift are dense, one an element."""
    axes = list(range(first, len(x.shape)))
    size = int(np.prod([x.shape[axis] for axis in axes]))
    if not all(view.is_dense and view.elements == size and view.dtype == x.dtype for view in (scale, shift)):
        raise BackendError("layer_norm takes a scale and a shift of the shape of a row; write them out")
    return _over_rows("layer_norm", x, y, axes, (scale, shift, np.float32(epsilon)))


def rms_norm(x: View, y: View, scale: View, first: int, epsilon: float) -> KernelCall:
    """Over axis ``first`` and all behind it; raises BackendError unless the scale is dense, one an element."""
    axes = list(range(first, len(x.shape)))
    if not (scale.is_dense and scale.elements == math.prod(x.shape[first:]) and scale.dtype == x.dtype):
        raise BackendError("rms_norm takes a scale of the shape of a row; write it out")
    return _over_rows("rms_norm", x, y, axes, (scale, np.float32(epsilon)))


def _over_rows(name: str, x: View, y: View, axes: list[int], more: tuple[Argument, ...] = ()) -> KernelCall:
    """A row for each place of the axes that are not ``axes``; raises BackendError where these are not equally spaced."""
    is_fold = name in _FOLDS
    inside = [x.strides] if is_fold else [x.strides, y.strides]
    lengths, steps = coalesced([x.shape[a] for a in axes], [[own[a] for a in axes] for own in inside])
    others = [axis for axis in range(len(x.shape)) if axis not in axes]
    sizes, strides = coalesced([x.shape[a] for a in others], [[v.strides[a] for a in others] for v in (x, y)])
    if len(lengths) > 1:
        raise BackendError(f"{name} takes tensors whose rows are equally spaced; copy them first")
    (length,), ((step, *_), *_) = lengths, steps
    rows = math.prod(sizes)
    if rows * length > MOST_ELEMENTS:
        raise BackendError(f"{name} takes at most {MOST_ELEMENTS} elements; take a smaller batch")
    types = x.dtype, y.dtype
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
    held = -(-accesses // threads)
    operands = [access_width(item, (1,)) for item in more if isinstance(item, View)]
    constants = {"W": width, "P": own[0], "Q": own[-1], "O": min(width, *operands, width), "T": threads, "WARP": WARP}
    if held <= _MOST_HELD:
        constants["K"] = held
    arguments = (
        np.uint32(rows),
        *place_arguments(sizes),
        *_spaced(length, step, x, strides[0]),
        *_spaced(steps[-1][0], y, strides[1]),
        *more,
    )
    source = _row_source(name, (x.dtype, y.dtype), len(sizes), tuple(constants.items()))
    return KernelCall(source, name, -(-rows * threads // block), block, arguments)


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
    chunks = [*sizes[:-1], -(-sizes[-1] // (width * lanes))]
    constants = {"W": width, "P": read, "Q": written, "LANES": lanes, "SHARES": shares}
    arguments = (
        *place_arguments(chunks),
        np.int32(sizes[-1]),
        *_spaced(length, step, x, strides[0]),
        *_spaced(y, strides[1]),
    )
    source = _column_source(name, (x.dtype, y.dtype), len(sizes), tuple(constants.items()))
    return KernelCall(source, name, math.prod(chunks), lanes * shares, arguments)


def _spaced(*items: int | View | list[int]) -> tuple[Argument, ...]:
    found: list[Argument] = []
    for item in items:
        found += [item] if isinstance(item, View) else int32s(item if isinstance(item, list) else [item])
    return tuple(found)


@cache
def _row_source(name: str, dtypes: tuple[DType, DType], axes: int, constants: tuple[tuple[str, int], ...]) -> str:
    """Arguments: rows, and how they are taken apart; elements of a row; input and output, each with the step inside a
    row and the strides of the axes of rows.
    """
    names, is_held = [f"r{axis}" for axis in range(axes)], "K" in dict(constants)
    body = _ROW.format(
        places=place_lines(names, "(number < rows ? number : 0)"), x=offset("x", names), y=offset("y", names)
    )
    if is_held:
        read = "if (i < length) take<P>(held[k], from + (long long)i * x_i);"
        body += f"float held[K][W];\n#pragma unroll\nfor (int k = 0; k < K; ++k) {{ const int i = (k * T + thread) * W; {read} }}\n"
    body += "float part;\n"
    more: tuple[str, ...] = ()
    if name in _FOLDS:
        start, combined, result = _FOLDS[name]
        body += _each(f"part = {combined}(part, v[e]);", is_held, start) + f"part = row_{combined}(part, shared);\n"
        body += f"if (thread == 0 && length > 0) *to = {result};\n"
    else:
        text, more = _NORMALISATIONS[name]
        body += text(is_held)
    parameters = [
        "unsigned int rows",
        *place_parameters(names),
        "int elements",
        *_parameters(names, "x_i", "y_i"),
        *more,
    ]
    return kernel_source(name, dtypes, parameters, body, _constants(dtypes, constants) + _COMBINED)


@cache
def _column_source(name: str, dtypes: tuple[DType, DType], axes: int, constants: tuple[tuple[str, int], ...]) -> str:
    """Arguments: how blocks are taken apart; rows beside each other; elements of one; then input, with the step between
    these, and output, each with the strides of the axes of rows.
    """
    names = [*(f"r{axis}" for axis in range(axes - 1)), "inner"]
    places = place_lines([*names[:-1], "chunk"], "blockIdx.x")
    start, combined, result = _FOLDS[name]
    body = _COLUMNS.format(
        places=places, x=offset("x", names[:-1]), y=offset("y", names[:-1]), start=start, combined=combined, end=result
    )
    parameters = [*place_parameters([*names[:-1], "chunk"]), "int columns", "int length", *_parameters(names, "x_i")]
    functions = _COMBINED[: _COMBINED.index("#define")]
    return kernel_source(name, dtypes, parameters, body, _constants(dtypes, constants) + functions)


def _parameters(names: Sequence[str], *steps: str) -> list[str]:
    """Of input and output: the step inside a row, for those that have one, the address, and strides."""
    found: list[str] = []
    for own, letter in zip((steps[:1], steps[1:]), "xy", strict=True):
        found += [f"int {step}" for step in own]
        found += [
            f"{'const in_t' if letter == 'x' else 'out_t'}* {letter}",
            *(f"int {letter}_{axis}" for axis in names),
        ]
    return found


def _constants(dtypes: tuple[DType, DType], constants: Sequence[tuple[str, int]]) -> str:
    types = "".join(
        f"typedef {element_name(dtype)} {own};\n" for dtype, own in zip(dtypes, ("in_t", "out_t"), strict=True)
    )
    return types + f"constexpr int {', '.join(f'{key} = {number}' for key, number in constants)};\n"
