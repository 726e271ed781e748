"""Depthwise and grouped convolutions by kernels of ours, with what stands before and behind them in the same launch.

A thread makes a few neighbouring channels of a few neighbouring columns: where channels lie innermost, it reads and
writes up to 16 bytes at a time, and keeps the inputs that windows of neighbouring columns share. All sizes are
constants of the text, so that indices are divided by multiplication and loops over the window are unrolled. Sums are of
fp32, and rounded once, behind the epilogue. How many channels and columns a thread takes is not reckoned here: a few
ways are offered, and timed beside the library's plans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from iossim.backends.cupy_cudnn.element_functions import functions_of
from iossim.backends.cupy_cudnn.element_types import definitions, element_name
from iossim.backends.cupy_cudnn.views import BLOCK_THREADS, MOST_ELEMENTS, KernelCall, View
from iossim.ir.ops.conv import Conv

NAME = "grouped_convolution"
ACCESS_BYTES = 16
#: The bytes of channels, and the columns, that a thread takes.
CHANNELS_BYTES, COLUMNS = (ACCESS_BYTES, 4), (1, 4)
#: Below so many threads blocks are small, so that all multiprocessors have one.
FEW_THREADS, SMALL_BLOCK = 2**16, 64

_SOURCE = """{before}typedef {x} in_t;
template <class T, int N> struct alignas(sizeof(T) * N < {access} ? sizeof(T) * N : {access}) pack {{ T at[N]; }};
static __device__ float read(float a0) {{ return {prologue}; }}
extern "C" __global__ void {name}({parameters}) {{
    unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
    if (rest >= {threads}u) return;
    {place}
    const int top = (int)oy * {stride_y} - {pad_y}, left = (int)ox * {stride_x} - {pad_x};
    float sums[{columns}][{channels}] = {{}};
    {sum}
    #pragma unroll
    for (int t = 0; t < {columns}; ++t) {{
        if (ox + t >= {out_w}u) break;
        {stored} all = {{}};
        {load}
        #pragma unroll
        for (int i = 0; i < {channels}; ++i) {{
            const float a0 = sums[t][i];
            {operands}
            {y} made;
            made = {expression};
            {keep};
        }}
        *({stored}*)({target}) = all;
    }}
}}
"""
#: Each channel by a window of its own: a column of the input is read once for all columns of the output.
_DEPTHWISE = """const in_t* image = x + n * {xn} + (long long)k * {xc};
    #pragma unroll
    for (int ky = 0; ky < {kernel_y}; ++ky) {{
        const int iy = top + ky * {dilation_y};
        if (iy < 0 || iy >= {h}) continue;
        pack<in_t, {channels}> taps[{kernel_x}];
        #pragma unroll
        for (int kx = 0; kx < {kernel_x}; ++kx)
            taps[kx] = *(const pack<in_t, {channels}>*)(w + (ky * {kernel_x} + kx) * {filters} + k);
        #pragma unroll
        for (int j = 0; j < {reach}; ++j) {{
            const int ix = left + j;
            if (ix < 0 || ix >= {w}) continue;
            const pack<in_t, {channels}> found =
                *(const pack<in_t, {channels}>*)(image + (long long)iy * {xh} + (long long)ix * {xw});
            #pragma unroll
            for (int kx = 0; kx < {kernel_x}; ++kx) {{
                const int ahead = j - kx * {dilation_x};
                if (ahead < 0 || ahead % {stride_x} || ahead / {stride_x} >= {columns}) continue;
                #pragma unroll
                for (int i = 0; i < {channels}; ++i)
                    sums[ahead / {stride_x}][i] += read(found.at[i]) * (float)taps[kx].at[i];
            }}
        }}
    }}"""
#: Filters of one group by all of its channels.
_GROUPED = """const in_t* image = x + n * {xn} + (long long)(k / {group_filters} * {group_channels}) * {xc};
    for (int ky = 0; ky < {kernel_y}; ++ky) {{
        const int iy = top + ky * {dilation_y};
        if (iy < 0 || iy >= {h}) continue;
        for (int kx = 0; kx < {kernel_x}; ++kx) {{
            const in_t* taps = w + (long long)((ky * {kernel_x} + kx) * {group_channels}) * {filters} + k;
            for (int c = 0; c < {group_channels}; c += {depth}) {{
                float found[{columns}][{depth}] = {{}};
                #pragma unroll
                for (int t = 0; t < {columns}; ++t) {{
                    const int ix = left + t * {stride_x} + kx * {dilation_x};
                    if (ix < 0 || ix >= {w}) continue;
                    const pack<in_t, {depth}> at = *(const pack<in_t, {depth}>*)(
                        image + (long long)iy * {xh} + (long long)ix * {xw} + (long long)c * {xc});
                    #pragma unroll
                    for (int u = 0; u < {depth}; ++u) found[t][u] = read(at.at[u]);
                }}
                #pragma unroll
                for (int u = 0; u < {depth}; ++u) {{
                    const pack<in_t, {channels}> tap =
                        *(const pack<in_t, {channels}>*)(taps + (long long)(c + u) * {filters});
                    #pragma unroll
                    for (int t = 0; t < {columns}; ++t)
                        #pragma unroll
                        for (int i = 0; i < {channels}; ++i) sums[t][i] += found[t][u] * (float)tap.at[i];
                }}
            }}
        }}
    }}"""


def convolutions(
    op: Conv, prologue: str, x: View, taps: View, y: View, expression: str, operands: Sequence[View]
) -> Mapping[str, KernelCall]:
    """Ways to compute ``y = expression(conv(prologue(x), taps), *operands)`` in one launch, by name.

    ``prologue`` is an expression in ``a0``, an element of ``x``; ``expression`` one in ``a0``, a sum, and ``a1``, ...,
    operands that are broadcast to ``y``. ``taps`` are filters with the window outermost, their number innermost:
    ``[kernel_y, kernel_x, channels of a group, filters]``. None for more than two dimensions of space.
    """
    rank = len(op.strides)
    if rank > 2 or y.elements > MOST_ELEMENTS:
        return {}
    planar = [_planar(view, rank) for view in (x, y, *(operand.broadcast(y.shape) for operand in operands))]
    x, y, *operands = planar
    filters, group_channels = y.shape[1], taps.shape[-2]
    group_filters = filters // op.groups
    is_depthwise = group_channels == group_filters == 1
    is_last = x.strides[1] == 1 or y.strides[1] == 1
    inside = [y, *([x] if is_depthwise else [])]  # what is read or written by channels of one thread
    share = filters if is_depthwise else group_filters
    widths = dict.fromkeys(_width(inside, share, most // y.dtype.bytes) for most in CHANNELS_BYTES)
    columns = [count for count in COLUMNS if count == 1 or y.shape[3] >= count]
    depth = 1 if is_depthwise else _width([x], group_channels, ACCESS_BYTES // x.dtype.bytes)
    one, none = (1,) * (2 - rank), (0,) * (2 - rank)
    kernel_x = taps.shape[rank - 1]
    (stride_y, stride_x), (dilation_y, dilation_x) = (*one, *op.strides), (*one, *op.dilations)
    pad_y, pad_x = (*none, *op.pads[:rank])
    found: dict[str, KernelCall] = {}
    for channels, count in product(widths, columns):
        tiles = -(-y.shape[3] // count)
        in_pairs = y.dtype.bytes == 2 and channels > 1  # as whole words, which the compiler stores at once
        threads = y.shape[0] * y.shape[2] * tiles * (filters // channels)
        sizes = {
            "threads": threads, "columns": count, "channels": channels, "depth": depth, "access": ACCESS_BYTES,
            "filters": filters, "group_filters": group_filters, "group_channels": group_channels,
            "h": x.shape[2], "w": x.shape[3], "out_w": y.shape[3],
            "kernel_y": math.prod(taps.shape[: rank - 1]), "kernel_x": kernel_x, "stride_y": stride_y,
            "stride_x": stride_x, "dilation_y": dilation_y, "dilation_x": dilation_x, "pad_y": pad_y, "pad_x": pad_x,
            "reach": (count - 1) * stride_x + (kernel_x - 1) * dilation_x + 1,
            **{f"x{axis}": stride for axis, stride in zip("nchw", x.strides, strict=True)},
        }  # fmt: skip
        source = _SOURCE.format(
            **sizes,
            name=NAME,
            before=definitions(view.dtype for view in (x, y, *operands)) + functions_of(prologue + expression),
            x=element_name(x.dtype),
            y=element_name(y.dtype),
            prologue=prologue,
            expression=expression,
            parameters=_parameters(x, y, operands),
            place=_place(filters // channels, channels, tiles, count, y.shape[2], is_last),
            sum=(_DEPTHWISE if is_depthwise else _GROUPED).format(**sizes),
            load="\n        ".join(_loads(operands, channels, False)),
            operands="\n            ".join(_loads(operands, channels, True)),
            target=f"y + {_at(y)}",
            stored=f"pack<unsigned int, {channels // 2}>" if in_pairs else f"pack<{element_name(y.dtype)}, {channels}>",
            keep="all.at[i / 2] |= (unsigned int)made.bits << i % 2 * 16" if in_pairs else "all.at[i] = made",
        )
        block = SMALL_BLOCK if threads < FEW_THREADS else BLOCK_THREADS
        found[f"own{channels}x{count}"] = KernelCall(source, NAME, -(-threads // block), block, (x, taps, *operands, y))
    return found


def _planar(view: View, rank: int) -> View:
    """A view of images whose rows are one-dimensional as one of images of height one."""
    if rank == 2:
        return view
    return replace(view, shape=(*view.shape[:2], 1, *view.shape[2:]), strides=(*view.strides[:2], 0, *view.strides[2:]))


def _width(views: Sequence[View], channels: int, most: int) -> int:
    """The most channels, a power of two that divides them, of which each of the views has an aligned pack anywhere."""
    if any(view.strides[1] != 1 and view.shape[1] > 1 for view in views):
        return 1
    steps = [
        stride
        for view in views
        for axis, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True))
        if axis != 1 and size > 1
    ]
    return math.gcd(most, channels, *steps, *(view.offset for view in views))


def _place(packs: int, channels: int, tiles: int, columns: int, out_h: int, is_last: bool) -> str:
    """Which output a thread makes: neighbours in memory are neighbouring threads'."""
    taken = {
        "k": f"const unsigned int k = rest % {packs}u * {channels}u; rest /= {packs}u;",
        "ox": f"const unsigned int ox = rest % {tiles}u * {columns}u; rest /= {tiles}u;",
        "oy": f"const unsigned int oy = rest % {out_h}u; rest /= {out_h}u;",
    }
    order = ("k", "ox", "oy") if is_last else ("ox", "oy", "k")
    return "\n    ".join([*(taken[name] for name in order), "const long long n = rest;"])


