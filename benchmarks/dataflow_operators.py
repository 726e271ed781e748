"""Gains of splitting and linking for single operators, as in table 5 of Xenos (without its figures; typical shapes).

    python benchmarks/dataflow_operators.py [--size 56] [--channels 64]

CBR is convolution, bias and ReLU of 3x3; each alone and before a 1x1 convolution, a max pooling and an average pooling,
to which it is linked; a fully connected layer whose parameters fit all units' memories together, and one whose do not.
One line of Markdown each: microseconds on the C6678 and on the ZCU102, and the speed-up of splitting and of linking.
"""

from __future__ import annotations

from collections.abc import Callable

import typer

from benchmarks import markdown
from iossim.edge.plan import Variant
from iossim.edge.planned import dataflow
from iossim.hardware.edge import edge_device
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Op
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.matmul import Gemm
from iossim.ir.ops.pool import AveragePool, MaxPool
from iossim.ir.ops.unary import Relu


def cbr(b: GraphBuilder, x: str, name: str, channels: int, window: int) -> str:
    with b.unit(name, "Conv-Relu"):
        weights = b.constant(f"{name}.w", (channels, channels, window, window))
        bias = b.constant(f"{name}.b", (channels,))
        return b.add(Relu(), b.add(Conv(pads=(window // 2,) * 4), x, weights, bias))


def linked(channels: int, size: int, follow: Callable[[GraphBuilder, str], str] | None) -> Network:
    """A CBR after a CBR of 1x1, and the following operator."""
    b = GraphBuilder("cbr")
    x = cbr(b, b.input("x", (1, channels, size, size)), "before", channels, 1)
    x = cbr(b, x, "cbr", channels, 3)
    return b.network([x if follow is None else follow(b, x)])


def pooled(op: Op) -> Callable[[GraphBuilder, str], str]:
    def add(b: GraphBuilder, x: str) -> str:
        with b.unit("pool", "Pool"):
            return b.add(op, x)

    return add


def connected(inputs: int, outputs: int) -> Network:
    b = GraphBuilder("fc")
    x = b.input("x", (1, inputs))
    with b.unit("fc", "Gemm"):
        x = b.add(Gemm(trans_b=True), x, b.constant("w", (outputs, inputs)), b.constant("b", (outputs,)))
    return b.network([x])


def main(size: int = 56, channels: int = 64) -> None:
    networks = {
        "CBR": linked(channels, size, None),
        "CBR, CBR 1x1": linked(channels, size, lambda b, x: cbr(b, x, "behind", channels, 1)),
        "CBR, MaxPool": linked(channels, size, pooled(MaxPool((2, 2), (2, 2), (0,) * 4))),
        "CBR, AvgPool": linked(channels, size, pooled(AveragePool((2, 2), (2, 2), (0,) * 4))),
        "fully connected, 1024 x 1000": connected(1024, 1000),
        "fully connected, 4096 x 4096": connected(4096, 4096),
    }
    markdown.head("operators", "C6678 vanilla", "split", "linked", "ZCU102 vanilla", "split", "linked")
    for name, network in networks.items():
        cells = [name]
        for device in ("c6678", "zcu102"):
            found = dataflow(network, edge_device(device))
            vanilla, split, full = (found.total_us(variant) for variant in Variant)
            cells += [f"{vanilla:,.0f}", faster(vanilla, split), faster(split, full)]
        markdown.row(*cells)


def faster(before_us: float, us: float) -> str:
    """Microseconds, and the speed-up over before if there is one."""
    ratio = f"{before_us / us:.2f}"
    return f"{us:,.0f}" if ratio == "1.00" else f"{us:,.0f} ({ratio}x)"


if __name__ == "__main__":
    typer.run(main)
