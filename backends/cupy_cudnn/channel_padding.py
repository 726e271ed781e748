"""Channels that do not fit: images copied with zeros behind their channels, for which the library has fast kernels.

Tensor cores take 16 bytes of channels at once. Three colours are padded to 4 or 8, 78 channels to 80; filters have
zeros there once, when they are uploaded, so that what stands in padding reaches no output.
"""

from __future__ import annotations

from iossim.backends.cupy_cudnn.element_functions import functions_of
from iossim.backends.cupy_cudnn.element_types import element_name
from iossim.backends.cupy_cudnn.kernel_text import kernel_source
from iossim.backends.cupy_cudnn.views import KernelCall, View, coalesced, over_threads

#: Channels of 16 bits that lie in 16 bytes; so few as the second are read 8 bytes at a time, too.
FITTING, FEW = 8, 4
NAME = "pad_channels"
_BODY = """const unsigned int index = blockIdx.x * blockDim.x + threadIdx.x;
if (index >= {packs}u) return;
const int first = (int)(index % {per_pixel}u) * {pack};
unsigned int rest = index / {per_pixel}u;
{place}
{y} made[{pack}];
#pragma unroll
for (int i = 0; i < {pack}; ++i) {{
    const float a0 = first + i < {channels} ? (float)x[{source} + (long long)(first + i) * {step}] : 0.0f;
    made[i] = first + i < {channels} ? {prologue} : 0.0f;
}}
put<{pack}>(y + (long long)index * {pack}, made);
"""


def fitting(channels: int) -> list[int]:
    """The numbers of channels to which so many may be padded; itself where they fit."""
    whole = -(-channels // FITTING) * FITTING
    return [FEW, whole] if channels <= FEW else [whole]


def padded(x: View, y: View, prologue: str) -> KernelCall:
    """``prologue`` (in ``a0``) of images to dense ones of more channels, which lie innermost; zeros are behind them."""
    pack = min(FITTING, y.shape[1])
    per_pixel, packs = y.shape[1] // pack, y.elements // pack
    sizes, (steps,) = coalesced([x.shape[0], *x.shape[2:]], [[x.strides[0], *x.strides[2:]]])
    place = [f"const long long i{axis} = rest % {size}u; rest /= {size}u;" for axis, size in enumerate(sizes)]
    body = _BODY.format(
        prologue=prologue, pack=pack, packs=packs, per_pixel=per_pixel, channels=x.shape[1], step=x.strides[1],
        place="\n".join(reversed(place)), y=element_name(y.dtype),
        source=" + ".join(f"i{axis} * {step}" for axis, step in enumerate(steps)),
    )  # fmt: skip
    parameters = [f"const {element_name(x.dtype)}* __restrict__ x", f"{element_name(y.dtype)}* __restrict__ y"]
    text = kernel_source(NAME, (x.dtype, y.dtype), parameters, body, functions_of(prologue))
    return over_threads(text, NAME, packs, (x, y))
