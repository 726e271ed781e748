"""Each term of the kernel formula by itself, against times worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from iossim.backends.simulator.device_rates import GROUPED_PROLOGUE_SEEN, PASSES_RAMP_US, SUM_RAMP_US
from iossim.backends.simulator.kernel_model import KernelModel, KernelPrice
from iossim.hardware.compute_capability import WARP_THREADS
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Kernel, Panels, WorkClass
from iossim.hardware.parameters import ModelParameters

V100 = device("v100-sxm2")
CLOCKS_PER_US = 1_530
#: What the 64 lanes of an SM do in a microsecond.
FLOPS = 2 * 64 * CLOCKS_PER_US
L2_BYTES = 6_291_456
#: 900 GB/s.
DRAM_BYTES = 900_000

#: Parameters with which every term but the plain waves is nothing.
NEUTRAL: dict[str, float] = {
    **{name: 1.0 for name in ModelParameters.model_fields if name.endswith(("_efficiency", "_factor"))},
    "latency_hiding_warps": 1e-9,
    "block_prologue_clocks": 0.0,
    "gemm_prologue_clocks": 0.0,
    "wave_quantisation": 1.0,
    "overlap_norm": 1e6,
    "gemm_overlap_norm": 1e6,
    "l2_bytes_per_clock_per_sm": 1e12,
    "l2_resident_fraction": 0.0,
    "reuse_l2_fraction": 1e12,
    "drift_inner": 1e15,
    "translation_penalty": 0.0,
    "translation_reach_bytes": 1e9,
    "kernel_gap_us": 0.0,
    "transform_ramp_us": 0.0,
    "stream_ramp_us": 0.0,
    "sustained_gflops_per_watt": 1e12,
    "gemm_sustained_gflops_per_watt": 1e12,
    "tensor_step_clocks": 1e-9,
    "tensor_prologue_clocks": 0.0,
    "tensor_overlap_norm": 1e6,
    "tensor_l2_bytes_per_clock_per_sm": 1e12,
    "tensor_sustained_gflops_per_watt": 1e12,
    "layout_ramp_us": 0.0,
    "attention_prologue_clocks": 0.0,
    "attention_ramp_us": 0.0,
    "interference": 0.0,
}


def price(kernel: Kernel, **parameters: float) -> KernelPrice:
    own = ModelParameters(**{**NEUTRAL, **parameters})
    return KernelModel(V100.model_copy(update={"parameters": own})).price(kernel)


def alone_us(kernel: Kernel, **parameters: float) -> float:
    return price(kernel, **parameters).alone_us


def kernel(blocks: int = 80, work_class: WorkClass = WorkClass.GEMM, **changes: Any) -> Kernel:
    """Blocks of 1 us each, of which an SM holds two (registers)."""
    fields: dict[str, Any] = {
        "name": "kernel",
        "work_class": work_class,
        "blocks": blocks,
        "threads_per_block": 256,
        "registers_per_thread": 122,
        "shared_bytes_per_block": 0,
        "flops": blocks * FLOPS,
        "activation_bytes": 0,
        "weight_bytes": 0,
        "bytes_written": 0,
        "l2_bytes": 0,
    }
    return Kernel(**{**fields, **changes})


@pytest.mark.parametrize(
    ("parameters", "expected_us"),
    [
        # The busiest SM runs its blocks.
        ({}, {1: 1.0, 80: 1.0, 81: 2.0, 160: 2.0, 161: 3.0, 240: 3.0, 1_600: 20.0}),
        # A part of the rounding up to whole blocks is seen: no block is less than one, and 240 are not rounded.
        ({"wave_quantisation": 0.25}, {40: 1.0, 161: 0.25 * 3 + 0.75 * 161 / 80, 240: 3.0}),
        # Waves of two blocks that do not hide latency take as long as three.
        ({"latency_hiding_warps": 24}, {80: 3.0, 160: 3.0, 161: 6.0, 320: 6.0, 400: 9.0}),
        # 12 warps are one and a half blocks: a full wave hides it, a single block does not.
        ({"latency_hiding_warps": 12}, {240: 2.0 + 1.5}),
    ],
)
def test_blocks_run_in_waves(parameters: dict[str, float], expected_us: dict[int, float]) -> None:
    assert {blocks: alone_us(kernel(blocks), **parameters) for blocks in expected_us} == pytest.approx(expected_us)


@pytest.mark.parametrize(("blocks", "waves"), [(80, 1), (160, 1), (161, 2), (400, 3)])
def test_every_wave_fills_and_drains(blocks: int, waves: int) -> None:
    plain_us = alone_us(kernel(blocks))
    assert alone_us(kernel(blocks), gemm_prologue_clocks=CLOCKS_PER_US) == pytest.approx(plain_us + waves)
    assert alone_us(kernel(blocks), block_prologue_clocks=CLOCKS_PER_US) == plain_us


ISSUED = (WorkClass.DEPTHWISE, WorkClass.WINDOW, WorkClass.AVERAGE_WINDOW)
STREAMS = (WorkClass.STREAM, WorkClass.PARTS, WorkClass.SUM, WorkClass.ROW, WorkClass.NARROW_STREAM)
GATHERED = (
    WorkClass.IMPLICIT_PRECOMP_GEMM, WorkClass.IMPLICIT_GEMM, WorkClass.WINOGRAD_FUSED, WorkClass.WINOGRAD_GEMM
)  # fmt: skip
#: Microseconds that a prologue or ramp is given, and the kernels that have it.
ADDED_US: dict[str, tuple[float, tuple[WorkClass, ...]]] = {
    "gemm_prologue_clocks": (1, (WorkClass.GEMM,)),
    "block_prologue_clocks": (2, (*GATHERED, WorkClass.GROUPED)),
    "transform_ramp_us": (3, (WorkClass.TRANSFORM, WorkClass.FILTER_TRANSFORM, WorkClass.TILE_GENERATION)),
    "stream_ramp_us": (4, (*ISSUED, *STREAMS, WorkClass.GROUPED)),
    "tensor_prologue_clocks": (5, (WorkClass.TENSOR, WorkClass.TENSOR_CONVOLUTION)),
    "layout_ramp_us": (6, (WorkClass.LAYOUT,)),
    "attention_prologue_clocks": (7, (WorkClass.ATTENTION,)),
    "attention_ramp_us": (8, (WorkClass.ATTENTION,)),
    "window_ramp_us": (9, ISSUED[1:]),
}


@pytest.mark.parametrize("name", ADDED_US)
def test_which_kernels_have_a_prologue_and_which_a_ramp(name: str) -> None:
    us, classes = ADDED_US[name]
    for work_class in WorkClass:
        one, is_seen = kernel(80, work_class), float(work_class in classes)
        if (work_class, name) == (WorkClass.GROUPED, "block_prologue_clocks"):
            is_seen = GROUPED_PROLOGUE_SEEN
        added_us = alone_us(one, **{name: us * CLOCKS_PER_US if name.endswith("clocks") else us}) - alone_us(one)
        assert added_us == pytest.approx(us * is_seen), work_class


@pytest.mark.parametrize(("name", "more_us"), [("h200-sxm", SUM_RAMP_US), ("a100-sxm-80gb", 0.0)])
def test_sums_of_parts_take_longer_than_streams_on_hopper(name: str, more_us: float) -> None:
    parts, stream = KernelModel(device(name)).prices([kernel(80, WorkClass.PARTS), kernel(80, WorkClass.STREAM)])
    assert parts.alone_us - stream.alone_us == pytest.approx(more_us)


def test_the_gap_comes_before_all_else() -> None:
    assert alone_us(kernel(80), kernel_gap_us=2.5) == pytest.approx(3.5)
    assert alone_us(kernel(1, WorkClass.INDEX, flops=0), kernel_gap_us=2.5, stream_ramp_us=4.0) == 2.5


def test_arithmetic_l2_and_dram_overlap_by_a_norm() -> None:
    # 2 us of arithmetic, 3 us on the port of each SM, 6 us of DRAM.
    asks = {"l2_bytes": 160 * 150 * CLOCKS_PER_US, "weight_bytes": 6 * DRAM_BYTES}
    gemm, gather = kernel(160, **asks), kernel(160, WorkClass.IMPLICIT_PRECOMP_GEMM, **asks)
    assert alone_us(gemm, l2_bytes_per_clock_per_sm=100.0) == pytest.approx(6.0, rel=1e-5)
    assert alone_us(gemm, l2_bytes_per_clock_per_sm=100.0, gemm_overlap_norm=2.0) == pytest.approx(7.0)
    assert alone_us(gemm, l2_bytes_per_clock_per_sm=100.0, gemm_overlap_norm=1.0) == pytest.approx(11.0)
    assert alone_us(gather, l2_bytes_per_clock_per_sm=100.0, overlap_norm=2.0) == pytest.approx(7.0)
    # Each has its own norm, and what streams overlaps in full.
    assert alone_us(gemm, l2_bytes_per_clock_per_sm=100.0, overlap_norm=1.0) == pytest.approx(6.0, rel=1e-5)
    stream = replace(gemm, work_class=WorkClass.STREAM)
    assert alone_us(stream, overlap_norm=1.0, gemm_overlap_norm=1.0) == pytest.approx(6.0)


def test_l2_traffic_of_the_busiest_sm() -> None:
    """A microsecond of its port for each block; blocks that stream are short and spread evenly."""
    streaming = dict.fromkeys((WorkClass.STREAM, WorkClass.WINDOW, WorkClass.AVERAGE_WINDOW), 161 / 80)
    for work_class, expected_us in ({WorkClass.GEMM: 3.0} | streaming).items():
        loads = kernel(161, work_class, flops=0, l2_bytes=161 * 100 * CLOCKS_PER_US)
        assert alone_us(loads, l2_bytes_per_clock_per_sm=100.0) == pytest.approx(expected_us)


def test_what_l2_holds_does_not_pass_dram() -> None:
    held = L2_BYTES // 2

    def dram_us(**bytes_moved: int) -> float:
        values = {"l2_resident_fraction": 0.5, "l2_shared_bytes_per_clock_per_sm": 1e9}
        return alone_us(kernel(flops=0, **bytes_moved), **values)

    assert dram_us(activation_bytes=int(0.4 * held), bytes_written=int(0.4 * held)) == pytest.approx(0.0, abs=1e-6)
    assert dram_us(weight_bytes=3 * DRAM_BYTES) == pytest.approx(3.0)  # a network's weights are never found there


def test_few_warps_do_not_hide_the_latency_of_dram() -> None:
    """A block of fewer warps than hide it takes longer; where warps suffice, or L2 has the operands, it does not."""

    def us(waits: bool, warps: float) -> float:
        one = replace(kernel(1, WorkClass.IMPLICIT_GEMM), waits_for_dram=waits)
        hidden_by = warps * one.threads_per_block / WARP_THREADS
        return alone_us(one, latency_hiding_warps=hidden_by, dram_latency_factor=1.5)

    assert us(True, 4.0) == pytest.approx(1.5 * us(False, 4.0))
    assert us(True, 0.5) == us(False, 0.5)


def test_a_kernel_on_tensor_cores_waits_for_dram_once_if_its_operands_come_from_there() -> None:
    def waits_us(work_class: WorkClass, weight_bytes: int, blocks: int = 1) -> float:
        one = kernel(blocks, work_class, weight_bytes=weight_bytes)
        return alone_us(one, tensor_dram_latency_us=0.35) - alone_us(one)

    for weight_bytes, blocks in ((2, 1), (DRAM_BYTES, 1), (2, 8_000)):
        assert waits_us(WorkClass.TENSOR, weight_bytes, blocks) == pytest.approx(0.35)
    assert waits_us(WorkClass.TENSOR, 0) == waits_us(WorkClass.GEMM, DRAM_BYTES) == 0.0


def test_l2_loses_what_does_not_fit_all_at_once() -> None:
    held = L2_BYTES // 2

    def dram_us(activation_bytes: int, bytes_written: int = 0, weight_bytes: int = 0, written: float = 1.0) -> float:
        moved = {"activation_bytes": activation_bytes, "bytes_written": bytes_written, "weight_bytes": weight_bytes}
        return alone_us(kernel(flops=0, **moved), l2_resident_fraction=0.5, l2_written_factor=written)

    def all_us(size: int) -> float:
        return size / DRAM_BYTES

    assert dram_us(2 * held) == pytest.approx(all_us(2 * held))
    assert dram_us(held, held) == pytest.approx(all_us(2 * held))
    assert dram_us(0, held // 2, written=1.5) < all_us(held // 2) == pytest.approx(dram_us(0, held // 2, written=3.0))
    assert dram_us(held // 4, weight_bytes=2 * held) == pytest.approx(all_us(2 * held + held // 4))
    sizes = [held * part // 20 for part in range(1, 41)]
    times = [dram_us(size) for size in sizes]
    assert times == sorted(times)
    assert 0.0 < dram_us(held) < all_us(held)


def test_what_a_block_reads_again_is_found_in_l2_if_all_resident_blocks_fit_there() -> None:
    def dram_us(row_bytes: int) -> float:
        rows = 100_000
        size = rows * row_bytes
        one = kernel(rows, WorkClass.ROW, flops=0, activation_bytes=size, bytes_written=size)
        taken_us = alone_us(replace(one, reread_bytes=size), l2_resident_fraction=1.0) - PASSES_RAMP_US
        return taken_us * DRAM_BYTES / size

    assert dram_us(256) == pytest.approx(2.0)
    assert dram_us(65_536) == pytest.approx(3.0)


#: The parameter that slows what kernels of a class move, and that which slows their arithmetic.
EFFICIENCIES = {
    WorkClass.GEMM: ("dram_efficiency", "gemm_efficiency"),
    WorkClass.IMPLICIT_PRECOMP_GEMM: ("dram_efficiency", "implicit_gemm_efficiency"),
    WorkClass.IMPLICIT_GEMM: ("dram_efficiency", "direct_efficiency"),
    WorkClass.WINOGRAD_FUSED: ("dram_efficiency", "winograd_fused_efficiency"),
    WorkClass.WINOGRAD_GEMM: ("dram_efficiency", "winograd_gemm_efficiency"),
    WorkClass.DEPTHWISE: ("stream_efficiency", "depthwise_efficiency"),
    WorkClass.GROUPED: ("dram_efficiency", "implicit_gemm_efficiency"),
    WorkClass.STREAM: ("stream_efficiency", "vector_efficiency"),
    WorkClass.WINDOW: ("stream_efficiency", None),
    WorkClass.TRANSFORM: ("transform_efficiency", "vector_efficiency"),
    WorkClass.FILTER_TRANSFORM: ("filter_transform_efficiency", "vector_efficiency"),
    WorkClass.TILE_GENERATION: ("tile_generation_efficiency", "vector_efficiency"),
}


@pytest.mark.parametrize("work_class", EFFICIENCIES)
def test_efficiencies(work_class: WorkClass) -> None:
    moving, computing = EFFICIENCIES[work_class]
    moves = kernel(80, work_class, flops=0, weight_bytes=DRAM_BYTES)
    assert alone_us(moves) == pytest.approx(1.0)
    assert alone_us(moves, **{moving: 0.25}) == pytest.approx(4.0)
    if computing is not None:
        assert alone_us(kernel(80, work_class), **{computing: 0.25}) == pytest.approx(4.0)


def test_a_small_tile_has_a_factor_of_its_own() -> None:
    small, large = kernel(tile="32x32"), kernel(tile="128x128")
    assert alone_us(small, gemm_efficiency=0.5, tile_32x32_factor=0.5) == pytest.approx(4.0)
    assert alone_us(large, gemm_efficiency=0.5, tile_32x32_factor=0.5) == pytest.approx(2.0)


#: 160 by 4 tiles; a wave of 160 blocks covers a column of tiles. One operand as large as L2, one a third of that.
PANELS = Panels(160, 4, row_bytes=L2_BYTES, column_bytes=L2_BYTES // 3, inner=1_000, strided_bytes=0)


def panel_us(panels: Panels, **parameters: float) -> float:
    return alone_us(kernel(640, flops=0, panels=panels), **parameters)


def test_each_wave_loads_its_panels_again() -> None:
    # Four waves load the rows; half of an operand as large as L2 is still there. A wave has all rows of one column.
    assert panel_us(PANELS, reuse_l2_fraction=1.0) == pytest.approx(0.5 * L2_BYTES * 3 / DRAM_BYTES)
    assert panel_us(PANELS, reuse_l2_fraction=1e12) == pytest.approx(0.0, abs=1e-6)
    # A wave that covers all columns loads everything once.
    assert panel_us(PANELS._replace(row_tiles=40), reuse_l2_fraction=1.0) == pytest.approx(0.0, abs=1e-9)


def test_blocks_that_drift_apart_share_fewer_loads() -> None:
    # Half of a wave loads together: 80 rows, so that both operands are loaded anew; a quarter of the columns is lost.
    moved = 0.5 * L2_BYTES * 3 + 0.25 * L2_BYTES / 3
    assert panel_us(PANELS, reuse_l2_fraction=1.0, drift_inner=1_000.0) == pytest.approx(moved / DRAM_BYTES)


def test_operands_beyond_the_reach_of_translation_are_read_more_slowly() -> None:
    reach = 1_000_000
    strided = PANELS._replace(strided_bytes=round(reach * (math.e - 1)))
    moves = kernel(640, flops=0, weight_bytes=DRAM_BYTES, panels=strided)
    parameters = {"translation_penalty": 0.5, "translation_reach_bytes": reach}
    assert alone_us(moves, **parameters) == pytest.approx(1.5, rel=1e-5)
    assert alone_us(replace(moves, panels=PANELS), **parameters) == pytest.approx(1.0, rel=1e-5)
    assert alone_us(replace(moves, panels=None), **parameters) == pytest.approx(1.0)


def test_the_board_sustains_so_much_arithmetic() -> None:
    # 10 GFLOP/s for each of 300 W; 80 blocks take 1 us at the peak and 5.2 us by power.
    capped = price(kernel(), gemm_sustained_gflops_per_watt=10.0)
    assert capped.alone_us == pytest.approx(80 * FLOPS / 3e6)
    assert capped.power_demand == pytest.approx(1.0)
    assert alone_us(kernel(), sustained_gflops_per_watt=10.0) == pytest.approx(1.0)
    gather = kernel(80, WorkClass.IMPLICIT_PRECOMP_GEMM)
    assert alone_us(gather, sustained_gflops_per_watt=10.0) == pytest.approx(80 * FLOPS / 3e6)
    # A single block is far below it: slow by itself, and no burden to the board.
    single = price(kernel(1), gemm_sustained_gflops_per_watt=10.0)
    assert single.alone_us == pytest.approx(1.0)
    assert single.power_demand == pytest.approx(FLOPS / 3e6)


@pytest.mark.parametrize(("blocks", "spread"), [(1, 1 / 80), (40, 0.5), (120, 1.5), (161, 2.0), (4_000, 2.0)])
def test_resident_blocks(blocks: int, spread: float) -> None:
    found = price(kernel(blocks))
    assert (found.spread, found.warps) == (pytest.approx(spread), 8)


def test_demands_while_it_runs_alone() -> None:
    # 161 blocks take as long as 240; a gap of 3 us, as long as these, halves what is asked for meanwhile.
    found = price(kernel(161, weight_bytes=DRAM_BYTES), kernel_gap_us=3.0)
    assert found.alone_us == pytest.approx(6.0)
    assert found.issue_demand == pytest.approx(161 / 480)
    assert found.dram_demand == pytest.approx(1 / 6)
