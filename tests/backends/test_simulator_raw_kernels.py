"""Raw kernels: what they ask for of what a device gives, what is inferred, and what cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.raw_kernels import FP64_LANES, INT_LANES, Pipe, RawKernel, raw_kernel_work
from iossim.base.errors import OptionError
from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.load import device

V100 = device("v100-sxm2")
MODEL = KernelModel(V100)
COPY = RawKernel("copy", 0, 800, 256, 32, 0, 100.0, dram_bytes=60e6, l2_bytes=60e6, footprint_bytes=60e6)


def test_what_is_given_is_asked_for() -> None:
    work, inferred = raw_kernel_work(replace(COPY, flops=1e8, pipe=Pipe.FP64), MODEL)
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
    _, inferred = raw_kernel_work(replace(COPY, l2_bytes=None, footprint_bytes=None, flops=1e6), MODEL)
    assert inferred == (
        "L2 traffic as that with DRAM",
        "touches 6e+07 bytes, as its traffic with DRAM",
        "fp32 pipe assumed",
    )


def test_what_l2_keeps() -> None:
    # Of a kernel that goes over two megabytes ten times all but what is told of DRAM; of one that says no more, once.
    often = replace(COPY, dram_bytes=2e6, l2_bytes=20e6, footprint_bytes=2e6)
    kept_us = 18e6 / (900e3 * V100.parameters.stream_efficiency)
    assert raw_kernel_work(often, MODEL)[0].kept_us == pytest.approx(kept_us)
    assert raw_kernel_work(replace(often, footprint_bytes=None), MODEL)[0].kept_us == 0.0
    in_l2, _ = raw_kernel_work(replace(often, dram_bytes=0.0, footprint_bytes=None), MODEL)
    assert (in_l2.footprint_bytes, in_l2.kept_us) == (20e6, pytest.approx(kept_us / 0.9))


def test_a_roofline_without_a_time_alone() -> None:
    work, inferred = raw_kernel_work(replace(COPY, alone_us=None), MODEL)
    alone_us = BlockDemand.of(work, V100).alone_us - work.gap_us
    assert alone_us == pytest.approx(60e6 / (900e3 * V100.parameters.stream_efficiency))
    assert inferred == (f"{alone_us:.6g} us alone by what it asks for (a roofline)",)
    # A block an SM on an eighth of them draws no more than twice its even share.
    few, _ = raw_kernel_work(replace(COPY, alone_us=None, blocks=10), MODEL)
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
            replace(COPY, dram_bytes=100e6),
            "1e.08 dram_bytes take the device 111.111 us at its peak, and alone_us is 100",
        ),
        (replace(COPY, flops=2e9), "2e.09 flops take the device"),
        (replace(COPY, blocks=0), "blocks is 0; give 1 or more"),
        (replace(COPY, l2_bytes=-1.0), "l2_bytes is -1; give 0 or more"),
        (replace(COPY, alone_us=float("nan")), "alone_us is nan"),
    ],
)
def test_what_cannot_be(raw: RawKernel, told: str) -> None:
    with pytest.raises(OptionError, match=f"kernel '{raw.name}': {told}"):
        raw_kernel_work(raw, MODEL)


def test_a_little_more_than_there_is_is_all_of_it() -> None:
    work, inferred = raw_kernel_work(replace(COPY, dram_bytes=93e6), MODEL)
    assert work.dram_us == 100.0
    assert inferred == ("uses all of DRAM's bandwidth (what was given is more)",)


def test_pipes_of_devices() -> None:
    assert set(FP64_LANES) == set(INT_LANES) == set(LIMITS)
    product = RawKernel("product", 0, 160, 256, alone_us=100.0, flops=1e9, pipe=Pipe.TENSOR)
    work, _ = raw_kernel_work(product, MODEL)
    assert work.pipe_us * 160 / 80 == pytest.approx(1e9 / 125e6, rel=0.01)
    with pytest.raises(OptionError, match="'p100-pcie-16gb' has no tensor cores; give another pipe"):
        raw_kernel_work(product, KernelModel(device("p100-pcie-16gb")))
