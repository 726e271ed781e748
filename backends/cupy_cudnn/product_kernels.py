"""Products by kernels of ours: grouped convolutions, those of whole numbers, stacks of matrices in fp32, and products
by experts.

The prologue and epilogue of a convolution are in the same launch. A thread computes a few neighbouring channels of a
few neighbouring columns: where channels lie innermost, it reads and writes up to 16 bytes at a time, and keeps the
inputs that windows of neighbouring columns share. All sizes are constants of the source, so that the compiler divides
indices by multiplication and unrolls loops over the window. Sums are in fp32 and are rounded once, after the epilogue;
sums of 8-bit integers are in int32. No model chooses how many channels and columns a thread takes: a few ways are
offered, and timed beside the library's plans.

cuDNN multiplies stacks of matrices on tensor cores only: on an H200 it returned TF32 digits where fp32 was requested,
or had no plan at all. Here a thread computes one element; neighbours read neighbouring columns. That is far from peak
speed, but whoever asks for products in plain fp32 wants its digits. Nor are products by experts, with sums in fp32 on
ordinary lanes, as fast as tensor cores where an expert has many rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from iossim.backends.cupy_cudnn.element_kernels import AS_IT_IS, Computed, functions_of
from iossim.backends.cupy_cudnn.kernel_text import (
    ACCESS_BYTES,
    MOST_ELEMENTS,
    access_width,
    element_name,
    filled,
    kernel,
    read,
    value_name,
    walked,
)
from iossim.backends.cupy_cudnn.views import KernelCall, View
from iossim.ir.ops.conv import Conv
from iossim.ir.types import DType

NAME = "grouped_convolution"
#: The most bytes of channels, and the columns, that a thread takes.
CHANNELS_BYTES, COLUMNS = (ACCESS_BYTES, 4), (1, 4)

#: Constants of the text: C channels and T columns of the output a thread; FILTERS in all, and CHANNELS of the input a
#: group; images of H x W, and columns OUTW of the output; (Y, X) each: kernel K, strides S, padding P, dilations D;
#: COLS input columns under T windows where the input is read by column, else U channels by one read.
_BODY = """const int k = pack * C, ox = tile * T, top = oy * SY - PY, left = ox * SX - PX;
y_t* const to = y + $PLACE;
sum_t sums[T][C] = {};
$SUM
#pragma unroll
for (int t = 0; t < T; ++t) {
    if (ox + t >= OUTW) break;
    $LOADS
    y_t made[C];
    #pragma unroll
    for (int i = 0; i < C; ++i) {
        const sum_t a0 = sums[t][i];
        $NAMED
        made[i] = $RESULT;
    }
    put<C>(to + t * STEP, made);
}
"""
#: Each channel by a window of its own.
_DEPTHWISE = """const in_t* image = x + (long long)n * x_n + (long long)k * x_c;
#pragma unroll
for (int ky = 0; ky < KY; ++ky) {
    const int iy = top + ky * DY;
    if (iy < 0 || iy >= H) continue;
    sum_t taps[KX][C];
    #pragma unroll
    for (int kx = 0; kx < KX; ++kx) take<C>(taps[kx], w + (ky * KX + kx) * FILTERS + k);
    #pragma unroll
    for (int j = 0; j < COLS; ++j) {
        const int ix = left + j;
        if (ix < 0 || ix >= W) continue;
        sum_t found[C];
        take<C>(found, image + (long long)iy * x_h + (long long)ix * x_w);
        #pragma unroll
        for (int i = 0; i < C; ++i) found[i] = before(found[i]);
        #pragma unroll
        for (int kx = 0; kx < KX; ++kx) {
            const int ahead = j - kx * DX;
            if (ahead < 0 || ahead % SX || ahead / SX >= T) continue;
            #pragma unroll
            for (int i = 0; i < C; ++i) sums[ahead / SX][i] += found[i] * taps[kx][i];
        }
    }
}"""
#: Filters of one group by all of its channels.
_GROUPED = """const in_t* image = x + (long long)n * x_n + (long long)(k / SHARE * CHANNELS) * x_c;
for (int ky = 0; ky < KY; ++ky) {
    const int iy = top + ky * DY;
    if (iy < 0 || iy >= H) continue;
    for (int kx = 0; kx < KX; ++kx) {
        const in_t* own = w + (long long)((ky * KX + kx) * CHANNELS) * FILTERS + k;
        for (int c = 0; c < CHANNELS; c += U) {
            sum_t found[T][U] = {};
            #pragma unroll
            for (int t = 0; t < T; ++t) {
                const int ix = left + t * SX + kx * DX;
                if (ix < 0 || ix >= W) continue;
                take<U>(found[t], image + (long long)iy * x_h + (long long)ix * x_w + (long long)c * x_c);
                #pragma unroll
                for (int u = 0; u < U; ++u) found[t][u] = before(found[t][u]);
            }
            #pragma unroll
            for (int u = 0; u < U; ++u) {
                sum_t taps[C];
                take<C>(taps, own + (long long)(c + u) * FILTERS);
                #pragma unroll
                for (int t = 0; t < T; ++t)
                    #pragma unroll
                    for (int i = 0; i < C; ++i) sums[t][i] += found[t][u] * taps[i];
            }
        }
    }
}"""
_PRODUCT = """const a_t* left = a + $STACK_a + (long long)row * a_row;
const b_t* right = b + $STACK_b + (long long)column * b_column;
sum_t a0 = 0;
for (int k = 0; k < depth; ++k) a0 += (sum_t)left[(long long)k * a_column] * (sum_t)right[(long long)k * b_row];
$NAMED
*($y) = $RESULT;
"""
#: Columns of a block, a thread for each; rows that it has at once, and their elements in shared memory.
_GROUPED_COLUMNS, _GROUPED_ROWS, _INNER = 64, 8, 64
_OF_GROUPS = """__shared__ float part[ROWS][INNER];
$places
const int column = tile * blockDim.x + threadIdx.x, end = expert < experts ? (int)e[expert * e_expert] : rows;
for (int first = expert ? (int)e[(expert - 1) * e_expert] : 0; first < end; first += ROWS) {
    float sums[ROWS] = {};
    for (int k = 0; k < depth && expert < experts; k += INNER) {
        __syncthreads();
        for (int i = threadIdx.x; i < ROWS * INNER; i += blockDim.x) {
            const int row = first + i / INNER, at = k + i % INNER;
            const bool is_there = row < end && at < depth;
            part[i / INNER][i % INNER] = is_there ? (float)x[(long long)row * x_row + (long long)at * x_inner] : 0.0f;
        }
        __syncthreads();
        if (column >= width) continue;
        const w_t* own = w + (long long)expert * w_expert + (long long)k * w_inner + (long long)column * w_column;
        for (int i = 0; i < INNER && k + i < depth; ++i) {
            const float weight = own[(long long)i * w_inner];
            #pragma unroll
            for (int r = 0; r < ROWS; ++r) sums[r] += part[r][i] * weight;
        }
    }
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = first + r;
        if (row >= end || column >= width) continue;
        const float a0 = sums[r];
        $NAMED
        y[(long long)row * y_row + (long long)column * y_column] = $RESULT;
    }
}
"""


def convolutions(op: Conv, prologue: str, x: View, taps: View, y: View, after: Computed) -> Mapping[str, KernelCall]:
    """Ways to compute ``y = after(conv(prologue(x), taps))`` in one launch, by name.

    ``prologue`` is an expression in ``a0``, an element of ``x``; ``after`` one in ``a0``, a sum, and ``a1``, ...,
    operands that are broadcast to ``y``. ``taps`` are filters with the window outermost, their number innermost:
    ``[kernel_y, kernel_x, channels of a group, filters]``. None for more than two dimensions of space.
    """
    rank = len(op.strides)
    if rank > 2:
        return {}
    x, y, *operands = (view.planar for view in (x, y, *(operand.broadcast(y.shape) for operand in after.operands)))
    if any(view.extent > MOST_ELEMENTS for view in (x, y, *operands)):
        return {}
    filters, channels = y.shape[1], taps.shape[-2]
    share = filters // op.groups
    is_depthwise = channels == share == 1
    own = _width(y, filters if is_depthwise else share)
    own = min(own, _width(x, filters)) if is_depthwise else own
    widths = dict.fromkeys(min(own, most // y.dtype.bytes) for most in CHANNELS_BYTES)
    window = {
        "K": (1, *taps.shape[:rank])[-2:],
        "S": (1, *op.strides)[-2:],
        "P": (0, *op.pads[:rank])[-2:],
        "D": (1, *op.dilations)[-2:],
    }
    constants = {
        **{f"{name}{axis}": value for name, values in window.items() for axis, value in zip("YX", values, strict=True)},
        **{"H": x.shape[2], "W": x.shape[3], "OUTW": y.shape[3], "FILTERS": filters, "CHANNELS": channels},
        **{"SHARE": share, "U": _width(x, channels), "STEP": y.strides[3]},
        **{f"x_{axis}": stride for axis, stride in zip("nchw", x.strides, strict=True)},
    }
    behind = {f"z{index}": view for index, view in enumerate(operands, 1)}
    words = {
        "PLACE": _at(y),
        "SUM": _DEPTHWISE if is_depthwise else _GROUPED,
        "NAMED": " ".join(f"const float a{name[1:]} = v{name[1:]}[i];" for name in behind),
        "RESULT": after.expression,
    }
    functions = f"{functions_of(prologue + after.expression)}typedef {element_name(x.dtype)} in_t;\n"
    functions += f"typedef {value_name(y.dtype)} sum_t;\n"
    functions += f"static __device__ sum_t before(sum_t a0) {{ return {prologue}; }}\n"
    found: dict[str, KernelCall] = {}
    for width, count in itertools.product(widths, (count for count in COLUMNS if count <= y.shape[3])):
        packs, tiles = {"pack": filters // width}, {"oy": y.shape[2], "tile": -(-y.shape[3] // count)}
        reach = (count - 1) * constants["SX"] + (constants["KX"] - 1) * constants["DX"] + 1
        words["LOADS"] = "\n    ".join(_load(name, view, width) for name, view in behind.items())
        found[f"own{width}x{count}"] = kernel(
            NAME,
            filled(_BODY, **words),
            {"y": y, **behind},
            {},
            {"n": y.shape[0], **(tiles | packs if y.strides[1] == 1 else packs | tiles)},
            constants={**constants, "C": width, "T": count, "COLS": reach},
            functions=functions,
            # An operand may be the output itself, which is written in place: those are not declared __restrict__.
            more={"const in_t* __restrict__ x": x, "const in_t* __restrict__ w": taps},
        )
    return found


def _width(view: View, channels: int) -> int:
    """Number of channels that an aligned access moves, anywhere in images; it divides ``channels``."""
    steps = [stride if size > 1 else 0 for size, stride in zip(view.shape, view.strides, strict=True)]
    return math.gcd(access_width(view, (steps[0], *steps[2:], view.strides[1])), channels)


def _load(name: str, view: View, width: int) -> str:
    """The statement that reads an operand for all channels of a thread."""
    to, place = f"v{name[1:]}", f"{name} + {_at(view)} + t * {view.strides[3]}"
    own = width if _width(view, width) == width else -1
    return f"float {to}[C]; {read(to, place, own, str(view.strides[1])).rstrip()}"


def _at(view: View) -> str:
    """Place at which the channels of a thread begin in the first of its columns.

    In 32 bits: from sums of several signed numbers the compiler does not see that accesses are of neighbours.
    """
    n, c, h, w = view.strides
    return f"(n * {n}u + k * {c}u + oy * {h}u + ox * {w}u)"


def product(a: View, b: View, y: View, after: Computed = AS_IT_IS) -> KernelCall:
    """``y [..., M, N] = after(a [..., M, K] b [..., K, N])``; stacks are broadcast by NumPy's rules.

    Sums, ``a0`` of ``after``, are of int32 where ``y`` is, else of fp32. Raises BackendError for more elements than a
    kernel counts.
    """
    stack = y.shape[:-2]
    views = {"a": a.broadcast((*stack, *a.shape[-2:])), "b": b.broadcast((*stack, *b.shape[-2:])), "y": y}
    behind = {f"z{index}": view.broadcast(y.shape) for index, view in enumerate(after.operands, 1)}
    views |= behind
    places, steps = walked(list(views.values()), range(len(stack)), "s")
    named = (f"const {value_name(view.dtype)} a{name[1:]} = *(${name});\n" for name, view in behind.items())
    words = {"NAMED": "".join(named), "RESULT": after.expression}
    words |= {f"STACK_{name}": " + ".join(f"(long long){axis} * {name}_{axis}" for axis in places) for name in "ab"}
    for axis, at in (("row", -2), ("column", -1)):
        places[axis], steps[axis] = y.shape[at], tuple(view.strides[at] for view in views.values())
    return kernel(
        "product",
        filled(_PRODUCT, **words),
        views,
        steps,
        places,
        more={"depth": a.shape[-1]},
        functions=functions_of(after.expression) + f"typedef {'int' if y.dtype is DType.INT32 else 'float'} sum_t;\n",
    )


def grouped_product(x: View, weight: View, ends: View, y: View, after: Computed) -> KernelCall:
    """``y [rows, width] = after(x [rows, inner] weight [experts, inner, width])``, of each row by its group's expert.

    The ends of groups are read on the device, so that no run waits for the host. A block has neighbouring columns of
    one expert, and walks the rows of that expert, a few at once: their elements pass through shared memory, and a
    weight that is read serves all of them. It ends at once where an expert has no rows. The rows after all groups,
    which are zero before the epilogue, are those of one more block of each columns. Raises BackendError for more
    elements than a kernel counts.
    """
    behind = {f"z{place}": view.broadcast(y.shape) for place, view in enumerate(after.operands, 1)}
    axes = {"x": "row inner", "w": "expert inner column", "e": "expert"}
    views = {"x": x, "w": weight, "e": ends, "y": y, **behind}
    steps = {
        f"{name}_{axis}": step
        for name, view in views.items()
        for axis, step in zip(axes.get(name, "row column").split(), view.strides, strict=True)
    }
    at = "[(long long)row * {0}_row + (long long)column * {0}_column]"
    named = (f"const {value_name(each.dtype)} a{name[1:]} = {name}{at.format(name)};" for name, each in behind.items())
    experts, tiles = weight.shape[0], -(-y.shape[1] // _GROUPED_COLUMNS)
    return kernel(
        "grouped_product",
        filled(_OF_GROUPS, NAMED=" ".join(named), RESULT=after.expression),
        views,
        {},
        {"expert": experts + 1, "tile": tiles},
        constants={"ROWS": _GROUPED_ROWS, "INNER": _INNER},
        functions=functions_of(after.expression),
        more={"rows": y.shape[0], "width": y.shape[1], "depth": x.shape[1], "experts": experts, **steps},
        grid=("blockIdx.x", (experts + 1) * tiles, _GROUPED_COLUMNS),
    )
