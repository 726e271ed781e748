"""fp16, bf16, int8 and weights of few bits on the host's device: outputs are NumPy's of the same storage, within the tolerance stated."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from host_backend import HostBackend, always, programs
from host_device import DropsEdges, HostDriver
from host_kernels import host_kernel
from host_library import HostLibrary
from hypothesis import given
from hypothesis import strategies as st
from needed_waits import needed_waits
from precisions import stored_in
from quantised_networks import QUANTISED, convolution, dequantised, of_fp8, scales, whole
from random_networks import random_inputs, random_network, random_schedule, random_streams

from iossim.backends.cupy_cudnn.convolution import Asked, Convolution
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan
from iossim.backends.cupy_cudnn.element_kernels import copy
from iossim.backends.cupy_cudnn.views import Memory, View, dense
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import say_once
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.store import MeasurementStore
from iossim.execution.backend import BackendError, Timing, context_of
from iossim.execution.engine import Engine
from iossim.execution.layouts import suits_channels_last
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import made_arrays
from iossim.execution.measured_run import largest_difference, plan_for, tolerance
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.pool import MaxPool
from iossim.ir.ops.quantize import DequantizedMatMul, Quantize, QuantizedConv, QuantizedMatMul
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Cast, Relu
from iossim.ir.types import FP8, DType, Precision
from iossim.models.load import load
from iossim.models.onnx.export import export_graph
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem

SIXTEEN = (Precision.FP16, Precision.BF16)
#: A step of whole numbers over the largest value, of outputs that take a range of few steps.
LARGEST_STEP = 0.05


def convolved(channels: int, count: int = 2) -> Network:
    """A chain of equal convolutions in bf16."""
    b = GraphBuilder(f"of {channels} channels", Precision.BF16)
    x = b.input("x", (1, channels, 6, 6))
    with b.block("only"):
        for index in range(count):
            with b.unit(f"conv{index}", "Conv"):
                x = b.conv(x, channels, kernel=3, padding=1)
    return b.network([x])


@pytest.mark.parametrize(("channels", "layout"), [(16, "nhwc"), (78, "nchw"), (3, "nchw")])
def test_images_lie_as_suits_the_channels_of_their_network(channels: int, layout: str) -> None:
    backend = HostBackend(Precision.BF16)
    network = convolved(channels)
    assert context_of(backend, network) == replace(backend.context, layout=layout)
    backend.agree(network)
    assert {asked.last for asked in backend.library.asked} == {layout == "nhwc"}
    given = HostBackend(Precision.BF16, layout="nhwc")
    assert context_of(given, network) == given.context


def test_networks_of_the_zoo_lie_as_their_channels_say() -> None:
    names = ("squeezenet", "inception_v3", "nasnet_a", "resnet50", "bert_layer", "randwire")
    found = {name: suits_channels_last(load(name).graph) for name in names}
    assert found == dict.fromkeys(names, True) | {"randwire": False}


def test_times_are_kept_under_the_layout_of_their_network(tmp_path: Path) -> None:
    backend = HostBackend(Precision.BF16)
    with MeasurementStore(tmp_path / "store.sqlite") as store:
        for channels in (16, 78):
            network = convolved(channels)
            batch = StageBatch.concurrent(ScheduleProblem.of_block(network, network.blocks[0]), np.array([1]))
            prices = MeasuredCostModel(backend, store, Timing(rounds=2, warm_up=0))
            assert np.isfinite(prices.price_stages(batch)).all()
            again = MeasuredCostModel(backend, store)
            assert (again.recall(batch), list(again.known(batch))) == (0, again.signatures(batch))
        assert {record.context.layout for record in store.records()} == {"nhwc", "nchw"}


@pytest.mark.parametrize("precision", SIXTEEN)
def test_numbers_are_rounded_as_numpy_rounds_them(precision: Precision) -> None:
    """Of every kind: ties, what overflows to infinity, what is too small to be normal, NaN."""
    ties = [1.0, 1 + 2**-9, 1 + 3 * 2**-9, 1 + 2**-12, 1 + 3 * 2**-12]
    values = np.array([*ties, 65519.0, 65520.0, 3.4e38, 1e-7, 6e-8, -0.0, np.nan], np.float32)
    dtype = precision.storage
    made = np.zeros(values.size, dtype.numpy)
    source, target = Memory("storage", "source"), Memory("storage", "target")
    arrays = {source: values, target: made}
    call = copy(dense(source, values.shape), dense(target, values.shape, dtype=dtype))
    kernel = host_kernel(call.source, call.name)
    kernel(call.blocks, call.threads, call.bound(lambda view: arrays[view.memory].ctypes.data))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(made.astype(np.float32), values.astype(dtype.numpy).astype(np.float32))


@pytest.mark.parametrize("precision", SIXTEEN)
@pytest.mark.parametrize("seed", range(4))
def test_what_runs_in_no_order_is_further_off_than_rounding_explains(seed: int, precision: Precision) -> None:
    network = stored_in(random_network(seed, units=6), precision)
    plan = lower_schedule(random_schedule(network, seed), network, Engine.GRAPH, in_place=True)
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    expected = evaluate_graph(network.graph, inputs)
    off = []
    for driver in (HostDriver(seed), DropsEdges(seed)):
        backend = HostBackend(precision, driver=driver)
        off.append(largest_difference(backend.execute(network, plan, inputs), expected).relative)
    assert off[0] <= tolerance(network) < off[1] / 2


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet50", "inception_v3", "bert_layer", "moe_layer"])
def test_networks_from_onnx_in_bf16_under_random_interleavings(model: str, tmp_path: Path) -> None:
    """From a file to a plan: outputs are NumPy's, there is no race, and each wait that is taken away makes one.

    Or it leaves a stream out of the capture, or its end.
    """
    small = {"resnet50": (1, 3, 64, 64), "inception_v3": (1, 3, 107, 107), "moe_layer": (1, 16, 64)}
    shapes = dict.fromkeys(load(model).graph.inputs, small[model]) if model in small else None
    file = tmp_path / f"{model}.onnx"
    onnx.save(export_graph(load(model, shapes=shapes).graph), file)
    network = load(file, dtype="bf16", units="fused")
    backend = HostBackend(Precision.BF16, driver=HostDriver(seed=5), plans_of=lambda _: {EnginePlan("eng0", 0): 1.0})
    inputs = made_arrays(network.graph.inputs, network.graph.types)
    plan = plan_for(random_streams(network, seed=1), network, backend)
    expected = evaluate_graph(network.graph, inputs)
    found = largest_difference(backend.execute(network, plan, inputs), expected)
    print(f"{model}: off by {found.relative:.1e}, tolerance {tolerance(network):.1e}")
    assert found.relative <= tolerance(network), found
    assert all(np.isfinite(each).all() and each.any() for each in expected.values())
    waits = needed_waits(network, plan, backend)
    print(f"{model}: {waits}")
    assert waits.nothing == 0
    assert waits.races > 0


def two_branches(precision: Precision) -> Network:
    """Two pointwise convolutions whose results are concatenated: each writes a slice of its buffer's channels."""
    b = GraphBuilder("two_branches", precision)
    x = b.input("x", (1, 16, 6, 6))
    branches = []
    for name in ("left", "right"):
        with b.block(name), b.unit(name, "Conv-Relu"):
            branches.append(b.add(Relu(), b.conv(x, 16)))
    with b.block("end"), b.unit("end", "Concat"):
        joined = b.add(Concat(1), *branches)
    return b.network([joined])


