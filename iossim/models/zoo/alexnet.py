"""AlexNet without normalisation, in one column, as in torchvision (Krizhevsky, 2014, arXiv:1404.5997).

In two columns, as first published (Krizhevsky, Sutskever and Hinton, NeurIPS 2012): convolutions of two groups, each a
separate kernel, as before cuDNN 7. The columns are joined before the third convolution and after the fifth.
"""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.matmul import Gemm
from iossim.ir.ops.reshape import Flatten
from iossim.ir.ops.unary import Relu
from iossim.models.catalogue import ZooModel
from iossim.models.layers import conv_relu, global_average_pool, join, max_pool


def build(b: GraphBuilder, x: str) -> str:
    with b.block("features"):
        x = _last_features(b, "", _first_features(b, "", x, 64, 192), 384, 256, 256)
    return classifier(b, x)


def _first_features(b: GraphBuilder, column: str, x: str, *channels: int) -> str:
    x = conv_relu(b, f"conv1{column}", x, channels[0], 11, stride=4, padding=2)
    x = max_pool(b, f"pool1{column}", x, 3, stride=2)
    x = conv_relu(b, f"conv2{column}", x, channels[1], 5, padding=2)
    return max_pool(b, f"pool2{column}", x, 3, stride=2)


def _last_features(b: GraphBuilder, column: str, x: str, *channels: int) -> str:
    for number, width in enumerate(channels, start=3):
        x = conv_relu(b, f"conv{number}{column}", x, width, 3, padding=1)
    return max_pool(b, f"pool5{column}", x, 3, stride=2)


def classifier(b: GraphBuilder, x: str) -> str:
    with b.block("classifier"):
        x = flatten(b, "flatten", x)
        x = fully_connected(b, "fc6", x, 4096, activated=True)
        x = fully_connected(b, "fc7", x, 4096, activated=True)
        return fully_connected(b, "fc8", x, 1000)


def build_two_columns(b: GraphBuilder, image: str) -> str:
    with b.block("features"):
        x = join(b, "exchange", [_first_features(b, column, image, 48, 128) for column in "ab"])
        x = join(b, "join", [_last_features(b, column, x, 192, 192, 128) for column in "ab"])
    return classifier(b, x)


MODELS = (
    ZooModel("alexnet", "AlexNet in one column, as torchvision has it", (3, 224, 224), build),
    ZooModel("alexnet_two_columns", "AlexNet in two columns, as it was first", (3, 224, 224), build_two_columns),
)


def flatten(b: GraphBuilder, name: str, x: str) -> str:
    """All dimensions but the batch as one."""
    return b.add(Flatten(1), x, name=f"{name}.flatten", unit=(name, "Flatten"))


def fully_connected(b: GraphBuilder, name: str, x: str, features: int, activated: bool = False) -> str:
    """A matrix product with a weight ``[features, inputs]`` and a bias; a ReLU, if it is ``activated``."""
    with b.unit(name, "Gemm-Relu" if activated else "Gemm"):
        weight = b.constant(f"{name}.weight", (features, b.types[x].shape[1]))
        bias = b.constant(f"{name}.bias", (features,))
        y = b.add(Gemm(trans_b=True), x, weight, bias, name=f"{name}.gemm")
        return b.add(Relu(), y, name=f"{name}.relu") if activated else y


def head(b: GraphBuilder, x: str) -> str:
    """The final block of a network for ImageNet: the mean of each channel, and a fully connected layer."""
    with b.block("head"):
        x = flatten(b, "flatten", global_average_pool(b, "avgpool", x))
        return fully_connected(b, "fc", x, 1000)
