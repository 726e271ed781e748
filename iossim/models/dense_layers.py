"""The schedule units that end networks which classify images: each function adds one and returns its value."""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.matmul import Gemm
from iossim.ir.ops.reshape import Flatten
from iossim.ir.ops.unary import Relu
from iossim.models.layers import global_average_pool


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
