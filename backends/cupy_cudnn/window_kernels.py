"""Kernels that read a neighbourhood of each element: pooling windows, and normalisation across channels.

Averages count what :mod:`iossim.ir.ops.pool` counts: padding only with ``count_include_pad``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from iossim.backends.cupy_cudnn.element_types import typed
from iossim.backends.cupy_cudnn.views import KernelCall, View, coalesced, int32s, over_elements
from iossim.execution.backend import BackendError
from iossim.ir.ops.normalization import LocalResponseNorm
from iossim.ir.ops.pool import AveragePool, MaxPool

#: Arguments: elements of the output; its channels, height and width; height and width of the input; kernel, strides,
#: padding before, dilation, each (y, x); where averaged elements begin and end, (y, x) each; input and output with
#: four strides.
WINDOW = """extern "C" __global__ void {name}(unsigned int elements, int channels, int out_h, int out_w, int h, int w,
    int kernel_y, int kernel_x, int stride_y, int stride_x, int pad_y, int pad_x, int dilation_y, int dilation_x,
    int low_y, int low_x, int high_y, int high_x,
    const in_t* x, int xn, int xc, int xh, int xw, out_t* y, int yn, int yc, int yh, int yw) {{
    unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
    if (rest >= elements) return;
    {place}
    const in_t* image = x + n * xn + (long long)c * xc;
    float result = {start};
    int counted = 0;
    for (int ky = 0; ky < kernel_y; ++ky) {{
        const int iy = oy * stride_y - pad_y + ky * dilation_y;
        for (int kx = 0; kx < kernel_x; ++kx) {{
            const int ix = ox * stride_x - pad_x + kx * dilation_x;
            if (iy >= low_y && iy < high_y && ix >= low_x && ix < high_x) ++counted;
            if (iy < 0 || iy >= h || ix < 0 || ix >= w) continue;
            const float value = image[(long long)iy * xh + (long long)ix * xw];
            result = {combine};
        }}
    }}
    y[n * yn + (long long)c * yc + (long long)oy * yh + (long long)ox * yw] = {finish};
}}
"""
#: What is different between the two, and which output a thread makes: neighbours in memory are neighbouring threads'.
_POOLS = {
    "max_pool": {"start": "-__int_as_float(0x7f800000)", "combine": "fmaxf(result, value)", "finish": "result"},
    "average_pool": {
        "start": "0.0f", "combine": "result + value", "finish": "result / (float)(counted > 0 ? counted : 1)"
    },
}  # fmt: skip
_ROWS_INNERMOST = """const int ox = rest % out_w; rest /= out_w;
    const int oy = rest % out_h; rest /= out_h;
    const int c = rest % channels;
    const long long n = rest / channels;"""
_CHANNELS_INNERMOST = """const int c = rest % channels; rest /= channels;
    const int ox = rest % out_w; rest /= out_w;
    const int oy = rest % out_h;
    const long long n = rest / out_h;"""

#: Arguments: elements; channels, elements of a channel; reach below and above; bias, alpha / size, beta; then input
#: and output, each with the strides of images, channels and elements of a channel.
LOCAL_RESPONSE_NORM = """extern "C" __global__ void local_response_norm(unsigned int elements, int channels,
    int inner, int below, int above, float bias, float scale, float beta,
    const in_t* x, int xn, int xc, int xi, out_t* y, int yn, int yc, int yi) {
    unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
    if (rest >= elements) return;
    const long long i = rest % inner; rest /= inner;
    const int c = rest % channels;
    const long long n = rest / channels;
    const in_t* column = x + n * xn + i * xi;
    float squares = 0.0f;
    for (int other = c - below; other <= c + above; ++other) {
        if (other < 0 || other >= channels) continue;
        const float value = column[(long long)other * xc];
        squares += value * value;
    }
    y[n * yn + (long long)c * yc + i * yi] = column[(long long)c * xc] / powf(bias + scale * squares, beta);
}
"""


def pool(op: MaxPool | AveragePool, x: View, y: View) -> KernelCall:
    """A pooling over one or two spatial dimensions; raises BackendError for more."""
    rank = len(op.kernel)
    if rank > 2:
        raise BackendError(f"no kernel pools over {rank} dimensions; only over one or two")
    before, after = op.pads[:rank], op.pads[rank:]
    include = isinstance(op, AveragePool) and op.count_include_pad
    low = tuple(-pad if include else 0 for pad in before)
    high = tuple(size + (pad if include else 0) for size, pad in zip(x.shape[2:], after, strict=True))
    if rank == 1:
        x, y = (
            replace(v, shape=(*v.shape[:2], 1, v.shape[2]), strides=(*v.strides[:2], 0, v.strides[2])) for v in (x, y)
        )
    arguments = (
        np.uint32(y.elements),
        *int32s([y.shape[1], *y.shape[2:], *x.shape[2:]]),
        *int32s([*_planar(op.kernel, 1), *_planar(op.strides, 1), *_planar(before, 0), *_planar(op.dilations, 1)]),
        *int32s([*_planar(low, 0), *_planar(high, 1)]),
        x,
        *int32s(x.strides),
        y,
        *int32s(y.strides),
    )
    name = "max_pool" if isinstance(op, MaxPool) else "average_pool"
    place = _CHANNELS_INNERMOST if y.shape[1] > 1 and y.strides[1] == 1 else _ROWS_INNERMOST
    source = WINDOW.format(name=name, place=place, **_POOLS[name])
    return over_elements(typed(source, x, y), name, y.elements, arguments)


def local_response_norm(op: LocalResponseNorm, x: View, y: View) -> KernelCall:
    """Local response normalisation of views whose positions are equally spaced; raises BackendError for others."""
    positions, steps = coalesced(x.shape[2:], [x.strides[2:], y.strides[2:]])
    if len(positions) > 1:
        raise BackendError("local_response_norm takes images whose rows are dense; copy them first")
    arguments = (
        np.uint32(y.elements),
        *int32s([y.shape[1], positions[0], (op.size - 1) // 2, op.size // 2]),
        np.float32(op.bias),
        np.float32(op.alpha / op.size),
        np.float32(op.beta),
        x,
        *int32s([*x.strides[:2], *steps[0]]),
        y,
        *int32s([*y.strides[:2], *steps[1]]),
    )
    return over_elements(typed(LOCAL_RESPONSE_NORM, x, y), "local_response_norm", y.elements, arguments)


def _planar(values: tuple[int, ...], missing: int) -> tuple[int, ...]:
    """The values of two spatial dimensions, where there may be one."""
    return (missing,) * (2 - len(values)) + values
