"""VGG of 16 and 19 layers (Simonyan and Zisserman, 2014, arXiv:1409.1556). A block is one resolution.

SSD on images of 300x300 over VGG-16 (Liu et al., 2016, arXiv:1512.02325), with 20 classes and background: its outputs
are those of the convolutions that predict boxes and classes, a pair for each of six resolutions. Their decoding, and
the normalisation of conv4_3, are left out.
"""

from __future__ import annotations

from functools import partial

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.pool import MaxPool
from iossim.models.catalogue import ZooModel
from iossim.models.layers import conv, conv_relu, max_pool
from iossim.models.zoo.alexnet import classifier

#: Channels of the convolutions of each resolution.
CHANNELS = (64, 128, 256, 512, 512)
_SSD_DEPTHS = (2, 2, 3, 3, 3)
_CLASSES = 21
#: Number of boxes at each position of the six resolutions.
_BOXES = (4, 6, 6, 6, 4, 4)
#: For the resolutions after VGG's: inner and output channels, stride and padding of the 3x3 convolution.
_EXTRA = ((256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))


def build(b: GraphBuilder, x: str, depths: tuple[int, ...]) -> str:
    for stage, (channels, depth) in enumerate(zip(CHANNELS, depths, strict=True), start=1):
        with b.block(f"conv{stage}"):
            for layer in range(1, depth + 1):
                x = conv_relu(b, f"conv{stage}_{layer}", x, channels, 3, padding=1)
            x = max_pool(b, f"pool{stage}", x, 2, stride=2)
    return classifier(b, x)


def ssd300(b: GraphBuilder, x: str) -> list[str]:
    maps: list[str] = []
    for stage, (channels, depth) in enumerate(zip(CHANNELS, _SSD_DEPTHS, strict=True), start=1):
        with b.block(f"conv{stage}"):
            for layer in range(1, depth + 1):
                x = conv_relu(b, f"conv{stage}_{layer}", x, channels, 3, padding=1)
            if stage == 4:
                maps.append(x)
            x = _pool(b, f"pool{stage}", x, stage == len(CHANNELS))
    with b.block("fc"):
        x = conv_relu(b, "fc6", x, 1024, 3, padding=6, dilation=6)
        x = conv_relu(b, "fc7", x, 1024)
        maps.append(x)
    for index, (within, out, stride, padding) in enumerate(_EXTRA, start=6):
        with b.block(f"conv{index}"):
            x = conv_relu(b, f"conv{index}_1", x, within)
            x = conv_relu(b, f"conv{index}_2", x, out, 3, stride=stride, padding=padding)
            maps.append(x)
    with b.block("heads"):
        return [
            conv(b, f"{what}{index}", value, boxes * values, 3, padding=1)
            for index, (value, boxes) in enumerate(zip(maps, _BOXES, strict=True), start=1)
            for what, values in (("boxes", 4), ("classes", _CLASSES))
        ]


def _pool(b: GraphBuilder, name: str, x: str, is_last: bool) -> str:
    """Halves the image, rounding up; the last one keeps it."""
    height, width = b.types[x].shape[2:]
    op = MaxPool((3, 3), (1, 1), (1, 1, 1, 1)) if is_last else MaxPool((2, 2), (2, 2), (0, 0, height % 2, width % 2))
    return b.add(op, x, name=f"{name}.max", unit=(name, "Pool"))


MODELS = (
    *(
        ZooModel(name, f"VGG of {layers} layers, with its classifier", (3, 224, 224), partial(build, depths=depths))
        for name, layers, depths in (("vgg16", 16, (2, 2, 3, 3, 3)), ("vgg19", 19, (2, 2, 4, 4, 4)))
    ),
    ZooModel("ssd300", "SSD of 300x300 over VGG-16, without the decoding of its boxes", (3, 300, 300), ssd300),
)
