"""Kernels side by side share what SMs and the device have; on a CPU they disturb each other besides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_devices import issue, programs, small_cpu, small_device, work

from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.multiprocessors import MultiprocessorClass
from iossim.backends.simulator.events.program import IssuedKernel, IssueKernel
from iossim.backends.simulator.kernel_work import KernelWork
from iossim.execution.plan import Queue
from iossim.hardware.profile import DeviceProfile, with_values


def ends_us(profile: DeviceProfile, *kernels: KernelWork) -> list[float]:
    """When each kernel ends, all ready at once, each in a stream of its own."""
    spans = execute([issue(kernel, profile, stream) for stream, kernel in enumerate(kernels)], profile).spans
    return [span.end_us for span in sorted(spans, key=lambda span: span.stream)]


@pytest.mark.parametrize("resource", ["issue_us", "l2_us"])
def test_two_kernels_on_an_sm(resource: str) -> None:
    kernel = work(least_us=10.0, **{resource: 8.0})
    assert ends_us(small_device(1), kernel, kernel) == pytest.approx([16.0] * 2)
    # One that asks for nothing of it, as a sleeping kernel, is not slowed.
    assert ends_us(small_device(1), kernel, kernel, work(least_us=12.0))[2] == pytest.approx(12.0)


def test_kernels_of_other_pipes_share_issue_only() -> None:
    fp64, fp32 = (work(least_us=10.0, issue_us=2.0, pipe=pipe, pipe_us=9.0) for pipe in ("fp64", "fp32"))
    assert ends_us(small_device(1), fp64, fp64) == pytest.approx([18.0, 18.0])
    assert ends_us(small_device(1), fp64, fp32) == pytest.approx([10.0, 10.0])


def test_blocks_of_one_kernel_do_not_disturb_each_other() -> None:
    cpu = small_cpu(2, interference=1.0)
    assert ends_us(
        cpu, work(blocks=2, issue_us=8.0, dram_us=9.0, least_us=10.0, registers_per_thread=0)
    ) == pytest.approx([10.0])


@pytest.mark.parametrize("resource", ["dram_us", "power_us", "l2_device_us"])
def test_only_those_who_use_what_the_device_shares_wait_for_it(resource: str) -> None:
    user = work(issue_us=1.0, least_us=10.0, **{resource: 6.0})
    other = work(issue_us=1.0, least_us=10.0)
    assert ends_us(small_device(3), user, user, other) == pytest.approx([12.0, 12.0, 10.0])


def test_what_l2_has_no_room_for_goes_to_dram() -> None:
    profile = small_device(4)
    room = profile.parameters.l2_resident_fraction * profile.datasheet.l2_bytes.value
    fits = work(least_us=10.0, dram_us=4.0, kept_us=6.0, footprint_bytes=0.7 * room)
    assert ends_us(profile, fits) == pytest.approx([10.0])
    # Two touch 1.4 times what L2 keeps: all of it is lost, and each asks for all of DRAM.
    assert ends_us(profile, fits, fits) == pytest.approx([20.0, 20.0])
    small = work(least_us=10.0, dram_us=4.0, kept_us=6.0, footprint_bytes=0.35 * room)
    assert ends_us(profile, small, small) == pytest.approx([10.0, 10.0])


def test_a_kernel_runs_on_the_sms_that_it_may_use_and_draws_what_these_reach() -> None:
    profile = small_device(4)
    half = work(blocks=8, issue_us=1.0, least_us=1.0, dram_us=3.0, reach=0.6)
    issued = [
        IssueKernel(IssuedKernel(BlockDemand.of(half, profile, 2), 0.0), Queue(0, stream), "", 0, sms)
        for stream, sms in enumerate([range(0, 2), range(2, 4)])
    ]
    seen: list[set[int]] = []

    def look(now: float, classes: list[MultiprocessorClass]) -> None:
        seen.append({sm for found in classes for sm in found.sms for run in found.residents if run.number == 1})

    # Alone 3 us of DRAM at 0.6 of its bandwidth; two ask for 1.2.
    assert execute(issued[1:], profile).latency_us == pytest.approx(5.0)
    assert execute(issued, profile, observer=look).latency_us == pytest.approx(6.0)
    assert set().union(*seen) == {2, 3}
    assert execute(issued, profile, grouped=False).latency_us == pytest.approx(6.0)


def test_neighbours_of_a_core_disturb_it_at_dram() -> None:
    user = work(least_us=10.0, dram_us=4.5, registers_per_thread=0)
    # 0.9 of DRAM counts as 1.125, and 0.45 by itself as 0.45.
    assert ends_us(small_cpu(2, 0.25), user, user) == pytest.approx([11.25, 11.25])
    assert ends_us(small_cpu(2, 0.25), user) == pytest.approx([10.0])
    # Half a kernel's time alone: the disturbance ends with the one that causes it.
    long = work(least_us=20.0, dram_us=9.0, registers_per_thread=0)
    assert ends_us(small_cpu(2, 0.25), user, long) == pytest.approx([11.25, 21.25])


def test_what_a_gpus_parameters_say_of_interference_is_not_used() -> None:
    kernel = work(least_us=10.0, dram_us=4.5)
    crowded = with_values(small_device(2), {"interference": 0.5})
    assert ends_us(crowded, kernel, kernel) == pytest.approx([10.0, 10.0])


@settings(deadline=None, max_examples=20)
@given(st.data(), st.integers(1, 8))
def test_what_is_used_is_never_more_than_there_is(data: st.DataObject, sms: int) -> None:
    profile = small_device(sms)
    execution = execute(data.draw(programs(profile)), profile)
    for values in (execution.issue, execution.l2, execution.dram, execution.power):
        assert np.all((values >= 0.0) & (values <= 1.0 + 1e-9))
