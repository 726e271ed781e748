"""Kernels on segments of SMs: nothing is lost by dealing blocks out, and nobody gains from company."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from iossim.backends.simulator import stage_model
from iossim.backends.simulator.stage_model import StageKernels, price_masks


@dataclass(frozen=True)
class Kernel:
    """``load`` is what its blocks ask of the SM that holds most of them, ``device`` of DRAM or power."""

    spread: float
    load: float
    warps: float = 8.0
    device: float = 0.0
    alone_us: float = 10.0
    host_us: float = 0.0

    @property
    def demand(self) -> float:
        """What it asks of all SMs together."""
        return self.load * self.spread / ceil(self.spread)


kernels = st.builds(
    Kernel,
    spread=st.one_of(st.integers(1, 160).map(lambda blocks: blocks / 80), st.floats(0.01, 16.0)),
    load=st.floats(0.0, 1.0),
    warps=st.sampled_from([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]),
    device=st.floats(0.0, 1.0),
    alone_us=st.floats(0.5, 200.0),
    host_us=st.sampled_from([0.0, 2.5, 5.0]),
)
several = st.lists(kernels, min_size=1, max_size=8)
crowdings = st.sampled_from([0.0, 0.1, 1.0])


def laid_out(running: list[Kernel], begin: list[int] | None = None) -> StageKernels:
    """As the stage model reads them: a unit a kernel, or units that begin at ``begin``."""
    begin = list(range(len(running) + 1)) if begin is None else begin
    alone_us, host_us = (np.array([getattr(one, name) for one in running]) for name in ("alone_us", "host_us"))
    single_us = [max(alone_us[a:b].sum(), host_us[a:b].sum()) for a, b in pairwise(begin)]
    return StageKernels(
        np.array(begin, dtype=np.int64),
        alone_us,
        np.array([one.demand for one in running]),
        np.array([one.device for one in running]),
        np.array([one.spread for one in running]),
        np.array([one.warps for one in running]),
        host_us,
        np.array(single_us),
    )


def segments_of(running: list[Kernel]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Width, load and warps of each segment when the kernels have started in this order; and which lie on it."""
    most = len(running)
    segments = np.empty((most + 1, 3))
    segments[0] = 1.0, 0.0, 0.0
    members = np.zeros((most + 1, most), dtype=np.bool_)
    count = 1
    for index, one in enumerate(running):
        count = stage_model._place(index, most, count, one.spread, one.demand, one.warps, segments, members)
    return segments[:count], members[:count]


def stretches(running: list[Kernel], crowding: float) -> list[float]:
    """How many times longer than alone each kernel takes, started in this order."""
    count = len(running)
    room = stage_model._make_room(count)
    room.order[:] = room.position[:count] = room.started[:count] = np.arange(count)
    stage_model._stretches(count, laid_out(running), crowding, room)
    found: list[float] = room.stretch[:count].tolist()
    return found


@settings(deadline=None)
@given(several)
@example([Kernel(0.5, 1.0), Kernel(0.5, 1.0), Kernel(1.0, 1.0)])
@example([Kernel(1.0 - 1e-12, 1.0), Kernel(1e-2, 1.0), Kernel(2.0 + 1e-12, 1.0)])
def test_dealing_blocks_out_loses_nothing(running: list[Kernel]) -> None:
    segments, members = segments_of(running)
    width, load, warps = segments.T
    assert (width > 0).all()
    assert width.sum() == pytest.approx(1.0)
    assert len(width) <= len(running) + 1
    assert width @ load == pytest.approx(sum(one.demand for one in running), abs=1e-7)
    assert width @ warps == pytest.approx(sum(one.spread * one.warps for one in running), rel=1e-6)
    # A kernel lies on as many SMs as it has blocks for.
    assert width @ members == pytest.approx([min(1.0, one.spread) for one in running], abs=1e-7)


def test_the_next_block_goes_where_the_fewest_warps_are() -> None:
    segments, members = segments_of(
        [Kernel(0.5, 1.0, warps=8), Kernel(1.25, 1.0, warps=2), Kernel(0.5, 0.5, warps=1)]
    )
    assert {tuple(row): tuple(on) for row, on in zip(segments.round(9).tolist(), members.tolist(), strict=True)} == {
        (0.5, 1.5, 10.0): (True, True, False),  # the first kernel, and one block of the second
        (0.25, 1.5, 5.0): (False, True, True),  # two of the second; half of the third
        (0.25, 1.0, 3.0): (False, True, True),  # one of the second, the fewest warps; the other half of the third
    }


@settings(deadline=None)
@given(kernels, crowdings)
def test_a_kernel_alone_is_never_stretched(one: Kernel, crowding: float) -> None:
    assert stretches([one], crowding) == pytest.approx([1.0])


@settings(deadline=None)
@given(several, kernels, crowdings)
def test_a_kernel_that_starts_never_speeds_those_that_run(
    running: list[Kernel], new: Kernel, crowding: float
) -> None:
    before, after = stretches(running, crowding), stretches([*running, new], crowding)
    assert all(late >= early * (1 - 1e-9) for early, late in zip(before, after[:-1], strict=True))
    assert min(after) >= 1.0


