"""Kernels side by side: makespans as measured, and who slows whom through what."""

from __future__ import annotations

from dataclasses import replace
from math import fsum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_devices import with_facts

from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.raw_kernels import Pipe, RawKernel
from iossim.base.errors import OptionError
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.hardware.lowering.unit import lower_unit
from iossim.models.load import load
from iossim.profiles.corun import Corun, Through, corun_kernels

#: As the recorded one ran.
V100 = with_facts(device("v100-sxm2"), boost_clock_ghz=1.38)


def pair(kernel: RawKernel) -> list[RawKernel]:
    return [replace(kernel, stream=stream) for stream in (0, 1)]


def ratio(run: Corun) -> float:
    return run.makespan_us / run.alone_us


@pytest.mark.parametrize(("blocks", "measured"), [(80, 1.0), (160, 2.0)])
def test_slots_are_held_in_the_order_of_launches(blocks: int, measured: float) -> None:
    """The V100's sleeping blocks of 1024 threads: 80 + 80 fit, of 160 + 160 the second wait for the first."""
    run = corun_kernels(pair(RawKernel("sleep", 0, blocks, 1024, alone_us=102_400.0)), V100)
    assert ratio(run) == pytest.approx(measured, rel=1e-3)
    first, second = run.kernels
    assert first.slowed_by == ()
    assert [(one.by, one.through) for one in second.slowed_by] == [(0, Through.SLOTS)] * (measured > 1)


@pytest.mark.parametrize(
    ("parallel", "alone_us", "measured"),
    [(1, 118_947.0, 1.046), (2, 123_465.0, 1.897), (3, 179_321.0, 1.930), (4, 236_975.0, 1.947)],
)
def test_the_fp64_pipe_of_a_v100(parallel: int, alone_us: float, measured: float) -> None:
    """Independent multiplications in a thread: one fills half of the pipe, more fill it."""
    flops = 2.0 * 80 * 128 * 20e6 * parallel
    kernel = RawKernel("multiply", 0, 80, 128, alone_us=alone_us, flops=flops, pipe=Pipe.FP64)
    run = corun_kernels(pair(kernel), V100)
    assert ratio(run) == pytest.approx(measured, rel=0.05)
    assert {one.through for row in run.kernels for one in row.slowed_by} <= {Through.PIPE}
    # Beside another pipe nothing is lost.
    assert ratio(corun_kernels([kernel, replace(kernel, stream=1, pipe=Pipe.FP32)], V100)) == pytest.approx(
        1.0, rel=1e-3
    )


def test_a_copy_beside_arithmetic() -> None:
    copy = RawKernel("copy", 0, 80, 1024, alone_us=326_442.0, dram_bytes=2.0 * 2**31 * 40)
    multiply = RawKernel("multiply", 1, 80, 128, alone_us=125_251.0, flops=1.638e12, pipe=Pipe.FP32)
    assert ratio(corun_kernels([copy, multiply], V100)) == pytest.approx(1.0, rel=1e-3)
    both = corun_kernels(pair(copy), V100)
    # Each uses 0.63 of what copies reach of DRAM.
    assert ratio(both) == pytest.approx(1.26, rel=0.01)
    assert [(one.by, one.through) for row in both.kernels for one in row.slowed_by] == [
        (1, Through.DRAM),
        (0, Through.DRAM),
    ]


def test_shares_of_the_sms() -> None:
    # Four blocks an SM fill it: on half of the SMs two waves, and none waits for the other.
    kernels = pair(RawKernel("sleep", 0, 160, 1024, alone_us=1_000.0))
    run = corun_kernels(kernels, V100, sm_share=(50, 50))
    assert [(row.alone_us, row.slowed_by) for row in run.kernels] == [(2_000.0, ())] * 2
    # A copy by half of the SMs draws more than half of the bandwidth: two share what there is.
    copies = pair(RawKernel("copy", 0, 640, 1024, alone_us=1_000.0, dram_bytes=830e6))
    run = corun_kernels(copies, V100, sm_share=(50, 50))
    assert 1_000.0 < run.kernels[0].alone_us < 1_300.0
    assert run.makespan_us == pytest.approx(2_000.0, rel=0.02)
    for shares, told in (
        ((50,), "2 streams"),
        ((60, 60), "at most 100"),
        ((0.1, 50), "no SM"),
        ((-1, 50), "more than 0"),
    ):
        with pytest.raises(OptionError, match=told):
            corun_kernels(kernels, V100, sm_share=shares)


