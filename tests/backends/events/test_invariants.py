"""Whatever runs: work is conserved, no SM is over its limits; and the engine agrees with a reference that simulates every block by itself."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_engine import Reference
from small_devices import issue, programs, small_device, work

from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.multiprocessors import MultiprocessorClass
from iossim.backends.simulator.events.program import Instruction, IssueKernel
from iossim.backends.simulator.kernel_work import KernelWork
from iossim.execution.execution import Execution
from iossim.hardware.compute_capability import MultiprocessorLimits
from iossim.hardware.profile import DeviceProfile

LIKE = st.sampled_from(["v100-sxm2", "t4", "a100-sxm-40gb", "k80"])


def works_of(instructions: list[Instruction]) -> list[KernelWork]:
    return [step.kernel.demand.work for step in instructions if isinstance(step, IssueKernel)]


def integral(execution: Execution, values: np.ndarray) -> float:
    return float(np.diff(execution.time_us) @ values)


def check_limits(contents: list[tuple[KernelWork, int]], limits: MultiprocessorLimits) -> int:
    """Raise where an SM with these kernels and counts of blocks is over a limit; returns its warps."""
    warps = sum(count * ceil(work.threads_per_block / 32) for work, count in contents)
    registers = sum(
        count
        * ceil(work.threads_per_block / 32)
        * ceil(work.registers_per_thread * 32 / limits.register_granularity)
        * limits.register_granularity
        for work, count in contents
    )
    shared = sum(
        count
        * ceil((work.shared_bytes_per_block + limits.reserved_shared_bytes_per_block) / limits.shared_granularity_bytes)
        * limits.shared_granularity_bytes
        for work, count in contents
    )
    assert warps <= limits.max_warps
    assert warps * 32 <= limits.max_threads
    assert sum(count for _, count in contents) <= limits.max_blocks
    assert registers <= limits.registers
    assert shared <= limits.shared_bytes
    return warps


@settings(max_examples=20)
@given(st.data(), st.integers(1, 12), LIKE)
def test_at_every_instant(data: st.DataObject, sms: int, like: str) -> None:
    profile = small_device(sms, like)
    instructions = data.draw(programs(profile, most_blocks=200))

    def look(now: float, classes: list[MultiprocessorClass]) -> None:
        # Every SM is in one class, and holds no more than it can.
        assert sorted(sm for found in classes for sm in found.sms) == list(range(sms))
        dram = power = l2 = 0.0
        most = 1 + 1e-9
        for found in classes:
            contents = [(run.demand.work, resident.count) for run, resident in found.residents.items()]
            assert check_limits(contents, profile.limits) == found.warps
            rates = [(run.demand.work, resident) for run, resident in found.residents.items()]
            assert sum(kernel.issue_us * held.count * held.rate for kernel, held in rates) <= most
            assert sum(kernel.l2_us * held.count * held.rate for kernel, held in rates) <= most
            for pipe in ("fp32", "fp64"):
                of_pipe = [(kernel, held) for kernel, held in rates if kernel.pipe == pipe]
                assert sum(kernel.pipe_us * held.count * held.rate for kernel, held in of_pipe) <= most
            assert all(held.rate * kernel.least_us <= 1 + 1e-9 for kernel, held in rates)
            assert all(held.rate > 0 for _, held in rates)
            dram += len(found.sms) * sum(held.dram_us * held.rate for _, held in rates)
            power += len(found.sms) * sum(held.device_us.power_us * held.rate for _, held in rates)
            l2 += len(found.sms) * sum(held.device_us.l2_us * held.rate for _, held in rates)
        assert max(dram, power, l2) <= most

    execute(instructions, profile, observer=look)


@settings(max_examples=20)
@given(st.data(), st.integers(1, 12), LIKE)
def test_work_is_conserved(data: st.DataObject, sms: int, like: str) -> None:
    profile = small_device(sms, like)
    instructions = data.draw(programs(profile, most_blocks=200))
    works = works_of(instructions)
    execution = execute(instructions, profile)
    assert len(execution.spans) == len(works)
    for values, asked_us in (
        (execution.issue, sum(kernel.blocks * kernel.issue_us for kernel in works) / sms),
        (execution.l2, sum(kernel.blocks * kernel.l2_us for kernel in works) / sms),
        (execution.power, sum(kernel.power_us for kernel in works)),
    ):
        assert integral(execution, values) == pytest.approx(asked_us, rel=1e-6, abs=1e-6)
    # DRAM carries what L2 loses, too.
    dram_us, kept_us = (sum(getattr(kernel, name) for kernel in works) for name in ("dram_us", "kept_us"))
    assert dram_us - 1e-5 <= integral(execution, execution.dram) <= dram_us + kept_us + 1e-5


@settings(max_examples=20)
@given(st.data(), st.integers(1, 12))
def test_states_of_the_device(data: st.DataObject, sms: int) -> None:
    profile = small_device(sms)
    execution = execute(data.draw(programs(profile, most_blocks=200)), profile)
    states = len(execution.active_warps)
    assert execution.time_us.shape == (states + 1,)
    assert execution.time_us[0] == 0.0
    assert execution.time_us[-1] == execution.latency_us == max(span.end_us for span in execution.spans)
    assert (np.diff(execution.time_us) > 0).all()
    assert (execution.sms_by_warps.sum(axis=1) == sms).all()
    # Something is resident exactly while a kernel runs.
    middles = (execution.time_us[:-1] + execution.time_us[1:]) / 2
    running = [any(span.start_us < middle < span.end_us for span in execution.spans) for middle in middles]
    assert (execution.active_warps > 0).tolist() == running
    assert ((execution.occupied_sms > 0) == (execution.active_warps > 0)).all()


def test_what_a_known_run_uses() -> None:
    # Two blocks on two SMs for 10 us, each half of an SM's issue and a quarter of its L2; DRAM for 4 of 10 us.
    profile: DeviceProfile = small_device(2)
    kernel = work(blocks=2, threads_per_block=256, issue_us=5.0, least_us=10.0, l2_us=2.5, dram_us=4.0, gap_us=5.0)
    execution = execute([issue(kernel, profile, host_us=5.0)], profile)
    assert execution.time_us.tolist() == [0.0, 10.0, 20.0]
    assert execution.active_warps.tolist() == [0, 16]
    assert execution.issue.tolist() == [0.0, 0.5]
    assert execution.l2.tolist() == [0.0, 0.25]
    assert execution.dram.tolist() == [0.0, pytest.approx(0.4)]
    assert (execution.mean_active_warps, execution.mean_issue) == (8.0, 0.25)
    assert execution.sms_by_warps[:, [0, 8]].tolist() == [[2, 0], [0, 2]]


def test_nothing_to_run() -> None:
    execution = execute([], small_device(2))
    assert (execution.latency_us, execution.spans, execution.mean_active_warps) == (0.0, (), 0.0)
    assert execution.time_us.tolist() == [0.0]


def check_like_reference(instructions: list[Instruction], profile: DeviceProfile) -> None:
    reference = Reference(profile, instructions)
    reference.run()
    expected = sorted(zip(reference.starts, reference.ends, strict=True))
    found = sorted((span.start_us, span.end_us) for span in execute(instructions, profile).spans)
    # Sums in another order: more digits than these say nothing.
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-6, atol=1e-5)


def check_alike(one: Execution, other: Execution) -> None:
    assert one.latency_us == pytest.approx(other.latency_us, rel=1e-7)
    for left, right in zip(one.spans, other.spans, strict=True):
        assert (left.name, left.stream) == (right.name, right.stream)
        assert (left.start_us, left.end_us) == pytest.approx((right.start_us, right.end_us), rel=1e-7, abs=1e-6)
    assert one.mean_active_warps == pytest.approx(other.mean_active_warps, rel=1e-6)


@settings(max_examples=20)
@given(st.data(), st.integers(1, 5), st.sampled_from(["v100-sxm2", "t4", "p100-pcie-16gb"]))
def test_like_the_reference(data: st.DataObject, sms: int, like: str) -> None:
    profile = small_device(sms, like)
    check_like_reference(data.draw(programs(profile, most_blocks=25)), profile)


@settings(max_examples=20)
@given(st.data(), st.integers(1, 16))
def test_grouping_changes_nothing(data: st.DataObject, sms: int) -> None:
    profile = small_device(sms)
    instructions = data.draw(programs(profile, most_blocks=400))
    check_alike(execute(instructions, profile), execute(instructions, profile, grouped=False))


def test_a_block_goes_where_most_room_is() -> None:
    # After the first kernel an SM is empty. Its room for the second, by slots, is one block more than the others';
    # once that is taken all are equal, and the fewest warps decide, then the number.
    profile = small_device(4)
    first = work("first", blocks=3, least_us=100.0, threads_per_block=512)
    second = work("second", blocks=3, least_us=10.0, issue_us=0.1)
    third = work("third", blocks=1, least_us=10.0, issue_us=0.1)
    seen: list[list[int]] = []
    execute(
        [issue(first, profile, 0), issue(second, profile, 1, host_us=1.0), issue(third, profile, 2, host_us=1.0)],
        profile,
        observer=lambda now, classes: seen.append(
            [found.warps for number in range(4) for found in classes if number in found.sms]
        ),
    )
    assert seen[:3] == [[16, 16, 16, 0], [17, 16, 16, 2], [17, 17, 16, 2]]


SMALL = {"blocks": 6, "threads_per_block": 256, "registers_per_thread": 64, "issue_us": 9.0, "least_us": 10.0}


@pytest.mark.parametrize(
    ("sms", "kernels", "ends_us"),
    [
        # Two blocks of the first leave threads of an SM for the small one; beside eight it waits for their last wave.
        (2, [{"blocks": 8, "least_us": 10.0, "threads_per_block": 768}, {"blocks": 2, "least_us": 3.0}], 13.0),
        (2, [{"blocks": 4, "least_us": 10.0, "threads_per_block": 768}, {"blocks": 2, "least_us": 3.0}], 3.0),
        # Two SMs end earlier, as they hold 15 of the 16 blocks that fit: room for four blocks of each small kernel at
        # once. Twelve blocks on twelve SMs of their own end no later than on the last SM of those that were full.
        (16, [{"blocks": 254, "threads_per_block": 128, "issue_us": 1.0, "least_us": 1.0}, SMALL, SMALL], 26.0),
        # Two SMs hold one block of the first kernel, the others two. Beside that and a small block is most room.
        (
            16,
            [{"blocks": 30, "threads_per_block": 256, "issue_us": 0.1, "least_us": 30.0}]
            + [{"blocks": 2, "threads_per_block": 128, "issue_us": 9.0, "least_us": 10.0}] * 8,
            12.0,
        ),
    ],
)
def test_later_kernels_get_room_beside_earlier_ones(sms: int, kernels: list[dict[str, float]], ends_us: float) -> None:
    profile = small_device(sms)
    issued = [issue(work(f"kernel {stream}", **own), profile, stream) for stream, own in enumerate(kernels)]
    assert max(span.end_us for span in execute(issued, profile).spans if span.stream) <= ends_us + 1e-6
    check_like_reference(list(issued), profile)
