"""A kernel alone: as the kernel model prices it, never slower on a better device."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small_devices import issue, small_device, with_facts, works

from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.kernel_work import KernelWork, kernel_work
from iossim.base.errors import ScheduleError
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Candidate, Kernel, resident_blocks
from iossim.hardware.lowering.unit import lower_unit
from iossim.hardware.profile import DeviceProfile
from iossim.models.load import load

V100 = device("v100-sxm2")


def network_kernels() -> list[Kernel]:
    """Kernels of convolutions, pooling and concats, small and large; every candidate, not only the fastest."""
    kernels: dict[Kernel, None] = {}
    for name, batch in (("squeezenet", 1), ("inception_v3", 8)):
        network = load(name, batch=batch)
        for unit in network.units[::3]:
            for candidates in lower_unit(network, unit, V100):
                for candidate in candidates:
                    assert isinstance(candidate, Candidate)
                    kernels.update(dict.fromkeys(candidate.kernels))
    return list(kernels)


KERNELS = network_kernels()


def alone_us(work: KernelWork, profile: DeviceProfile) -> float:
    return execute([issue(work, profile)], profile).latency_us


@settings(deadline=None, max_examples=20)
@given(works(most_blocks=2_000), st.integers(1, 12))
def test_alone_it_takes_the_longest_of_its_waves_dram_and_power(work: KernelWork, sms: int) -> None:
    profile = small_device(sms)
    demand = BlockDemand.of(work, profile)
    assert alone_us(work, profile) == pytest.approx(demand.alone_us, rel=1e-9)
    dealt_us = [
        demand.early_blocks * early_us + demand.last_blocks * last_us
        for early_us, last_us in zip(demand.early_us, demand.last_us, strict=True)
    ]
    assert dealt_us == pytest.approx([work.dram_us, work.power_us, work.l2_device_us, work.kept_us, 1.0], rel=1e-9)
    assert demand.early_blocks + demand.last_blocks == work.blocks


@settings(deadline=None, max_examples=20)
@given(works(most_blocks=2_000), st.integers(1, 12), st.integers(1, 12))
def test_more_sms_never_slow_a_kernel(work: KernelWork, sms: int, more: int) -> None:
    assert alone_us(work, small_device(sms + more)) <= alone_us(work, small_device(sms)) * (1 + 1e-9)


@settings(deadline=None, max_examples=20)
@given(
    works(most_blocks=500),
    st.integers(1, 12),
    st.sampled_from(["issue_us", "l2_us", "dram_us", "power_us"]),
    st.floats(1, 4),
)
def test_more_of_a_resource_never_slows_a_kernel(work: KernelWork, sms: int, name: str, factor: float) -> None:
    profile = small_device(sms)
    faster = replace(work, **{name: getattr(work, name) / factor})
    assert alone_us(faster, profile) <= alone_us(work, profile) * (1 + 1e-9)


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(KERNELS),
    st.sampled_from(["sm_count", "boost_clock_ghz", "dram_bandwidth_gbps", "l2_bytes"]),
    st.floats(1, 4),
)
def test_a_better_device_never_slows_a_kernel(kernel: Kernel, fact: str, factor: float) -> None:
    value = getattr(V100.datasheet, fact).value
    better = with_facts(V100, **{fact: math.ceil(value * factor) if isinstance(value, int) else value * factor})
    before, after = (alone_us(kernel_work(KernelModel(profile), kernel), profile) for profile in (V100, better))
    assert after <= before * (1 + 1e-9)


@pytest.mark.parametrize("name", ["v100-sxm2", "t4", "a100-sxm-40gb", "p100-pcie-16gb"])
def test_as_the_kernel_model_prices_it(name: str) -> None:
    profile = device(name)
    model = KernelModel(profile)
    differences = []
    for kernel in KERNELS:
        priced_us = model.price(kernel).alone_us
        found_us = alone_us(kernel_work(model, kernel), profile)
        differences.append(abs(found_us / priced_us - 1))
    assert sorted(differences)[len(differences) // 2] < 0.01
    assert max(differences) < 0.2


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(KERNELS), st.integers(1, 6))
def test_full_waves_are_as_the_kernel_model_prices_them(kernel: Kernel, waves: int) -> None:
    resident = resident_blocks(
        V100.limits, kernel.threads_per_block, kernel.registers_per_thread, kernel.shared_bytes_per_block
    )
    blocks = waves * resident * V100.sm_count
    # As much for each block as before, and L2 and DRAM out of the way: they overlap differently in the two.
    flops = kernel.flops * blocks // kernel.blocks
    full = replace(kernel, blocks=blocks, flops=flops, l2_bytes=0, weight_bytes=0, activation_bytes=0, bytes_written=0)
    assume(flops)
    model = KernelModel(V100)
    assert alone_us(kernel_work(model, full), V100) == pytest.approx(model.price(full).alone_us, rel=1e-9)


def test_a_block_that_fits_no_sm() -> None:
    kernel = KernelWork("huge", 1, 1024, 255, 0, 1.0, 1.0, 0.0, 0.0, 0.0)
    with pytest.raises(ScheduleError, match=r"huge.*1024 threads, 255 registers.*v100-sxm2"):
        BlockDemand.of(kernel, V100)