@pytest.mark.parametrize(("gaps_us", "packed_us", "kind"), [(20.0, 20.0, "fused:"), (90.0, 20.0, "packed:fused:")])
@pytest.mark.parametrize("precision", SIXTEEN)
def test_a_slice_is_written_packed_and_copied_where_that_is_faster(
    precision: Precision, gaps_us: float, packed_us: float, kind: str
) -> None:
    def plans_of(asked: Asked) -> Mapping[EnginePlan, float]:
        has_gaps = asked.y.strides[-1] > asked.y.shape[1]
        fused = isinstance(asked, Convolution) and asked.bias
        return {EnginePlan("eng0", 0): (gaps_us if has_gaps else packed_us) + (0.0 if fused else 50.0)}

    network = two_branches(precision)
    backend = HostBackend(precision, driver=HostDriver(seed=1), plans_of=plans_of)
    assert [backend.algorithm(network, name) for name in ("left", "right")] == [f"{kind}eng0"] * 2
    backend.agree(network)


def agree_in_whole_numbers(network: Network, *, has_plans: bool = True) -> HostLibrary:
    """Outputs are NumPy's, but for a step where scales multiply in fp32; the library, with all that it was asked for."""
    backend = HostBackend(plans_of=None if has_plans else lambda _: {})
    inputs = random_inputs(network)
    outputs = backend.execute(network, backend.lowered(network, choices=backend.choices(network)), inputs)
    for name, array in evaluate_graph(network.graph, inputs).items():
        found = outputs[name]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        if array.dtype.kind == "f":
            off = np.abs(found - array) > 1e-5 * np.abs(array).max()
        else:
            off = found != array
            np.testing.assert_allclose(found, array, rtol=0, atol=1, err_msg=name)
            assert array.size == 1 or len(np.unique(array)) > 2, "so that something is compared"
        assert off.sum() <= 2 + 0.01 * off.size, name
    found_most = largest_difference(outputs, evaluate_graph(network.graph, inputs))
    assert found_most.relative <= max(tolerance(network), LARGEST_STEP), found_most
    return backend.library


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("has_plans", [True, False])
def test_every_form_of_whole_numbers(name: str, has_plans: bool) -> None:
    library = agree_in_whole_numbers(QUANTISED[name](), has_plans=has_plans)
    assert {asked.dtype for asked in library.asked} <= {DType.INT8}
    assert all(asked.last for asked in library.asked)


