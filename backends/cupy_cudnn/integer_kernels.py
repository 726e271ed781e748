"""Convolutions of whole numbers of 8 bits, with sums of int32.

What cuDNN has no plan for runs by this kernel, and what it has one for is timed beside it. A thread computes one sum.
"""

from __future__ import annotations

from dataclasses import replace

from iossim.backends.cupy_cudnn.kernel_text import kernel
from iossim.backends.cupy_cudnn.views import KernelCall, View, over_threads
from iossim.execution.backend import BackendError
from iossim.ir.ops.conv import Conv

NAME = "integer_convolution"
#: Constants of the text: strides S, padding before P, dilations D, each (Y, X); filters and channels of a group.
_BODY = """if ($place >= count) return;
$places
const x_t* image = x + (long long)n * x_n + (long long)(k / FILTERS * CHANNELS) * x_k;
const f_t* filter = f + (long long)k * f_n;
int sum = 0;
for (int fy = 0; fy < filter_h; ++fy) {
    const int iy = oy * SY - PY + fy * DY;
    if (iy < 0 || iy >= h) continue;
    for (int fx = 0; fx < filter_w; ++fx) {
        const int ix = ox * SX - PX + fx * DX;
        if (ix < 0 || ix >= w) continue;
        const x_t* at = image + (long long)iy * x_oy + (long long)ix * x_ox;
        const f_t* own = filter + fy * f_oy + fx * f_ox;
        for (int c = 0; c < CHANNELS; ++c) sum += (int)at[(long long)c * x_k] * (int)own[(long long)c * f_k];
    }
}
*($y) = sum;
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
    pairs = (*one, *op.strides, *none, *op.pads[:rank], *one, *op.dilations)
    constants = dict(zip(("SY", "SX", "PY", "PX", "DY", "DX"), pairs, strict=True))
    text, arguments = kernel(
        NAME,
        _BODY,
        {"x": x, "f": w, "y": y},
        dict(zip(("n", "k", "oy", "ox"), zip(x.strides, w.strides, y.strides, strict=True), strict=True)),
        dict(zip(("n", "oy", "ox", "k"), (y.shape[0], *y.shape[2:], y.shape[1]), strict=True)),
        numbers=dict(zip(("h", "w", "filter_h", "filter_w"), (*x.shape[2:], *w.shape[2:]), strict=True)),
        constants=constants | {"FILTERS": y.shape[1] * w.shape[1] // x.shape[1], "CHANNELS": w.shape[1]},
    )
    return over_threads(text, NAME, y.elements, arguments)
