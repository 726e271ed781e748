"""Convolutions of whole numbers of 8 bits, with sums of int32.

What cuDNN has no plan for runs by this kernel, and what it has one for is timed beside it. A thread computes one sum.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from iossim.backends.cupy_cudnn.element_types import typed
from iossim.backends.cupy_cudnn.views import KernelCall, View, int32s, over_elements
from iossim.execution.backend import BackendError
from iossim.ir.ops.conv import Conv

NAME = "integer_convolution"
#: Arguments: sums; filters, height and width of the output; filters and channels of a group, height and width of the
#: input; height and width of a filter; strides, padding before and dilation, each (y, x); images, filters and sums,
#: each with four strides.
_SOURCE = f"""extern "C" __global__ void {NAME}(unsigned int sums, int filters, int out_h, int out_w,
    int group_filters, int group_channels, int h, int w, int filter_h, int filter_w,
    int stride_y, int stride_x, int pad_y, int pad_x, int dilation_y, int dilation_x,
    const in_t* x, int xn, int xc, int xh, int xw, const signed char* f, int fk, int fc, int fh, int fw,
    out_t* y, int yn, int yc, int yh, int yw) {{
    unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
    if (rest >= sums) return;
    const int k = rest % filters; rest /= filters;
    const int ox = rest % out_w; rest /= out_w;
    const int oy = rest % out_h;
    const long long n = rest / out_h;
    const in_t* image = x + n * xn + (long long)(k / group_filters * group_channels) * xc;
    const signed char* filter = f + (long long)k * fk;
    int sum = 0;
    for (int fy = 0; fy < filter_h; ++fy) {{
        const int iy = oy * stride_y - pad_y + fy * dilation_y;
        if (iy < 0 || iy >= h) continue;
        for (int fx = 0; fx < filter_w; ++fx) {{
            const int ix = ox * stride_x - pad_x + fx * dilation_x;
            if (ix < 0 || ix >= w) continue;
            const in_t* at = image + (long long)iy * xh + (long long)ix * xw;
            const signed char* own = filter + fy * fh + fx * fw;
            for (int c = 0; c < group_channels; ++c) sum += (int)at[(long long)c * xc] * (int)own[(long long)c * fc];
        }}
    }}
    y[n * yn + (long long)k * yc + (long long)oy * yh + (long long)ox * yw] = sum;
}}
"""


def convolution(op: Conv, x: View, w: View, y: View) -> KernelCall:
    """``y = conv(x, w)`` with zeros around the images; raises BackendError for more than two spatial dimensions."""
    rank = len(op.strides)
    if rank > 2:
        raise BackendError(f"no kernel convolves whole numbers over {rank} dimensions; only over one or two")
    if rank == 1:
        x, w, y = (
            replace(v, shape=(*v.shape[:2], 1, v.shape[2]), strides=(*v.strides[:2], 0, v.strides[2]))
            for v in (x, w, y)
        )
    one, none = ((1,), (0,)) if rank == 1 else ((), ())
    before = op.pads[:rank]
    group_filters = y.shape[1] * w.shape[1] // x.shape[1]
    arguments = (
        np.uint32(y.elements),
        *int32s([*y.shape[1:], group_filters, w.shape[1], *x.shape[2:], *w.shape[2:]]),
        *int32s([*one, *op.strides, *none, *before, *one, *op.dilations]),
        *(item for view in (x, w, y) for item in (view, *int32s(view.strides))),
    )
    return over_elements(typed(_SOURCE, x, y), NAME, y.elements, arguments)