@given(data=st.data(), has_plans=st.booleans())
def test_convolutions_of_any_parameters(data: st.DataObject, has_plans: bool) -> None:
    numbers = st.integers(1, 3)
    size, strides, dilations = (tuple(data.draw(st.tuples(numbers, numbers))) for _ in range(3))
    pads, groups = tuple(data.draw(st.integers(0, 2)) for _ in range(4)), data.draw(st.sampled_from([1, 2, 4]))
    x_type = data.draw(
        st.sampled_from([(np.uint8, 0), (np.uint8, 128), (np.uint8, 255), (np.int8, -128), (np.int8, 0)])
    )
    y_type = data.draw(st.sampled_from([(np.uint8, 100), (np.int8, 5)]))
    op = QuantizedConv(strides, pads, dilations, groups)
    network = convolution(
        op, (2, 4, 8, 9), (8, 4 // groups, *size), x_type, (np.int8, 0), y_type, bias=data.draw(st.booleans())
    )
    agree_in_whole_numbers(network, has_plans=has_plans)


def test_the_library_is_asked_for_what_it_can_pad() -> None:
    """Images around the middle of uint8 are padded by the library, others lie padded."""
    for name, padded in (("convolution around the middle", True), ("convolution", False)):
        asked = agree_in_whole_numbers(QUANTISED[name]()).asked
        assert {any(each.pad_before) for each in asked} == {padded}


def _computed_filters() -> Network:
    b = GraphBuilder("computed")
    own = scales(b, "own", 0.1, 0, np.int8)
    x, w = (b.add(Quantize(), b.input(name, (2, 2, 1, 1)), *own) for name in ("x", "w"))
    return b.network([b.add(QuantizedConv(), x, *own, w, *own, *own, name="op")])


def _far_zero() -> Network:
    b = GraphBuilder("far")
    own, far = scales(b, "own", 0.1, 0, np.uint8), scales(b, "far", 0.1, 3, np.uint8)
    x = b.add(Quantize(), b.input("x", (2, 3)), *own)
    return b.network([b.add(QuantizedMatMul(), x, *own, b.numbers("w", whole(0, (3, 9), np.uint8)), *far, *own)])


def test_filters_that_are_computed_run_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    agree_in_whole_numbers(_computed_filters())
    assert "(op 'op') runs on the host, by NumPy, and the device waits: 'quantize_1' is computed" in caplog.text


def test_what_cannot_be_computed_is_named() -> None:
    says = r"'w' less its zero point is -\d to 2\d\d, which int8 does not hold; quantise it symmetrically, or"
    with pytest.raises(BackendError, match=says):
        agree_in_whole_numbers(_far_zero())


FP32, FP16, BF16 = Precision.FP32, Precision.FP16, Precision.BF16


@pytest.mark.parametrize(
    ("network", "precision", "few"),
    [
        (dequantised(DType.INT4, (1,), (64, 9), 32, False), FP32, "28"),
        (
            dequantised(DType.UINT4, (5, 1), (72, 3), 24, True, FP16),
            FP16,
            "2",
        ),  # accesses of 4 bytes; a column of a block left
        (dequantised(DType.INT8, (2, 8), (40, 3), 16, True), FP32, "2"),  # the last block is shorter
        (dequantised(DType.UINT8, (1,), (32, 5), 32, True, BF16, fused=False), BF16, "28"),
        (dequantised(DType.INT4, (17,), (2, 4), 2, True), FP32, ""),  # a byte at a time, and too many rows
        (dequantised(DType.UINT4, (), (64, 2), 64, False, FP16, fused=False), FP16, "28"),
    ],
)
def test_each_way_computes_what_numpy_does(network: Network, precision: Precision, few: str) -> None:
    backend = HostBackend(precision)
    ways = [each.name for each in backend.algorithms(network, "u")]
    for way in ways:
        backend.agree(network, backend.lowered(network, choices=always(way)))
    names = {way.partition(":")[0] for way in ways}
    assert {name for name in names if name.startswith("few")} == {f"few_rows{columns}" for columns in few}
    assert names & {"fused", "apart"}


def test_a_weight_is_loaded_16_bytes_at_a_time() -> None:
    (program,) = programs(dequantised(DType.INT4, (1,), (4096, 64), 128, False, FP16)).values()
    (call,) = program.convolutions
    (kernel,) = call.ways["few_rows2"]
    assert "constexpr int W = 32;" in kernel.source
    assert "constexpr int X = 8;" in kernel.source
    assert (kernel.blocks, kernel.threads) == (32, 128)
    views = {view.memory.name: view for view in kernel.arguments if isinstance(view, View)}
    assert views["by column: w"].elements == 4096 * 64 // 2
    assert program.scratch_bytes >= 4096 * 64 * 2  # for a library


@pytest.mark.parametrize(
    ("sizes", "reason"), [((5, 3), "no kernel reads odd blocks of 'w'"), (None, "is computed at run time")]
)
def test_what_no_kernel_computes_runs_on_the_host(sizes: tuple[int, int] | None, reason: str) -> None:
    network = dequantised(DType.INT4, (2,), sizes, 5, False) if sizes else computed()
    (program,) = programs(network).values()
    assert reason in program.fallbacks[0][2]
    HostBackend().agree(network)


@pytest.mark.parametrize("precision", [FP32, FP16, BF16])
def test_products_of_fp8_are_those_of_the_numbers(precision: Precision, caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    network = of_fp8(precision)
    HostBackend(precision).agree(network)
    assert not any(program.fallbacks for program in programs(network).values())
    assert "products of fp8 of 'fp8' dequantise their operands: libraries' own are not called" in caplog.text


@pytest.mark.parametrize("dtype", FP8)
def test_images_of_fp8_reach_the_host_from_channels_last(dtype: DType) -> None:
    b = GraphBuilder("image", Precision.BF16)
    network = b.network([b.add(Cast(dtype), b.add(MaxPool((2, 2), (2, 2), (0,) * 4), b.input("x", (2, 8, 4, 4))))])
    HostBackend(Precision.BF16, layout="nhwc").agree(network)


@pytest.mark.parametrize("dtype", FP8)
def test_kernels_round_to_fp8_as_numpy_does_and_read_all_of_its_numbers(dtype: DType) -> None:
    """One float in 65,537, half steps and their neighbours, infinities and NaN, written and inside a chain."""
    b = GraphBuilder("casts")
    bits = np.arange(0, 2**32, 2**16 + 1, dtype=np.uint64).astype(np.uint32)
    halves = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32) * np.float32(1 + 2.0**-4)
    x = np.concatenate([bits.view(np.float32), halves, np.nextafter(halves, 0), np.float32([np.inf, -np.inf, 0.0])])
    with b.unit("u", "Cast"):
        stored = b.add(Cast(dtype), b.input("x", x.shape))
    with b.unit("v", "Cast"):
        read = b.add(Cast("fp32"), stored)
    with b.unit("w", "Cast-Cast"):
        inside = b.add(Cast("fp32"), b.add(Cast(dtype), "x"))
    network = b.network([stored, read, inside])
    backend = HostBackend()
    found, wanted = (
        backend.execute(network, backend.lowered(network), {"x": x}),
        evaluate_graph(network.graph, {"x": x}),
    )
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name].astype(np.float32), array.astype(np.float32), err_msg=name)


def computed() -> Network:
    b = GraphBuilder("computed")
    x, scale = b.input("x", (2, 4)), b.input("s", (1, 3))
    with b.unit("u", "Dequantized-Matmul"):
        y = b.add(DequantizedMatMul(4), x, b.numbers("w", np.ones((4, 3), np.int8)), scale)
    return b.network([y])
