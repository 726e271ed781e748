"""The kernel model: never slower on a better device, on parts of its SMs, by the libraries of an engine; and kernels given as they are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_devices import with_facts

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.device_rates import bandwidth_part, device_rates
from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.kernel_times import AVERAGE_SLOTS
from iossim.backends.simulator.kernel_work import kernel_work, least_block_us, waves_us
from iossim.backends.simulator.raw_kernels import FP64_LANES, INT_LANES, Pipe, RawKernel, raw_kernel_work
from iossim.base.errors import OptionError
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.load import device
from iossim.hardware.lowering.gpu.matrix_product import TILES
from iossim.hardware.lowering.kernel import Kernel, Libraries, Panels, WorkClass
from iossim.hardware.names import shipped_names
from iossim.ir.builder import GraphBuilder
from iossim.ir.types import Precision
from iossim.schedule.problem import ScheduleProblem

V100 = device("v100-sxm2")

panels = st.builds(
    Panels,
    row_tiles=st.integers(1, 2_000),
    column_tiles=st.integers(1, 2_000),
    row_bytes=st.integers(1, 10**9),
    column_bytes=st.integers(1, 10**9),
    inner=st.integers(1, 100_000),
    strided_bytes=st.integers(0, 2 * 10**9),
)

kernels = st.builds(
    Kernel,
    name=st.just("kernel"),
    work_class=st.sampled_from(list(WorkClass)),
    blocks=st.integers(1, 20_000),
    threads_per_block=st.sampled_from([32, 64, 128, 256, 512]),
    registers_per_thread=st.integers(16, 120),
    shared_bytes_per_block=st.sampled_from([0, 8_448, 16_640, 49_152]),
    flops=st.integers(0, 10**11),
    activation_bytes=st.integers(0, 10**9),
    weight_bytes=st.integers(0, 10**8),
    bytes_written=st.integers(1, 10**9),
    l2_bytes=st.integers(1, 10**10),
    tile=st.sampled_from(["", *map(str, TILES)]),
    panels=st.none() | panels,
)


# The first example may wait for a compiler.
@given(kernels, st.sampled_from(["sm_count", "boost_clock_ghz", "dram_bandwidth_gbps", "l2_bytes"]), st.floats(1, 4))
def test_more_of_anything_never_slows_a_kernel(kernel: Kernel, name: str, factor: float) -> None:
    value = getattr(V100.datasheet, name).value
    more = type(value)(math.ceil(value * factor)) if isinstance(value, int) else value * factor
    before = KernelModel(V100).price(kernel).alone_us
    assert KernelModel(with_facts(V100, **{name: more})).price(kernel).alone_us <= before * (1 + 1e-12)


# The first example may wait for a compiler.
@given(kernels, st.sampled_from(sorted(shipped_names())))
def test_demands_are_fractions_of_the_device(kernel: Kernel, name: str) -> None:
    profile = device(name)
    price = KernelModel(profile).price(kernel)
    assert price.alone_us >= profile.parameters.kernel_gap_us
    assert 0 <= price.issue_demand <= 1 + 1e-12
    assert 0 <= price.dram_demand <= 1 + 1e-12
    assert 0 <= price.power_demand <= 1 + 1e-12
    assert 0 < price.last_us <= price.alone_us
    assert 0 < price.last_spread <= price.spread
    assert all(price.spread * part <= 1 + 1e-12 for part in price.slots)
    # Nor does an SM with one block more than others ever wait for its own kernel.
    assert price.issue_demand / price.spread * math.ceil(price.spread) <= 1 + 1e-12
    # No efficiency can beat the datasheet's peak, no cache the bytes that must come from DRAM.
    assert price.alone_us * profile.fp32_tflops * 1e6 >= kernel.flops * (1 - 1e-9)
    assert price.alone_us * profile.dram_bandwidth_gbps * 1e3 >= kernel.weight_bytes * (1 - 1e-9)


def tiled(blocks: int, flops_per_block: int = 10**7, **changes: Any) -> Kernel:
    fields: dict[str, Any] = {
        "name": "tiled",
        "work_class": WorkClass.GEMM,
        "blocks": blocks,
        "threads_per_block": 256,
        "registers_per_thread": 122,
        "shared_bytes_per_block": 16_640,
        "flops": blocks * flops_per_block,
        "activation_bytes": 0,
        "weight_bytes": 0,
        "bytes_written": 0,
        "l2_bytes": 0,
    }
    return Kernel(**{**fields, **changes})


def test_averages_of_cudnn_ask_for_what_they_draw_and_hold_as_few_slots() -> None:
    outputs = 32 * 288 * 35 * 35
    average, maximum = (
        Kernel(
            "pooling", work_class, outputs // 128, 128, 26, 0, 58 * outputs, 4 * outputs, 0, 4 * outputs, 8 * outputs
        )
        for work_class in (WorkClass.AVERAGE_WINDOW, WorkClass.WINDOW)
    )
    price, full = KernelModel(V100).price(average), KernelModel(V100).price(maximum)
    assert price.alone_us > 2 * full.alone_us
    assert price.dram_demand <= AVERAGE_SLOTS + 0.005
    assert price.dram_demand * price.alone_us == pytest.approx(full.dram_demand * full.alone_us)
    assert price.issue_demand * price.alone_us == pytest.approx(full.issue_demand * full.alone_us)
    # Sixteen blocks fit an SM, and a copy fills it.
    assert (price.spread, full.spread) == (3.0, 16.0)
    # The event-driven engine has the same grid.
    work = kernel_work(KernelModel(V100), average)
    assert work.blocks == 3 * 80
    assert BlockDemand.of(work, V100).alone_us == pytest.approx(price.alone_us)


def test_a_kernel_that_fits_no_sm_takes_forever() -> None:
    assert KernelModel(V100).price(tiled(1, shared_bytes_per_block=200_000)).alone_us == math.inf


@pytest.mark.parametrize(
    ("name", "precision", "faster"),
    [
        ("v100-sxm2", Precision.FP16, True),
        ("v100-sxm2", Precision.TF32, False),
        ("a100-sxm-40gb", Precision.TF32, True),
        ("a100-sxm-40gb", Precision.INT8, True),
        ("p4", Precision.FP16, False),
    ],
)
def test_reduced_precision_where_the_device_has_units_for_it(name: str, precision: Precision, faster: bool) -> None:
    model = KernelModel(device(name))
    fp32 = model.price(tiled(4000)).alone_us
    reduced = model.price(tiled(4000, precision=precision)).alone_us
    assert reduced < 0.5 * fp32 if faster else reduced == fp32


@pytest.mark.parametrize(
    ("engine", "groups", "names"),
    [
        (Engine.PAPER, 64, ("grouped_convolve_32x32",)),
        (Engine.GRAPH, 64, ("depthwise",)),
        (Engine.PAPER, 1, ("winograd_generate_tiles", "winograd_fused_1x4x8")),
        (Engine.GRAPH, 1, ("winograd_generate_tiles", "winograd_fused_1x4x8")),
    ],
)
def test_a_depthwise_convolution_is_that_of_the_engines_library(
    engine: Engine, groups: int, names: tuple[str, ...]
) -> None:
    b = GraphBuilder("one")
    with b.block("block"):
        y = b.conv(b.input("x", (1, 64, 42, 42)), 64, 3, padding=1, groups=groups)
    one = b.network([y])
    model = SimulatorCostModel(V100, Precision.FP32, engine)
    (unit,) = model.stages.prepare(ScheduleProblem.of_block(one, one.blocks[0])).units
    assert unit.names == names


def test_the_published_engine_calls_cudnn_7() -> None:
    assert [engine.libraries_on("volta") for engine in UNDIVIDED] == [Libraries.CUDNN_7, Libraries.COMPILED]
    assert [engine.libraries_on("ampere") for engine in UNDIVIDED] == [Libraries.CUDNN_8, Libraries.COMPILED]


#: Achieved GB/s of two streaming kernels by the SMs in use, and the reach of an SM that fits them; the part that it may be off.
CURVES = {
    "RTX A6000": (84, 4.95, {4: 78.7, 8: 157.1, 12: 236.7, 16: 324.0, 24: 335.1, 40: 340.7, 84: 337.2}, 0.16),
    "RTX 5090": (170, 2.32, {8: 135.7, 16: 262.0, 32: 487.3, 64: 865.1, 85: 1067.4, 128: 1148.3, 170: 1181.6}, 0.09),
}
COPY = Kernel("copy", WorkClass.STREAM, 8_000, 256, 32, 0, 0, 10**9, 0, 10**9, 2 * 10**9)
PRODUCT = Kernel("gemm", WorkClass.GEMM, 8_000, 256, 96, 16_640, 10**12, 10**7, 10**7, 10**7, 10**8, tile="128x128")


def test_all_sms_have_the_rates_of_the_device() -> None:
    assert device_rates(V100, sms=80) is device_rates(V100)
    assert KernelModel(V100, sms=80).price(COPY) == KernelModel(V100).price(COPY)


@pytest.mark.parametrize("name", CURVES)
def test_bandwidth_against_the_sms_in_use(name: str) -> None:
    sms, reach, curve, most = CURVES[name]
    whole = curve[sms]
    errors = [abs(bandwidth_part(used / sms, reach) * whole / measured - 1) for used, measured in curve.items()]
    assert max(errors) < most


def test_half_of_the_sms_draw_more_than_half_of_the_bandwidth_and_compute_half() -> None:
    """Fewer never make a copy faster."""
    half, whole = KernelModel(V100, sms=40), KernelModel(V100)
    assert half.price(PRODUCT).alone_us / whole.price(PRODUCT).alone_us == pytest.approx(2.0, rel=0.02)
    copied_us = [KernelModel(V100, sms=sms).price(COPY).alone_us for sms in range(2, 81, 2)]
    assert (np.diff(copied_us) <= 0).all()
    assert 1.05 < half.price(COPY).alone_us / whole.price(COPY).alone_us < 1.5


@pytest.mark.parametrize("sms", [0, 81])
def test_a_part_is_of_the_sms_that_there_are(sms: int) -> None:
    with pytest.raises(OptionError, match=f"{sms} SMs of 'v100-sxm2': it has 80; give 1 to 80"):
        KernelModel(V100, sms=sms)


MODEL = KernelModel(V100)
COPY_ROW = RawKernel("copy", 0, 800, 256, 32, 0, 100.0, dram_bytes=60e6, l2_bytes=60e6, footprint_bytes=60e6)


def test_what_is_given_is_asked_for() -> None:
    work, inferred = raw_kernel_work(replace(COPY_ROW, flops=1e8, pipe=Pipe.FP64), MODEL)
    assert inferred == ()
    assert work.dram_us == pytest.approx(60e6 / (900e3 * V100.parameters.stream_efficiency))
    # Ten blocks an SM of 1.25e5 operations on 32 lanes of two a clock.
    assert (work.pipe, work.pipe_us) == ("fp64", pytest.approx(1.25e5 / 64 / 1530))
    assert work.issue_us == pytest.approx(work.pipe_us / 4)
    assert BlockDemand.of(work, V100).alone_us - work.gap_us == pytest.approx(100.0)


def test_what_is_not_given_is_inferred_and_said() -> None:
    sleeping, inferred = raw_kernel_work(RawKernel("sleep", 0, 80, 1024, alone_us=50.0), MODEL)
    assert inferred == (
        "32 registers a thread assumed",
        "no shared memory assumed",
        "asks for nothing: it only holds its slots",
    )
    assert (sleeping.registers_per_thread, sleeping.issue_us, sleeping.dram_us) == (32, 0.0, 0.0)
    _, inferred = raw_kernel_work(replace(COPY_ROW, l2_bytes=None, footprint_bytes=None, flops=1e6), MODEL)
    assert inferred == (
        "L2 traffic as that with DRAM",
        "touches 6e+07 bytes, as its traffic with DRAM",
        "fp32 pipe assumed",
    )


def test_what_l2_keeps() -> None:
    # A kernel that goes over two megabytes ten times reads all but its DRAM traffic from L2; one that says no more, once.
    often = replace(COPY_ROW, dram_bytes=2e6, l2_bytes=20e6, footprint_bytes=2e6)
    kept_us = 18e6 / (900e3 * V100.parameters.stream_efficiency)
    assert raw_kernel_work(often, MODEL)[0].kept_us == pytest.approx(kept_us)
    assert raw_kernel_work(replace(often, footprint_bytes=None), MODEL)[0].kept_us == 0.0
    in_l2, _ = raw_kernel_work(replace(often, dram_bytes=0.0, footprint_bytes=None), MODEL)
    assert (in_l2.footprint_bytes, in_l2.kept_us) == (20e6, pytest.approx(kept_us / 0.9))


def test_a_roofline_without_a_time_alone() -> None:
    work, inferred = raw_kernel_work(replace(COPY_ROW, alone_us=None), MODEL)
    alone_us = BlockDemand.of(work, V100).alone_us - work.gap_us
    assert alone_us == pytest.approx(60e6 / (900e3 * V100.parameters.stream_efficiency))
    assert inferred == (f"{alone_us:.6g} us alone by what it asks for (a roofline)",)
    # A block an SM on an eighth of them draws no more than twice its even share.
    few, _ = raw_kernel_work(replace(COPY_ROW, alone_us=None, blocks=10), MODEL)
    assert BlockDemand.of(few, V100).alone_us - few.gap_us == pytest.approx(4 * alone_us, rel=0.03)
    arithmetic, _ = raw_kernel_work(RawKernel("fma", 0, 160, 256, flops=1e9, pipe=Pipe.FP32), MODEL)
    peak_us = 1e9 / (V100.fp32_tflops * 1e6)
    assert BlockDemand.of(arithmetic, V100).waves_us == pytest.approx(peak_us / V100.parameters.vector_efficiency)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (
            RawKernel("k", 0, 1, 32),
            "nothing tells how long it takes; give alone_us, or .*dram_bytes, l2_bytes or flops",
        ),
        (
            replace(COPY_ROW, dram_bytes=100e6),
            "1e.08 dram_bytes take the device 111.111 us at its peak, and alone_us is 100",
        ),
        (replace(COPY_ROW, flops=2e9), "2e.09 flops take the device"),
        (replace(COPY_ROW, blocks=0), "blocks is 0; give 1 or more"),
        (replace(COPY_ROW, l2_bytes=-1.0), "l2_bytes is -1; give 0 or more"),
        (replace(COPY_ROW, dram_bytes=math.inf), "dram_bytes is inf; give 0 or more"),
        (replace(COPY_ROW, alone_us=float("nan")), "alone_us is nan"),
    ],
)
def test_what_cannot_be(raw: RawKernel, told: str) -> None:
    with pytest.raises(OptionError, match=f"kernel '{raw.name}': {told}"):
        raw_kernel_work(raw, MODEL)


def test_a_little_more_than_there_is_is_all_of_it() -> None:
    work, inferred = raw_kernel_work(replace(COPY_ROW, dram_bytes=93e6), MODEL)
    assert work.dram_us == 100.0
    assert inferred == ("uses all of DRAM's bandwidth (what was given is more)",)


def test_pipes_of_devices() -> None:
    assert set(FP64_LANES) == set(INT_LANES) == set(LIMITS)
    product = RawKernel("product", 0, 160, 256, alone_us=100.0, flops=1e9, pipe=Pipe.TENSOR)
    work, _ = raw_kernel_work(product, MODEL)
    assert work.pipe_us * 160 / 80 == pytest.approx(1e9 / 125e6, rel=0.01)
    with pytest.raises(OptionError, match="'p100-pcie-16gb' has no tensor cores; give another pipe"):
        raw_kernel_work(product, KernelModel(device("p100-pcie-16gb")))


@given(st.floats(1.0, 1e3), st.integers(1, 40), st.integers(1, 8), st.floats(0.01, 50.0))
def test_blocks_of_the_least_time_take_the_total_in_waves(
    total_us: float, busiest: int, resident: int, share_us: float
) -> None:
    """Or longer, where their work alone takes longer."""
    found_us = waves_us(busiest, resident, least_block_us(total_us, busiest, resident, share_us), share_us)
    assert found_us == pytest.approx(max(total_us, busiest * share_us))
