"""The engine against a reference that simulates every block by itself, and against itself without grouping."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_engine import Reference
from small_devices import issue, programs, small_device, work

from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.program import Instruction
from iossim.execution.execution import Execution
from iossim.hardware.profile import DeviceProfile


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


@settings(deadline=None, max_examples=20)
@given(st.data(), st.integers(1, 5), st.sampled_from(["v100-sxm2", "t4", "p100-pcie-16gb"]))
def test_like_the_reference(data: st.DataObject, sms: int, like: str) -> None:
    profile = small_device(sms, like)
    check_like_reference(data.draw(programs(profile, most_blocks=25)), profile)


@settings(deadline=None, max_examples=20)
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


@pytest.mark.parametrize(("blocks", "starts_us"), [(8, 10.0), (4, 0.0)])
def test_later_kernels_get_room_once_no_block_of_earlier_ones_waits(blocks: int, starts_us: float) -> None:
    profile = small_device(2)
    # Two blocks of the first leave threads of an SM for the small one; beside eight it waits until their last wave begins.
    first = work("first", blocks=blocks, least_us=10.0, threads_per_block=768)
    small = work("small", blocks=2, least_us=3.0, threads_per_block=32)
    kernels = [issue(first, profile, 0), issue(small, profile, 1)]
    spans = {span.name: span for span in execute(kernels, profile).spans}
    assert spans["first"].end_us == pytest.approx(10.0 * blocks / 4)
    assert (spans["small"].start_us, spans["small"].end_us) == pytest.approx((starts_us, starts_us + 3.0))
    check_like_reference(list(kernels), profile)


def test_small_kernels_behind_one_that_fills_the_device_are_spread_over_sms_as_these_end() -> None:
    # Two SMs end earlier, as they hold 15 of the 16 blocks that fit: room for four blocks of each small kernel at once.
    profile = small_device(16)
    fills = work("fills", blocks=16 * 16 - 2, threads_per_block=128, issue_us=1.0, least_us=1.0)
    small = [
        work(f"small {stream}", blocks=6, threads_per_block=256, registers_per_thread=64, issue_us=9.0, least_us=10.0)
        for stream in range(2)
    ]
    kernels = [issue(kernel, profile, stream) for stream, kernel in enumerate([fills, *small])]
    spans = {span.name: span for span in execute(kernels, profile).spans}
    assert spans["fills"].end_us == pytest.approx(16.0)
    # Twelve blocks on twelve SMs of their own, no later than the last SM of those that were full.
    for kernel in small:
        assert spans[kernel.name].end_us <= 16.0 + 10.0 + 1e-6
    check_like_reference(list(kernels), profile)


def test_small_kernels_share_an_sm_only_where_all_others_have_one() -> None:
    # Two SMs hold one block of the first kernel, the others two. Beside that and a block of the first small one is most room.
    profile = small_device(16)
    large = work("large", blocks=30, threads_per_block=256, issue_us=0.1, least_us=30.0)
    small = [
        work(f"small {stream}", blocks=2, threads_per_block=128, issue_us=9.0, least_us=10.0) for stream in range(8)
    ]
    kernels = [issue(kernel, profile, stream) for stream, kernel in enumerate([large, *small])]
    spans = {span.name: span for span in execute(kernels, profile).spans}
    assert max(spans[kernel.name].end_us for kernel in small) < 12.0
    check_like_reference(list(kernels), profile)


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_two_runs_agree_bit_for_bit(data: st.DataObject) -> None:
    profile = small_device(7)
    instructions = data.draw(programs(profile, most_blocks=200))
    one, other = execute(instructions, profile), execute(instructions, profile)
    assert one.spans == other.spans
    for name in ("time_us", "active_warps", "sms_by_warps", "issue", "l2", "dram", "power"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