def test_streams_wait_for_the_host() -> None:
    kernels = [RawKernel("short", stream, 1, 32, alone_us=1.0) for stream in (0, 1) for _ in range(3)]
    launched = corun_kernels(kernels, V100, Engine.PAPER)
    assert launched.makespan_us >= 6 * V100.engine.bare_launch_us
    starts = [row.ready_us for row in launched.kernels]
    assert starts == sorted(starts)
    graph = corun_kernels(kernels, V100)
    assert graph.makespan_us < launched.makespan_us
    assert graph.sequential_us == pytest.approx(2 * graph.alone_us)


def test_a_library_kernel_takes_what_it_is_priced_with() -> None:
    network = load("squeezenet")
    (candidates, *_) = lower_unit(network, network.units[0], V100)
    kernel = max((kernel for one in candidates for kernel in one.kernels), key=lambda kernel: kernel.flops)
    model = KernelModel(V100)
    raw = RawKernel("conv", 0, kernel.blocks, kernel.threads_per_block, kernel=kernel)
    (row,) = corun_kernels([raw], V100).kernels
    assert row.alone_us == pytest.approx(model.price(kernel).alone_us - model.rates.gap_us, rel=0.02)
    assert row.inferred == ()


@st.composite
def raw_kernels(draw: st.DrawFn) -> RawKernel:
    """Kernels of which most use some resource a good deal."""
    alone_us = draw(st.floats(5.0, 500.0))
    part = st.one_of(st.none(), st.floats(0.0, 0.9))
    dram, l2, arithmetic = draw(part), draw(part), draw(part)
    pipe = draw(st.sampled_from(Pipe))
    peak = {Pipe.FP32: 14e6, Pipe.FP64: 7e6, Pipe.TENSOR: 110e6, Pipe.INT: 14e6}[pipe]
    return RawKernel(
        draw(st.sampled_from(["a", "b"])),
        draw(st.integers(0, 2)),
        draw(st.integers(1, 700)),
        draw(st.sampled_from([32, 128, 256, 1024])),
        draw(st.sampled_from([None, 32, 64])),
        draw(st.sampled_from([None, 0, 16_384])),
        alone_us,
        None if dram is None else dram * 9e5 * alone_us,
        None if l2 is None else l2 * 2e6 * alone_us,
        draw(st.sampled_from([None, 1e5, 3e6])),
        None if arithmetic is None else arithmetic * peak * 0.9 * alone_us,
        pipe,
    )


@settings(deadline=None, max_examples=20)
@given(st.lists(raw_kernels(), min_size=1, max_size=5), st.sampled_from([Engine.GRAPH, Engine.PAPER]), st.booleans())
def test_what_is_told_of_each_loss_sums_up(kernels: list[RawKernel], engine: Engine, has_shares: bool) -> None:
    streams = len({kernel.stream for kernel in kernels})
    run = corun_kernels(kernels, V100, engine, [100 / streams] * streams if has_shares else None)
    assert run.makespan_us == pytest.approx(max(row.end_us for row in run.kernels))
    assert run.alone_us <= run.sequential_us * (1 + 1e-9)
    for number, row in enumerate(run.kernels):
        longer_us = row.end_us - row.ready_us - row.alone_us
        assert fsum(one.us for one in row.slowed_by) == pytest.approx(max(0.0, longer_us), rel=1e-6, abs=1e-5)
        assert all(one.us > 0 and one.by != number for one in row.slowed_by)
        # None is slowed by its own stream, which it waits for anyway.
        assert all(kernels[one.by].stream != row.kernel.stream for one in row.slowed_by)


@settings(deadline=None, max_examples=30)
@given(raw_kernels())
def test_by_itself_a_kernel_takes_its_time_alone(kernel: RawKernel) -> None:
    (row,) = corun_kernels([kernel], V100).kernels
    assert row.alone_us == pytest.approx(kernel.alone_us, rel=1e-9)
    assert row.end_us - row.ready_us == pytest.approx(kernel.alone_us, rel=1e-9)
    assert row.slowed_by == ()
