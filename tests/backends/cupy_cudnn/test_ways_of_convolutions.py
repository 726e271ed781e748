"""Ways to run a convolution beside cuDNN's plans of it: kernels of ours for groups, channels padded to what fits."""

from __future__ import annotations

from collections import Counter

import pytest
from host_device import HostDriver
from host_library import HostLibrary
from hypothesis import given, settings
from hypothesis import strategies as st
from precisions import stored_in
from random_networks import sequential_schedule

from iossim.backends.cupy_cudnn import product_kernels
from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.cupy_cudnn.prepared_plan import launch_program
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.execution.backend import Choice
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import made_arrays
from iossim.execution.tolerance import largest_difference, tolerance
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Clip, Relu
from iossim.ir.types import Precision, TensorType

ACTIVATIONS = {"relu": Relu(), "relu6": Clip(0.0, 6.0), "swish": Unary("swish", (1.0,))}


def one_convolution(
    op: Conv,
    channels: int,
    filters: int,
    kernel: tuple[int, ...],
    size: tuple[int, ...],
    *,
    precision: Precision = Precision.BF16,
    before: str = "",
    behind: str = "relu",
    bias: bool = True,
    residual: bool = False,
    beside: int = 0,
) -> Network:
    """A unit of one convolution, with an activation before and behind it; its output is a slice if one is ``beside``."""
    b = GraphBuilder("one")
    x = b.input("x", (2, channels, *size))
    weight = TensorType((filters, channels // op.groups, *kernel), b.dtype)
    shape = op.infer([b.types[x], weight])[0].shape
    z = b.input("z", shape) if residual else ""
    with b.unit("u", "Conv"):
        x = b.add(ACTIVATIONS[before], x) if before else x
        y = b.add(op, x, b.constant("w", weight.shape), *([b.constant("b", (filters,))] if bias else []))
        y = b.add(Add(), y, z) if residual else y
        y = b.add(ACTIVATIONS[behind], y) if behind else y
    if beside:
        y = b.add(Concat(), b.add(Relu(), b.input("v", (2, beside, *shape[2:]))), y)
    return stored_in(b.network([y]), precision)


def ways(network: Network, layout: str = "nhwc") -> Counter[str]:
    """Run each way of unit ``u``, hold its outputs to NumPy's, and count the ways by what they are called."""
    driver = HostDriver(seed=3)
    options = CudnnOptions(layout=layout)
    backend = CupyCudnnBackend(network.precision, Engine.GRAPH, options, driver, HostLibrary(driver))
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    expected = evaluate_graph(network.graph, inputs)
    found = [way.name for way in backend.algorithms(network, "u")]
    for text in found:
        plan = lower_schedule(
            sequential_schedule(network),
            network,
            Engine.GRAPH,
            in_place=True,
            choices=lambda units, *_, text=text: Choice(text if units == ("u",) else ""),
        )
        difference = largest_difference(backend.execute(network, plan, inputs), expected)
        assert difference.relative <= tolerance(network), (text, difference)
    return Counter(text.partition(":")[0] for text in found)


def same(groups: int, kernel: int = 3, stride: int = 1, dilation: int = 1) -> Conv:
    pad = dilation * (kernel - 1) // 2
    return Conv((stride, stride), (pad,) * 4, (dilation, dilation), groups)


@pytest.fixture
def _widest_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel of ours a convolution: the host's compiler takes a second for each."""
    monkeypatch.setattr(product_kernels, "CHANNELS_BYTES", (16,))
    monkeypatch.setattr(product_kernels, "COLUMNS", (4,))


@pytest.mark.usefixtures("_widest_only")
def test_a_depthwise_convolution_with_all_that_stands_around_it_is_one_launch() -> None:
    network = one_convolution(same(16), 16, 16, (3, 3), (5, 6), before="relu")
    assert set(ways(network)) == {"own8x4", "fused", "apart"}
    plan = lower_schedule(sequential_schedule(network), network, in_place=True)
    weights = Weights(network.graph, HostDriver(), channels_last=True)
    (call,) = launch_program(network, plan, plan.launches[0], weights).convolutions
    assert [kernel.name for kernel in call.before] == ["chain"]  # before cuDNN's
    assert [[kernel.name for kernel in calls] for calls in call.others.values()] == [["grouped_convolution"]]


@pytest.mark.slow
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
def test_channels_and_columns_of_a_thread_are_timed_against_each_other(precision: Precision) -> None:
    network = one_convolution(same(16), 16, 16, (3, 3), (5, 6), precision=precision, before="relu")
    found = ways(network)
    wide = 16 // precision.storage.bytes
    narrow = 4 // precision.storage.bytes
    assert set(found) >= {f"own{wide}x1", f"own{wide}x4", f"own{narrow}x1", f"own{narrow}x4", "fused", "apart"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "layout", "own"),
    [
        (one_convolution(Conv((1, 2), (2, 0, 1, 2), (2, 1), 12), 12, 12, (3, 2), (7, 9), behind="swish"), "nhwc", 4),
        (one_convolution(same(6, 5), 6, 6, (5, 5), (4, 7), residual=True, bias=False), "nchw", 1),
        (one_convolution(same(3), 24, 48, (3, 3), (3, 5), behind="relu6", residual=True), "nhwc", 8),
        (one_convolution(same(4, 1, 2), 12, 20, (1, 1), (4, 4), before="relu6", behind=""), "nhwc", 1),
        (one_convolution(same(5), 5, 15, (3, 3), (3, 4), beside=8), "nhwc", 1),
        (one_convolution(Conv((2,), (1, 1), (1,), 8), 8, 8, (3,), (9,), before="swish"), "nhwc", 8),
    ],
    ids=["dilated", "channels outside", "groups", "pointwise groups", "slices", "rows"],
)
def test_groups_by_kernels_of_ours(network: Network, layout: str, own: int) -> None:
    assert [way for way in ways(network, layout) if way.startswith(f"own{own}x")]


def test_channels_that_do_not_fit_are_padded() -> None:
    """The host's memory begins as NaNs: what stands behind channels would show in an output."""
    network = one_convolution(same(1), 78, 78, (1, 1), (2, 3), before="relu", behind="")
    assert set(ways(network)) == {"fused", "apart", "padded80"}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_groups_by_kernels_of_ours(data: st.DataObject) -> None:
    draw = data.draw
    groups, per_group = draw(st.integers(2, 9)), draw(st.sampled_from([1, 1, 2, 3, 8]))
    filters = groups * draw(st.sampled_from([1, 1, 2, 4, 5]))
    kernel, strides, dilations = (tuple(draw(st.integers(1, most)) for _ in range(2)) for most in (4, 3, 2))
    pads = tuple(draw(st.integers(0, 3)) for _ in range(4))
    needed = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    size = tuple(need + draw(st.integers(0, 5)) for need in needed)
    activations = st.sampled_from(["", *ACTIVATIONS])
    network = one_convolution(
        Conv(strides, pads, dilations, groups), groups * per_group, filters, kernel, size,
        precision=draw(st.sampled_from([Precision.FP32, Precision.FP16, Precision.BF16])), before=draw(activations),
        behind=draw(activations), bias=draw(st.booleans()), residual=draw(st.booleans()),
        beside=draw(st.sampled_from([0, 0, 8])),
    )  # fmt: skip
    assert [way for way in ways(network, draw(st.sampled_from(["nchw", "nhwc"]))) if way.startswith("own")]


@pytest.mark.parametrize(
    ("channels", "filters", "expected"),
    [
        (3, 16, {"padded4", "padded8"}),
        (78, 78, {"padded80"}),
        (16, 10, {"padded16"}),
        (16, 32, set()),
        (9, 8, {"padded16"}),
    ],
)
@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"before": "relu", "behind": "swish"}, {"residual": True}, {"beside": 8}])
def test_channels_that_do_not_fit_are_padded_whatever_stands_around_them(
    channels: int, filters: int, expected: set[str], more: dict[str, str | bool | int]
) -> None:
    network = one_convolution(same(1), channels, filters, (3, 3), (4, 5), **more)  # type: ignore[arg-type]
    if more == {"residual": True} and channels == 16:
        expected = set()  # a residual of other filters would have to be copied
    assert {way for way in ways(network) if way.startswith("padded")} == expected
