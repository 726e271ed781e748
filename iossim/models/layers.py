"""The schedule units that the networks of the zoo are composed of: each function adds one and returns its value.

Batch norm is folded, so that every convolution has a bias. A *term* of a join is a value, or several summed values.
"""

from __future__ import annotations

from collections.abc import Sequence

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.nary import Add
from iossim.ir.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Identity, Relu

Size = int | tuple[int, int]


def conv(
    b: GraphBuilder, name: str, x: str, channels: int, kernel: Size = 1, stride: int = 1, padding: Size = 0, **more: int
) -> str:
    """A convolution without an activation; ``more`` are ``groups`` and ``dilation``."""
    with b.unit(name, "Conv"):
        return b.conv(x, channels, kernel, stride, padding, name=f"{name}.conv", **more)


def conv_relu(
    b: GraphBuilder, name: str, x: str, channels: int, kernel: Size = 1, stride: int = 1, padding: Size = 0, **more: int
) -> str:
    """A convolution and a ReLU; ``more`` are ``groups`` and ``dilation``."""
    with b.unit(name, "Conv-Relu"):
        y = b.conv(x, channels, kernel, stride, padding, name=f"{name}.conv", **more)
        return b.add(Relu(), y, name=f"{name}.relu")


def relu_conv(b: GraphBuilder, name: str, x: str, channels: int, kernel: Size = 1, stride: int = 1) -> str:
    """A ReLU and a convolution without padding."""
    with b.unit(name, "Relu-Conv"):
        y = b.add(Relu(), x, name=f"{name}.relu")
        return b.conv(y, channels, kernel, stride, name=f"{name}.conv")


def relu_sepconv(b: GraphBuilder, name: str, terms: Sequence[str], channels: int, kernel: int, stride: int = 1) -> str:
    """The sum of ``terms``, a ReLU, a depthwise convolution (padded to keep the size) and a pointwise one."""
    with b.unit(name, "Relu-SepConv"):
        x = terms[0] if len(terms) == 1 else b.add(Add(), *terms, name=f"{name}.sum")
        y = b.add(Relu(), x, name=f"{name}.relu")
        width = b.types[y].shape[1]
        y = b.conv(y, width, kernel, stride, kernel // 2, groups=width, name=f"{name}.depthwise")
        return b.conv(y, channels, name=f"{name}.pointwise")


def relu(b: GraphBuilder, name: str, x: str) -> str:
    """A separate ReLU."""
    return b.add(Relu(), x, name=f"{name}.relu", unit=(name, "Relu"))


def max_pool(b: GraphBuilder, name: str, x: str, kernel: int, stride: int, padding: int = 0) -> str:
    """Max pooling over a square window."""
    op = MaxPool((kernel,) * 2, (stride,) * 2, (padding,) * 4)
    return b.add(op, x, name=f"{name}.max", unit=(name, "Pool"))


def average_pool(
    b: GraphBuilder, name: str, x: str, kernel: int, stride: int, padding: int = 0, count_include_pad: bool = False
) -> str:
    """Average pooling over a square window."""
    op = AveragePool((kernel,) * 2, (stride,) * 2, (padding,) * 4, count_include_pad=count_include_pad)
    return b.add(op, x, name=f"{name}.average", unit=(name, "Pool"))


def global_average_pool(b: GraphBuilder, name: str, x: str) -> str:
    """The mean of each channel, as a 1x1 image."""
    return b.add(GlobalAveragePool(), x, name=f"{name}.average", unit=(name, "Pool"))


def join(b: GraphBuilder, name: str, terms: Sequence[str | Sequence[str]]) -> str:
    """Concatenation of sums along the channels, one unit; in simple cases a concat, an add or an identity."""
    sums = [(term,) if isinstance(term, str) else tuple(term) for term in terms]
    with b.unit(name, "Concat"):
        joined = concat_of_sums(b, name, sums)
        return joined if sums != [(joined,)] else b.add(Identity(), joined, name=f"{name}.identity")


def concat_of_sums(b: GraphBuilder, name: str, sums: Sequence[Sequence[str]]) -> str:
    """The ops of a concatenation of sums along the channels; none for a single value."""
    joined = [
        terms[0] if len(terms) == 1 else b.add(Add(), *terms, name=f"{name}.sum{index if len(sums) > 1 else ''}")
        for index, terms in enumerate(sums)
    ]
    return joined[0] if len(joined) == 1 else b.add(Concat(1), *joined, name=f"{name}.concat")


def add_relu(b: GraphBuilder, name: str, *terms: str) -> str:
    """The end of a residual block: a sum and a ReLU."""
    with b.unit(name, "Add-Relu"):
        return b.add(Relu(), b.add(Add(), *terms, name=f"{name}.sum"), name=f"{name}.relu")
