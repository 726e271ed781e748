"""Calls of cuDNN for the convolutions that units become, and the ways to run one beside cuDNN's plans."""

from collections import Counter

import numpy as np
import pytest
from graph_builders import builder_with
from host_backend import HostBackend, always, programs
from host_device import HostDriver, HostMemory
from hypothesis import given, settings
from hypothesis import strategies as st
from precisions import stored_in
from random_networks import sequential_schedule
from small_networks import IMAGE, OPS, UNITS, of_op

from iossim.backends.cupy_cudnn import product_kernels
from iossim.backends.cupy_cudnn.convolution import Convolution, TensorLayout
from iossim.backends.cupy_cudnn.prepared_plan import launch_program
from iossim.backends.cupy_cudnn.views import row_major
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.execution.lower import lower_schedule, lower_stage
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.matmul import Gemm
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Clip, Relu
from iossim.ir.types import DType, Precision, TensorType
from iossim.schedule.batch import Strategy


def convolutions(network: Network, channels_last: bool = False) -> dict[str, tuple[Convolution, ...]]:
    """Convolutions that each unit asks for."""
    found = programs(network, channels_last)
    return {unit: tuple(call.convolution for call in program.convolutions) for unit, program in found.items()}


def only(network: Network) -> Convolution:
    ((found,),) = convolutions(network).values()
    return found


def dense(*shape: int) -> TensorLayout:
    return TensorLayout(shape, row_major(shape))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "conv",
            {"x": dense(*IMAGE), "w": dense(5, 6, 3, 3), "y": dense(2, 5, 10, 6), "bias": False, "activation": ""},
        ),
        ("conv", {"pad_before": (1, 0), "pad_after": (2, 1)}),
        ("conv, strided and dilated", {"strides": (2, 1), "dilations": (1, 2), "bias": True}),
        ("conv, depthwise", {"w": dense(6, 1, 3, 3), "is_depthwise": True}),
        ("conv of rows", {"x": dense(2, 6, 1, 11), "w": dense(4, 6, 1, 3), "y": dense(2, 4, 1, 5), "strides": (1, 2)}),
        ("conv of rows", {"pad_before": (0, 1), "pad_after": (0, 0)}),
        ("conv and relu without bias", {"bias": True, "activation": "relu"}),  # a bias of zeros
        ("gemm and relu", {"x": dense(4, 12, 1, 1), "w": dense(8, 12, 1, 1), "y": dense(4, 8, 1, 1), "bias": True}),
        ("gemm, bias, residual and relu", {"bias": True, "z": dense(6, 8, 1, 1), "activation": "relu"}),
    ],
)
def test_an_op_is_asked_for_as(name: str, expected: dict[str, object]) -> None:
    """Padding stands before and after; rows are images of height one; fully connected layers convolve pixels."""
    found = only({**OPS, **UNITS}[name]())
    assert {field: getattr(found, field) for field in expected} == expected


def test_activations_that_a_library_has_are_in_its_call_and_others_leave_the_convolution_plain() -> None:
    for name, activation in (
        ("conv and sigmoid", "sigmoid"),
        ("conv and swish", "swish"),
        ("gemm, bias and gelu", "gelu"),
        ("conv and clip without bias", ""),
    ):
        found, in_fp32 = only(stored_in(UNITS[name](), Precision.BF16)), only(UNITS[name]())
        assert (found.bias, found.activation) == (activation != "", activation)
        assert (in_fp32.bias, in_fp32.activation) == (False, "")  # for which cuDNN compiles nothing


def test_a_residual_is_fused_where_it_is_there_already() -> None:
    found = convolutions(UNITS["conv, residual and relu"]())
    assert {name: [(each.bias, each.z is not None, each.activation) for each in asked] for name, asked in found.items()} == {
        "u": [(True, True, "relu")], "v": [(True, True, "")], "t": [(False, False, "")]
    }  # fmt: skip


def test_16_bits_lie_channels_last_and_terms_of_a_concat_in_place() -> None:
    b, x = builder_with("slices", x=(2, 16, 5, 5))
    parts = [b.conv(x, channels, 3, padding=1, name=f"part{channels}") for channels in (8, 16)]
    network = stored_in(b.network([b.add(Concat(), *parts, name="joined")]), Precision.BF16)
    calls = [program.calls for program in programs(network, channels_last=True).values()]
    found = [made.convolution for (made,) in calls]  # no copy beside a convolution
    assert [each.y.strides for each in found] == [(24 * 25, 1, 5 * 24, 24)] * 2
    assert [each.w.strides for each in found] == [(16 * 9, 1, 3 * 16, 16)] * 2
    assert {each.dtype for each in found} == {DType.BFLOAT16}


