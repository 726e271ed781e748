"""Channels that do not fit: images copied with zeros behind their channels, for which the library has fast kernels.

Tensor cores take 16 bytes of channels at once. Three colours are padded to 4 or 8, 78 channels to 80; filters have
zeros there once, when they are uploaded, so that what stands in padding reaches no output.
"""

from __future__ import annotations

from iossim.backends.cupy_cudnn.element_functions import functions_of
from iossim.backends.cupy_cudnn.element_types import typed
from iossim.backends.cupy_cudnn.views import KernelCall, View, coalesced, over_elements

#: Channels of 16 bits that lie in 16 bytes; so few as the second are read 8 bytes at a time, too.
FITTING, FEW = 8, 4
NAME = "pad_channels"
_SOURCE = """struct alignas({pack} * sizeof(out_t)) pack_t {{ out_t at[{pack}]; }};
static __device__ float read(float a0) {{ return {prologue}; }}
extern "C" __global__ void {name}(const in_t* __restrict__ x, out_t* __restrict__ y) {{
    const unsigned int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= {packs}u) return;
    const unsigned int first = index % {per_pixel}u * {pack}u;
    unsigned int rest = index / {per_pixel}u;
    {place}
    pack_t made;
    #pragma unroll
    for (int i = 0; i < {pack}; ++i)
        made.at[i] = first + i < {channels}u ? read(x[{source} + (long long)(first + i) * {step}]) : 0.0f;
    ((pack_t*)y)[index] = made;
}}
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
    source = _SOURCE.format(
        name=NAME, prologue=prologue, pack=pack, packs=packs, per_pixel=per_pixel, channels=x.shape[1],
        place="\n    ".join(reversed(place)), step=x.strides[1],
        source=" + ".join(f"i{axis} * {step}" for axis, step in enumerate(steps)),
    )  # fmt: skip
    text = typed(functions_of(prologue) + source, x, y)
    return over_elements(text, NAME, packs, (x, y))
