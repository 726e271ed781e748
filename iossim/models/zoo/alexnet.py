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
        x = conv_relu(b, "conv1", x, 64, 11, stride=4, padding=2)
        x = max_pool(b, "pool1", x, 3, stride=2)
        x = conv_relu(b, "conv2", x, 192, 5, padding=2)
        x = max_pool(b, "pool2", x, 3, stride=2)
        x = conv_relu(b, "conv3", x, 384, 3, padding=1)
        x = conv_relu(b, "conv4", x, 256, 3, padding=1)
        x = conv_relu(b, "conv5", x, 256, 3, padding=1)
        x = max_pool(b, "pool5", x, 3, stride=2)
    return classifier(b, x)


def classifier(b: GraphBuilder, x: str) -> str:
    with b.block("classifier"):
        x = flatten(b, "flatten", x)
        x = fully_connected(b, "fc6", x, 4096, activated=True)
        x = fully_connected(b, "fc7", x, 4096, activated=True)
        return fully_connected(b, "fc8", x, 1000)


def build_two_columns(b: GraphBuilder, image: str) -> str:
    columns = dict.fromkeys("ab", image)
    with b.block("features"):
        for column in columns:
            x = conv_relu(b, f"conv1{column}", image, 48, 11, stride=4, padding=2)
            x = max_pool(b, f"pool1{column}", x, 3, stride=2)
            x = conv_relu(b, f"conv2{column}", x, 128, 5, padding=2)
            columns[column] = max_pool(b, f"pool2{column}", x, 3, stride=2)
        both = join(b, "exchange", list(columns.values()))
        for column in columns:
            x = conv_relu(b, f"conv3{column}", both, 192, 3, padding=1)
            x = conv_relu(b, f"conv4{column}", x, 192, 3, padding=1)
            x = conv_relu(b, f"conv5{column}", x, 128, 3, padding=1)
            columns[column] = max_pool(b, f"pool5{column}", x, 3, stride=2)
        x = join(b, "join", list(columns.values()))
    return classifier(b, x)


MODELS = (
    ZooModel("alexnet", "AlexNet in one column, as torchvision has it", (3, 224, 224), build),
    ZooModel("alexnet_two_columns", "AlexNet in two columns, as it was first", (3, 224, 224), build_two_columns),
)


def flatten(b: GraphBuilder, name: str, x: str) -> str:
    """All dimensions but the batch as one."""
    with b.unit(name, "Flatten"):
        return b.add(Flatten(1), x, name=f"{name}.flatten")


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
