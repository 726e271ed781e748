"""Channels that do not fit: images copied with zeros behind their channels, for which the library has fast kernels.

Tensor cores take 16 bytes of channels at once. Three colours are padded to 4 or 8, 78 channels to 80; filters have
zeros there once, when they are uploaded, so that what stands in padding reaches no output.
"""

from __future__ import annotations

from iossim.backends.cupy_cudnn.element_functions import functions_of
from iossim.backends.cupy_cudnn.kernel_text import kernel
from iossim.backends.cupy_cudnn.views import KernelCall, View, coalesced, over_threads

#: Channels of 16 bits that lie in 16 bytes; so few as the second are read 8 bytes at a time, too.
FITTING, FEW = 8, 4
NAME = "pad_channels"
_BODY = """if ($place >= count) return;
$places
const x_t* from = $x;
y_t made[W];
ELEMENTS {
    const float a0 = first * W + e < CHANNELS ? (float)from[(long long)e * x_c] : 0.0f;
    made[e] = first * W + e < CHANNELS ? PROLOGUE : 0.0f;
}
put<W>($y, made);
"""


def fitting(channels: int) -> list[int]:
    """The numbers of channels to which so many may be padded; itself where they fit."""
    whole = -(-channels // FITTING) * FITTING
    return [FEW, whole] if channels <= FEW else [whole]


def padded(x: View, y: View, prologue: str) -> KernelCall:
    """``prologue`` (in ``a0``) of images to dense ones of more channels, which lie innermost; zeros are behind them."""
    width = min(FITTING, y.shape[1])
    sizes, steps = coalesced([y.shape[0], *y.shape[2:]], [[v.strides[0], *v.strides[2:]] for v in (x, y)])
    places = {f"i{axis}": size for axis, size in enumerate(sizes)}
    of_channels = {"first": (width * x.strides[1], width), "c": (x.strides[1], 1)}
    text, arguments = kernel(
        NAME,
        _BODY.replace("PROLOGUE", prologue),
        {"x": x, "y": y},
        dict(zip(places, zip(*steps, strict=True), strict=True)) | of_channels,
        places | {"first": y.shape[1] // width},
        constants={"W": width, "CHANNELS": x.shape[1]},
        functions=functions_of(prologue),
    )
    return over_threads(text, NAME, y.elements // width, arguments)
