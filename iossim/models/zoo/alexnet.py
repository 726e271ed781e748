"""AlexNet as torchvision has it (Krizhevsky, "One weird trick", 2014, arXiv:1404.5997): one column, no normalisation."""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.models.catalogue import BuildOptions, ZooModel
from iossim.models.layers import conv_relu, flatten, fully_connected, fully_connected_relu, max_pool


def build(options: BuildOptions) -> Network:
    b = GraphBuilder("alexnet", options.precision, options.seed)
    x = b.input("image", options.input_shape)
    with b.block("features"):
        x = conv_relu(b, "conv1", x, 64, 11, stride=4, padding=2)
        x = max_pool(b, "pool1", x, 3, stride=2)
        x = conv_relu(b, "conv2", x, 192, 5, padding=2)
        x = max_pool(b, "pool2", x, 3, stride=2)
        x = conv_relu(b, "conv3", x, 384, 3, padding=1)
        x = conv_relu(b, "conv4", x, 256, 3, padding=1)
        x = conv_relu(b, "conv5", x, 256, 3, padding=1)
        x = max_pool(b, "pool5", x, 3, stride=2)
    with b.block("classifier"):
        x = flatten(b, "flatten", x)
        x = fully_connected_relu(b, "fc6", x, 4096)
        x = fully_connected_relu(b, "fc7", x, 4096)
        x = fully_connected(b, "fc8", x, 1000)
    return b.network([x])


MODELS = (ZooModel("alexnet", "AlexNet in one column, as torchvision has it", (3, 224, 224), build),)
