"""The kernel model: never slower on a better device, never more than the device has, and limits that are known."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim.backends.simulator.device_rates import AVERAGE_WINDOW_BANDWIDTH
from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.kernel_work import kernel_work
from iossim.hardware.load import device, shipped_names
from iossim.hardware.lowering.gpu.matrix_product import TILES
from iossim.hardware.lowering.kernel import Kernel, Panels, WorkClass
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision

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


def with_fact(profile: DeviceProfile, name: str, value: Any) -> DeviceProfile:
    fact = getattr(profile.datasheet, name).model_copy(update={"value": value})
    return profile.model_copy(update={"datasheet": profile.datasheet.model_copy(update={name: fact})})


# The first example may wait for a compiler.
@settings(deadline=None)
@given(kernels, st.sampled_from(["sm_count", "boost_clock_ghz", "dram_bandwidth_gbps", "l2_bytes"]), st.floats(1, 4))
def test_more_of_anything_never_slows_a_kernel(kernel: Kernel, name: str, factor: float) -> None:
    value = getattr(V100.datasheet, name).value
    more = type(value)(math.ceil(value * factor)) if isinstance(value, int) else value * factor
    before = KernelModel(V100).price(kernel).alone_us
    assert KernelModel(with_fact(V100, name, more)).price(kernel).alone_us <= before * (1 + 1e-12)


# The first example may wait for a compiler.
@settings(deadline=None)
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


def test_too_few_warps_do_not_hide_latency() -> None:
    small = tiled(80, threads_per_block=32)
    assert KernelModel(V100).price(small).alone_us > KernelModel(V100).price(tiled(80)).alone_us


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
    assert price.dram_demand <= AVERAGE_WINDOW_BANDWIDTH
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


def test_a_board_of_little_power_sustains_less_than_its_peak() -> None:
    t4 = device("t4")
    large = tiled(100_000)
    sustained = large.flops / KernelModel(t4).price(large).alone_us / 1e6
    assert sustained < 0.6 * t4.fp32_tflops
    assert large.flops / KernelModel(V100).price(large).alone_us / 1e6 > 0.8 * V100.fp32_tflops


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
