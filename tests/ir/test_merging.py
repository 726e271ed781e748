"""Operator merge computes what its parts compute, and refuses what it cannot."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim.base.errors import GraphError, ScheduleError
from iossim.ir.builder import GraphBuilder
from iossim.ir.merging import merge_keys, merged_convolution
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.unary import Relu

sizes = st.integers(1, 5)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(sizes, sizes, *(st.integers(0, 3) for _ in range(4))), min_size=2, max_size=4),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.integers(5, 9),
    st.integers(0, 99),
)
def test_a_merged_convolution_computes_its_parts(
    kernels: list[tuple[int, ...]], stride: tuple[int, int], dilation: tuple[int, int], size: int, seed: int
) -> None:
    """Whatever kernels and paddings merge, merging them is exact; what shares a key always merges."""
    generator = np.random.default_rng(seed)
    b = GraphBuilder("g")
    x = b.input("x", (2, 3, size, size))
    outputs = []
    for index, (height, width, *pads) in enumerate(kernels):
        weight = b.constant(f"w{index}", (index + 1, 3, height, width))
        try:
            outputs.append(b.add(Conv(stride, tuple(pads), dilation, 1), x, weight, name=f"conv{index}"))
        except GraphError:
            continue
        if min(b.types[outputs[-1]].shape) < 1:
            outputs.pop()
    try:
        network = b.network(outputs)
    except GraphError:
        return  # a kernel larger than the padded input
    keys = merge_keys(network, range(len(network.units)))
    image = generator.standard_normal((2, 3, size, size)).astype(np.float32)
    for key in {key for key in keys if key is not None}:
        units = [index for index, own in enumerate(keys) if own == key]
        if len(units) < 2:
            continue
        merged = merged_convolution(network, units)
        nodes = [network.graph.nodes[network.units[unit].nodes[0]] for unit in units]
        weights = [network.graph.constants[node.inputs[1]].load() for node in nodes]
        stacked, bias = merged.stack(weights, [None] * len(units))
        assert bias is None
        (together,) = merged.op.evaluate([image, stacked])
        assert together.shape == merged.output.shape
        for part, (node, weight) in enumerate(zip(nodes, weights, strict=True)):
            (alone,) = node.op.evaluate([image, weight])
            rows = slice(merged.channel_begin[part], merged.channel_begin[part + 1])
            np.testing.assert_allclose(together[:, rows], alone, rtol=1e-5, atol=1e-5)


def pair(
    first: dict[str, object], second: dict[str, object], relu: tuple[bool, bool] = (True, True), size: int = 8
) -> Network:
    b = GraphBuilder("pair")
    x = b.input("x", (1, 4, size, size))
    outputs = []
    for index, (arguments, activated) in enumerate(zip((first, second), relu, strict=True)):
        with b.unit(f"u{index}", "Conv-Relu"):
            y = b.conv(x, 4, name=f"conv{index}", **arguments)  # type: ignore[arg-type]
            outputs.append(b.add(Relu(), y, name=f"relu{index}") if activated else y)
    return b.network(outputs)


@pytest.mark.parametrize(
    "network",
    [
        pair({"kernel": 1}, {"kernel": 3, "padding": 1}),
        pair({"kernel": (1, 3), "padding": (0, 1)}, {"kernel": (3, 1), "padding": (1, 0)}),
        pair({"kernel": 3, "stride": 2, "padding": 1}, {"kernel": 5, "stride": 2, "padding": 2}),
    ],
)
def test_what_merges(network: Network) -> None:
    merged = merged_convolution(network, [0, 1])
    assert merged.output.shape[1] == 8
    assert merged.activation == "relu()"


@pytest.mark.parametrize(
    "network",
    [
        pair({"kernel": 1}, {"kernel": 1, "stride": 2}),
        pair({"kernel": 1}, {"kernel": 1, "groups": 4}),
        pair({"kernel": 1}, {"kernel": 3}),
        pair({"kernel": 1}, {"kernel": 1}, relu=(True, False)),
    ],
    ids=["strides", "grouped with dense", "output sizes", "activations"],
)
def test_what_does_not_merge(network: Network) -> None:
    with pytest.raises(ScheduleError, match="units u0, u1 do not merge"):
        merged_convolution(network, [0, 1])


def test_even_kernels_at_stride_two_are_placed_by_their_padding() -> None:
    """2x2 unpadded and 4x4 padded by 1: matching sizes alone would move the smaller kernel by one pixel."""
    network = pair({"kernel": 2, "stride": 2}, {"kernel": 4, "stride": 2, "padding": 1})
    merged = merged_convolution(network, [0, 1])
    assert merged.offsets == ((1, 1), (0, 0))
    assert merged.op.pads[:2] == (1, 1)


def test_a_convolution_of_another_input_does_not_merge() -> None:
    b = GraphBuilder("two inputs")
    x, y = b.input("x", (1, 4, 8, 8)), b.input("y", (1, 4, 8, 8))
    network = b.network([b.conv(x, 4, name="a"), b.conv(y, 4, name="b")])
    assert len(set(merge_keys(network, [0, 1]))) == 2