def test_alpha_beta_and_transposition_go_into_the_weights() -> None:
    network = of_op(Gemm(0.5, 2.0, False, False), (3, 10), weights=((10, 8), (8,)))
    plan = lower_schedule(sequential_schedule(network), network, in_place=True)
    driver = HostDriver()
    weights = Weights(network.graph, driver)
    (call,) = launch_program(network, plan, plan.launches[0], weights).convolutions
    for name, expected in (
        ("w", 0.5 * network.graph.constants["w0"].load().T),
        ("b", 2.0 * network.graph.constants["w1"].load()),
    ):
        held = np.empty(expected.size, np.float32)
        driver.read(weights.address(call.views[name].memory), held)
        np.testing.assert_array_equal(held, expected.reshape(-1))


def test_a_constant_on_the_device_is_asked_for_in_the_order_in_which_a_form_has_it() -> None:
    """Forms of other elements, as scaled ones, are nobody's but the backend's."""
    driver = HostDriver()
    memory, asked = driver.allocate(4096), []

    def at_hand(name: str, order: tuple[int, ...]) -> HostMemory | None:
        asked.append((name, order))
        return memory if name else None

    matrix, image = (
        Weights(network.graph, driver)
        for network in (of_op(Gemm(), (3, 10), weights=((10, 8), (8,))), of_op(Conv(), IMAGE, weights=((4, 6, 3, 3),)))
    )
    matrix.at_hand = image.at_hand = at_hand
    turned = matrix.filters("w0", transposed=True)
    views = [matrix.value("w0"), turned, matrix.laid_out(turned), matrix.value("w1")]
    assert {matrix.address(view.memory) for view in views} == {memory.address}
    assert image.address(image.laid_out(image.value("w0")).memory) == memory.address
    assert matrix.address(matrix.filters("w0", transposed=True, scale=0.5).memory) != memory.address
    assert asked == [("w0", (0, 1)), ("w0", (1, 0)), ("w0", (1, 0)), ("w1", (0,)), ("w0", (0, 2, 3, 1)), ("", ())]


def test_terms_of_a_concat_are_written_into_its_slices() -> None:
    """For one image a slice is described as dense, so that its plans are found and timed once, wherever it lies."""
    for count, strides in ((2, (8 * 25, 25, 5, 1)), (1, (4 * 25, 25, 5, 1))):
        b, x = builder_with("slices", x=(count, 4, 5, 5))
        parts = [b.conv(x, 4, name=f"part{index}") for index in range(2)]
        found = convolutions(b.network([b.add(Concat(), *parts, name="joined")]))
        assert found["part0"] == found["part1"]
        assert found["part0"][0].y == TensorLayout((count, 4, 5, 5), strides)


def test_what_cudnn_cannot_be_pointed_at_is_copied() -> None:
    found = convolutions(UNITS["channels that cuDNN cannot be pointed at"]())
    # 3x3 images: channel 1 begins 36 bytes behind an aligned address, and so does not suit; channel 0 does.
    assert found["c1"][0].y == TensorLayout((2, 1, 3, 3), (6 * 9, 9, 3, 1))
    assert found["c2"][0].y == dense(2, 2, 3, 3)
    assert found["u"][0].x == dense(2, 2, 3, 3)


def test_merged_convolutions_are_stacked() -> None:
    b, x = builder_with("merged", x=(1, 4, 5, 5))
    small, large = b.conv(x, 3, 1, name="small"), b.conv(x, 5, 3, padding=1, name="large")
    network = b.network([small, large])
    plan = lower_stage(network, [[0, 1]], Strategy.MERGE, in_place=True)
    (call,) = launch_program(network, plan, plan.launches[0], Weights(network.graph, HostDriver())).convolutions
    assert call.convolution == Convolution(
        dense(1, 4, 5, 5), dense(8, 4, 3, 3), dense(1, 8, 5, 5), (1, 1), (1, 1), (1, 1), (1, 1), bias=True
    )
    assert isinstance(network.graph.nodes[0].op, Conv)


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
    b, x = builder_with("one", x=(2, channels, *size))
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
    backend = HostBackend(network.precision, driver=HostDriver(seed=3), layout=layout)
    found = [way.name for way in backend.algorithms(network, "u")]
    for text in found:
        backend.agree(network, backend.lowered(network, choices=always(text)))
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
    (call,) = programs(network, channels_last=True)["u"].convolutions
    steps = {way: [getattr(step, "name", "cuDNN") for step in each] for way, each in call.ways.items()}
    assert steps == {
        "own8x4": ["grouped_convolution"],
        "fused": ["chain", "cuDNN"],
        "apart": ["chain", "cuDNN", "chain"],
    }


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
@settings(max_examples=60)
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