@settings(deadline=None)
@given(several, crowdings)
def test_nobody_gets_what_there_is_not(running: list[Kernel], crowding: float) -> None:
    slower = np.array(stretches(running, crowding))
    crowded = 1 + crowding * (len(running) > 1)
    used = np.array([one.demand for one in running]) / slower
    assert used.sum() <= (1 + 1e-7) / crowded
    device = np.array([one.device for one in running]) / slower
    assert device.sum() <= (1 + 1e-9) / crowded
    # On each segment, however its load is made up; kernels of many blocks an SM lie on all of them.
    even = np.array([one.spread >= stage_model.EVEN_SPREAD for one in running])
    everywhere = sum(one.demand for one, is_even in zip(running, even, strict=True) if is_even)
    sparse = [index for index, one in enumerate(running) if not even[index] and one.demand]
    for (_, load, _), on in zip(*segments_of([running[index] for index in sparse]), strict=True):
        waiting = slower[[index for index, is_on in zip(sparse, on, strict=True) if is_on]]
        assert (waiting >= (load + everywhere) * crowded * (1 - 1e-9)).all()
        assert (slower[even] >= (load + everywhere) * crowded * (1 - 1e-9)).all()


def test_kernels_on_sms_of_their_own() -> None:
    assert stretches([Kernel(0.5, 1.0), Kernel(0.5, 0.8)], 0.0) == [1.0, 1.0]
    assert stretches([Kernel(0.5, 1.0), Kernel(0.5, 0.8)], 0.25) == pytest.approx([1.25, 1.0])


def test_a_kernel_is_as_slow_as_its_slowest_sm() -> None:
    running = [Kernel(0.5, 1.0), Kernel(0.25, 1.0), Kernel(0.25, 0.6)]
    assert stretches(running, 0.0) == [1.0, 1.0, 1.0]
    # A fourth lies on the first SMs of equals: half of those of the first kernel, all of which waits.
    running.append(Kernel(0.25, 0.6))
    assert stretches(running, 0.0) == pytest.approx([1.6, 1.0, 1.0, 1.6])
    assert stretches(running, 0.5) == pytest.approx([1.6 * 1.5, 1.5, 1.0, 1.6 * 1.5])


def test_a_kernel_of_many_blocks_lies_on_all_sms() -> None:
    # 0.5 of every SM, 1 of a quarter of them: the even kernel waits for these, the other half-empty SMs do not.
    many, few, other = Kernel(8.0, 0.5), Kernel(0.25, 1.0), Kernel(0.25, 0.4)
    assert stretches([many, few, other], 0.0) == pytest.approx([1.5, 1.5, 1.0])
    assert stretches([few, many, other], 0.2) == pytest.approx([1.8, 1.8, 1.08])


def test_what_the_device_shares() -> None:
    two = [Kernel(0.25, 0.5, device=0.6), Kernel(0.25, 0.5, device=0.6)]
    assert stretches(two, 0.0) == pytest.approx([1.2, 1.2])
    assert stretches(two, 0.25) == pytest.approx([1.5, 1.5])
    below = [Kernel(0.25, 0.5, device=0.4), Kernel(0.25, 0.5, device=0.4)]
    assert stretches(below, 0.2) == [1.0, 1.0]
    assert stretches(below, 0.5) == pytest.approx([1.2, 1.2])


@st.composite
def stages(draw: st.DrawFn) -> list[list[Kernel]]:
    """Groups of a unit each, and the kernels of each unit."""
    return draw(st.lists(st.lists(kernels, min_size=1, max_size=4), min_size=2, max_size=6))


def stage_us(groups: list[list[Kernel]], crowding: float) -> float:
    begin = np.cumsum([0, *map(len, groups)]).tolist()
    flat = laid_out([one for group in groups for one in group], begin)
    prices = np.empty(1)
    mask = np.array([(1 << len(groups)) - 1], dtype=np.uint64)
    price_masks(mask, np.zeros(len(groups), dtype=np.uint64), flat, crowding, prices)
    return float(prices[0])


@settings(deadline=None)
@given(stages(), crowdings)
def test_bounds_of_the_fluid(groups: list[list[Kernel]], crowding: float) -> None:
    """The inequalities behind ``SimulatorCostModel.bounds``, for kernels of any kind."""
    found_us = stage_us(groups, crowding) * (1 + 1e-9)
    everything = [one for group in groups for one in group]
    assert found_us >= max(sum(one.alone_us for one in group) for group in groups)
    assert found_us >= sum(one.host_us for one in everything)
    assert found_us >= sum(one.alone_us * one.demand for one in everything) * (1 - 1e-6)
    assert found_us >= sum(one.alone_us * min(1.0, (1 + crowding) * one.device) for one in everything)


def test_two_kernels_that_crowd_each_other_until_one_ends() -> None:
    # Both on all SMs at 0.8: crowded, 2 us each for one alone. The longer has 5 us left when the shorter ends.
    short, long = Kernel(1.0, 0.8, alone_us=10.0), Kernel(1.0, 0.8, alone_us=15.0)
    assert stage_us([[short], [long]], 0.25) == pytest.approx(25.0)
    assert stage_us([[short], [long]], 0.0) == pytest.approx(16.0 + 5.0)
