"""Measured tables as raw kernels: what follows from a row, and what is inferred from others."""

from __future__ import annotations

import pytest

from evidence.concurrency.corun_cases import simulated
from evidence.concurrency.corun_microbenchmarks import DRAM, FP64, SLOTS, microbenchmark_cases
from evidence.concurrency.corun_pairs import graph_pair_cases, operator_family, prefill_pair_cases, stream_pair_cases
from evidence.concurrency.microbenchmarks import Microbenchmark, MicroKernel
from evidence.concurrency.pairs import KernelPair, PairKernel
from iossim.backends.simulator.raw_kernels import Pipe
from iossim.execution.engine import Engine
from iossim.hardware.load import device

V100 = device("v100-sxm2")


def micro(experiment: str, kernel: MicroKernel, together_us: float, **more: object) -> Microbenchmark:
    return Microbenchmark("v100-sxm2", "made", 2, experiment, "two", (kernel, kernel), together_us, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("blocks", "ratio"), [(80, 1.0), (160, 2.0)])
def test_sleeping_blocks_wait_for_slots_alone(blocks: int, ratio: float) -> None:
    row = micro("thread_block_scheduler", MicroKernel("sleep", blocks, 1024, 1e5), 1e5 * ratio)
    (case,) = microbenchmark_cases([row], V100)
    assert (case.mechanism, case.figures[0].measured) == (SLOTS, ratio)
    assert simulated(case, V100) == pytest.approx((ratio,), rel=1e-3)


def test_arithmetic_is_that_of_threads_iterations_and_parallelism() -> None:
    row = micro("fp64_pipeline", MicroKernel("fp64 multiply ILP 3", 80, 128, 2e5), 4e5, iterations=1000)
    (case,) = microbenchmark_cases([row], V100)
    assert (case.mechanism, dict(case.changes)["boost_clock_ghz"]) == (FP64, 1.38)
    assert {(raw.flops, raw.pipe) for raw in case.kernels} == {(2.0 * 80 * 128 * 3 * 1000, Pipe.FP64)}


def test_iterations_that_are_not_told_are_those_that_draw_all_of_dram() -> None:
    profile = device("rtx-5090")
    gbps, size = 1300.0, float(128 << 20)
    copy = MicroKernel("copy", 340, 768)
    alone = Microbenchmark(
        "rtx-5090", "made", 2, "dram_bandwidth_vs_blocks", "alone", (copy,), size_bytes=size, bandwidth_gbps=gbps
    )
    both = MicroKernel("copy", 85, 1024, 5e5)
    iterations = 2500
    together_us = 4 * size * iterations / (1e3 * gbps)
    row = Microbenchmark("rtx-5090", "made", 3, "l2_cache", "two", (both, both), together_us, size_bytes=size)
    by_blocks, copies = microbenchmark_cases([alone, row], profile)
    assert by_blocks.mechanism == DRAM
    assert copies.kernels[0].l2_bytes == pytest.approx(2 * size * iterations)
    assert copies.kernels[0].dram_bytes == copies.kernels[0].l2_bytes


def test_an_experiment_of_which_nothing_is_known_makes_no_case() -> None:
    assert microbenchmark_cases([micro("new", MicroKernel("sleep", 80, 1024, 1.0), 1.0)], V100) == []


def test_kinds_of_operators() -> None:
    names = ("add_19", "silu__76", "silu_", "_to_copy_1", "cudnn_batch_norm", "convolution_94")
    kinds = ["add", "silu", "silu", "to_copy", "cudnn_batch_norm", "convolution"]
    assert [operator_family(PairKernel(name, 1.0, 1.0)) for name in names] == kinds


def pair(first: PairKernel, second: PairKernel, **more: object) -> KernelPair:
    return KernelPair("x", "made", 2, "how", (first, second), max(first.together_us, second.together_us), **more)  # type: ignore[arg-type]


def test_grids_of_operators_follow_their_shapes() -> None:
    profile = device("rtx-a5000")
    norm = PairKernel("cudnn_batch_norm_2", 28.0, 28.0, "80x160x160")
    convolution = PairKernel("convolution", 34.0, 34.0, "conv 3->80 3x3 s2, 320^2->160^2")
    (case,) = graph_pair_cases([pair(norm, convolution, repeats=3)], profile)
    (one, *_), lowered = (
        [raw for raw in case.kernels if raw.stream == 0],
        [raw for raw in case.kernels if raw.stream == 1],
    )
    assert (one.blocks, one.threads, one.dram_bytes) == (80, 512, 2 * 4 * 80 * 160 * 160)
    assert len(lowered) % 3 == 0
    # With a gap before each kernel it takes what was measured.
    gap_us = profile.parameters.kernel_gap_us * profile.engine.graph_gap_factor
    assert sum(raw.alone_us or 0.0 for raw in lowered) == pytest.approx(3 * 34.0 - gap_us * len(lowered))
    assert [figure.family for figure in case.figures] == ["cudnn_batch_norm", "convolution", "makespan"]


def test_streams_run_with_the_resources_of_their_kernels() -> None:
    first = PairKernel("a", 100.0, 100.0, "", 280, 512, 24, 640)
    (case,) = stream_pair_cases([pair(first, first)])
    assert case.engine is Engine.PAPER
    assert {(raw.blocks, raw.threads, raw.registers_per_thread, raw.shared_bytes) for raw in case.kernels} == {
        (280, 512, 24, 640)
    }


def test_a_step_of_decode_that_is_latency_leaves_room_for_prefill() -> None:
    profile = device("a100-sxm-80gb")
    prefill = PairKernel("prefill", 1600.0, 1600.0)
    steps = {batch: PairKernel("ssm decode", us, us) for batch, us in ((1, 500.0), (4, 503.0), (64, 1100.0))}
    pairs = [pair(step, prefill, batch=batch) for batch, step in steps.items()]
    one, _, large = prefill_pair_cases(pairs, profile)
    assert [raw.blocks for raw in one.kernels if raw.stream == 0] == [1]
    latency, filling = (raw for raw in large.kernels if raw.stream == 0)
    assert latency.alone_us == pytest.approx(499.0)
    assert filling.alone_us == pytest.approx(601.0)
    assert filling.blocks % profile.sm_count == 0