def _parameters(x: View, y: View, operands: Sequence[View]) -> str:
    # An operand may be the output itself, which is written in place: those are not declared __restrict__.
    names = [f"const {element_name(view.dtype)}* p{index}" for index, view in enumerate(operands, 1)]
    return ", ".join(
        ["const in_t* __restrict__ x", "const in_t* __restrict__ w", *names, f"{element_name(y.dtype)}* y"]
    )


def _loads(operands: Sequence[View], channels: int, each: bool) -> list[str]:
    """What reads operands: those that lie as the output does for all channels of a thread, the others for each."""
    lines = []
    for index, view in enumerate(operands, 1):
        kind, is_packed = element_name(view.dtype), _width([view], channels, channels) == channels
        if is_packed and each:
            lines.append(f"const float a{index} = q{index}.at[i];")
        elif is_packed:
            pack = f"pack<{kind}, {channels}>"
            lines.append(f"const {pack} q{index} = *(const {pack}*)(p{index} + {_at(view)});")
        elif each:
            lines.append(f"const float a{index} = p{index}[{_at(view)} + (long long)i * {view.strides[1]}];")
    return lines


def _at(view: View) -> str:
    """Where the channels of a thread begin in one column of a view."""
    n, c, h, w = view.strides
    return f"n * {n} + (long long)k * {c} + (long long)oy * {h} + (long long)(ox + t) * {w}"
