"""Kernels that run side by side disturb each other: on SMs, at DRAM and at the board's power."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_devices import issue, programs, small_device, work, works

from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.kernel_work import KernelWork


def ends_us(sms: int, interference: float, *kernels: KernelWork) -> list[float]:
    """When each kernel ends, all ready at once, each in a stream of its own."""
    profile = small_device(sms, interference=interference)
    spans = execute([issue(kernel, profile, stream) for stream, kernel in enumerate(kernels)], profile).spans
    return [span.end_us for span in sorted(spans, key=lambda span: span.stream)]


@pytest.mark.parametrize(
    ("issue_us", "interference", "expected_us"),
    [
        (8.0, 0.0, 16.0),  # two ask for 0.8 of the SM each
        (8.0, 0.25, 20.0),  # 1.6 counts 1.25 times
        (4.0, 0.2, 10.0),  # 0.8 counts as 0.96: room enough
        (4.0, 0.5, 12.0),  # 0.8 counts as 1.2
    ],
)
def test_two_kernels_on_an_sm(issue_us: float, interference: float, expected_us: float) -> None:
    kernel = work(issue_us=issue_us, least_us=10.0)
    assert ends_us(1, interference, kernel, kernel) == pytest.approx([expected_us] * 2)


def test_l2_ports_are_as_issue() -> None:
    kernel = work(l2_us=8.0, least_us=10.0)
    assert ends_us(1, 0.25, kernel, kernel) == pytest.approx([20.0, 20.0])


def test_a_third_kernel_crowds_no_more_than_a_second() -> None:
    kernel = work(issue_us=4.0, least_us=10.0)
    assert ends_us(1, 0.25, kernel, kernel, kernel) == pytest.approx([1.2 * 1.25 * 10.0] * 3)


def test_kernels_on_sms_of_their_own_are_slowed_only_where_these_have_no_room() -> None:
    kernel = work(issue_us=8.0, least_us=10.0)
    assert ends_us(2, 0.25, kernel, kernel) == pytest.approx([10.0, 10.0])
    assert ends_us(2, 0.5, kernel, kernel) == pytest.approx([12.0, 12.0])


def test_blocks_of_one_kernel_do_not_disturb_each_other() -> None:
    assert ends_us(1, 1.0, work(blocks=2, issue_us=8.0, least_us=10.0)) == pytest.approx([16.0])


@pytest.mark.parametrize("resource", ["dram_us", "power_us"])
def test_only_those_who_use_what_the_device_shares_wait_for_it(resource: str) -> None:
    user = work(issue_us=1.0, least_us=10.0, **{resource: 6.0})
    other = work(issue_us=1.0, least_us=10.0)
    assert ends_us(3, 0.0, user, user, other) == pytest.approx([12.0, 12.0, 10.0])
    assert ends_us(3, 0.25, user, user, other) == pytest.approx([15.0, 15.0, 10.0])
    # One user beside others: 0.6 counts as 1.2 until they have ended, when a sixth of its 10 us is left.
    assert ends_us(3, 1.0, user, other, other) == pytest.approx([10.0 + 10.0 / 6, 10.0, 10.0])


@pytest.mark.parametrize("resource", ["dram_us", "power_us"])
def test_a_shared_resource_that_is_not_asked_for_in_full_may_still_be_crowded(resource: str) -> None:
    # 0.9 of it counts as 1.125: coupled only by interference.
    user = work(issue_us=1.0, least_us=10.0, **{resource: 4.5})
    assert ends_us(2, 0.25, user, user) == pytest.approx([11.25, 11.25])


def test_interference_ends_with_the_kernel_that_causes_it() -> None:
    # Both at 0.8 for 20 us as demand_factor; then the longer has 5 of its 15 us left, and the SM to itself.
    short, long = work(issue_us=8.0, least_us=10.0), work(issue_us=12.0, least_us=15.0)
    assert ends_us(1, 0.25, short, long) == pytest.approx([20.0, 25.0])


@settings(deadline=None, max_examples=60)
@given(works(most_blocks=300), st.integers(1, 8), st.floats(0.0, 2.0))
def test_a_kernel_alone_is_not_crowded(kernel: KernelWork, sms: int, interference: float) -> None:
    assert ends_us(sms, interference, kernel) == ends_us(sms, 0.0, kernel)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 8), st.floats(0.0, 2.0))
def test_what_is_used_is_never_more_than_there_is(data: st.DataObject, sms: int, interference: float) -> None:
    profile = small_device(sms, interference=interference)
    execution = execute(data.draw(programs(profile)), profile)
    for values in (execution.issue, execution.l2, execution.dram, execution.power):
        assert np.all((values >= 0.0) & (values <= 1.0 + 1e-9))
