"""Kernels on segments of SMs: as if blocks were dealt to one SM after the other, and nobody gains from company."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iossim.backends.simulator.device_sharing import EVEN_SPREAD, MAX_GROUPS, Fluid, KnownSlowdowns, StageKernels
from iossim.backends.simulator.kernel_model import KernelPrice
from iossim.backends.simulator.preparation import PreparedProblem
from iossim.backends.simulator.stage_model import price_masks
from iossim.backends.simulator.unit_prices import UnitPrice
from iossim.base.compiled import Floats

SMS = 80


@dataclass(frozen=True)
class Kernel:
    """``load`` is what its blocks ask of the SM that holds most of them, ``device`` of DRAM.

    The last wave, of ``last`` as many blocks, takes the part ``tail`` of its time. A block has ``slots`` of its SM, or
    ``sms`` to itself, in clusters of which a GPC holds ``gpc_clusters``; a second wave of those takes ``again`` of its
    time. What the kernel touches is ``footprint`` of what L2 keeps.
    """

    spread: float
    load: float
    warps: float = 8.0
    device: float = 0.0
    alone_us: float = 10.0
    host_us: float = 0.0
    power: float = 0.0
    tail: float = 1.0
    last: float = 1.0
    slots: float = 0.0
    footprint: float = 0.0
    kept: float = 0.0
    sms: float = 0.0
    gpc_clusters: float = 0.0
    again: float = 1.0

    @property
    def running_us(self) -> float:
        """What it holds its room for at least."""
        return self.alone_us * self.again if self.sms > 0.0 and self.tail == 1.0 else self.alone_us

    @property
    def price(self) -> KernelPrice:
        return KernelPrice(
            self.alone_us,
            self.demand,
            self.device,
            self.power,
            self.spread,
            self.warps,
            self.alone_us * self.tail,
            self.spread * self.last,
            self.footprint,
            self.kept,
            self.gpc_clusters,
            self.running_us if self.sms > 0.0 and self.tail == 1.0 else 0.0,
            slots=(self.slots, 0.0, 0.0, 0.0, self.sms),
        )

    @property
    def demand(self) -> float:
        """What it asks of all SMs together."""
        return self.load * self.spread / ceil(self.spread)


spreads = st.integers(1, 8 * SMS).map(lambda blocks: blocks / SMS)
kernels = st.builds(
    Kernel,
    spread=st.one_of(spreads, st.integers(1, 2 * SMS).map(lambda blocks: blocks / SMS), st.floats(0.01, 16.0)),
    load=st.floats(0.0, 1.0),
    warps=st.sampled_from([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]),
    device=st.floats(0.0, 1.0),
    alone_us=st.floats(0.5, 200.0),
    host_us=st.sampled_from([0.0, 2.5, 5.0]),
)
parts = st.one_of(st.just(0.0), st.floats(0.01, 1.0))
#: Those that hold slots, run in waves, and lose what L2 keeps.
any_kernels = st.builds(
    lambda one, fills, **more: replace(one, slots=fills / max(1.0, one.spread), **more),
    kernels,
    fills=st.one_of(parts, st.just(1.0)),
    power=parts,
    tail=st.floats(0.05, 1.0),
    last=st.floats(0.05, 1.0),
    footprint=st.floats(0.0, 2.0),
    kept=st.floats(0.0, 2.0),
)
#: ... of blocks with an SM each, all at once.
of_whole_sms = st.builds(
    lambda one, blocks, again: replace(one, spread=blocks / SMS, sms=1.0, again=again, tail=1.0, last=1.0),
    any_kernels,
    blocks=st.integers(1, SMS),
    again=st.floats(0.5, 1.0),
)
#: ... whose demands are the same as long as they run.
of_one_wave = any_kernels.map(lambda one: replace(one, tail=1.0, last=1.0))
interferences = st.sampled_from([0.0, 0.1, 1.0])


def unit(group: list[Kernel]) -> UnitPrice:
    return UnitPrice(
        names=("kernel",) * len(group),
        prices=tuple(one.price for one in group),
        host_us=tuple(one.host_us for one in group),
    )


def priced(masks: list[int], kernels: StageKernels, interference: float, known: int) -> tuple[list[float], Floats]:
    """The prices of stages of unrelated units, and the stream, start and end of each kernel of the last one."""
    fluid = Fluid.of(kernels, interference, known=KnownSlowdowns.room(known), has_spans=True)
    prices, unrelated = np.empty(len(masks)), np.zeros(len(kernels.single_us), dtype=np.uint64)
    price_masks(np.array(masks, dtype=np.uint64), unrelated, fluid, prices, np.full(len(masks), inf))
    return prices.tolist(), fluid.spans


def run(groups: list[list[Kernel]], interference: float) -> tuple[float, list[float]]:
    """The price of a stage of these groups, and when each kernel ends."""
    kernels = PreparedProblem.of([unit(group) for group in groups]).kernels
    (price_us,), spans = priced([(1 << len(groups)) - 1], kernels, interference, 1)
    return price_us, spans[:, 2].tolist()


def stretches(running: list[Kernel], interference: float) -> list[float]:
    """How many times longer than alone each kernel takes while all run, started in this order."""
    if len(running) == 1:
        # A stage of one group is no fluid; a kernel that asks for nothing and is gone at once makes it one.
        trailing = Kernel(0.01, 0.0, alone_us=1e-6)
        _, (end_us, _) = run([[replace(running[0], host_us=0.0, alone_us=1.0)], [trailing]], interference)
        return [end_us]
    found = []
    for watched in range(len(running)):
        groups = [[replace(one, host_us=0.0, alone_us=1e6)] for one in running]
        groups[watched] = [replace(running[watched], host_us=0.0, alone_us=1.0)]
        found.append(run(groups, interference)[1][watched])
    return found


def dealt(running: list[Kernel], interference: float) -> list[float]:
    """The same, with every SM by itself: each block goes where the fewest warps are."""
    load, warps = np.zeros(SMS), np.zeros(SMS)
    members = np.zeros((SMS, len(running)), dtype=np.bool_)
    even = [one.spread >= EVEN_SPREAD for one in running]
    for one, is_even in zip(running, even, strict=True):
        if is_even:
            load += one.demand
            warps += one.spread * one.warps
    for index, one in enumerate(running):
        if not even[index] and one.demand:
            chosen = set(range(SMS)) if one.spread >= 1 else set()
            whole, rest = divmod(round(one.spread * SMS), SMS)
            load += whole * one.demand / one.spread
            warps += whole * one.warps
            extra = np.argsort(warps, kind="stable")[:rest]
            load[extra] += one.demand / one.spread
            warps[extra] += one.warps
            members[sorted(chosen | set(extra.tolist())), index] = True
    assert load.sum() == pytest.approx(sum(one.demand for one in running) * SMS)
    factor = 1 + interference * (len(running) > 1)
    issue = factor * load.max() if any(even) else 1.0
    evenly = factor * sum(one.demand for one, is_even in zip(running, even, strict=True) if is_even)
    found = []
    for index, (one, is_even) in enumerate(zip(running, even, strict=True)):
        # What asks nothing of the device as a whole waits for nobody there.
        device = factor * sum(each.device for each in running) if one.device > 0 else 0.0
        found.append(
            max([1.0, device, issue] if is_even else [1.0, device, evenly, *(factor * load[members[:, index]])])
        )
    return found


@given(
    st.lists(
        st.builds(Kernel, spread=spreads, load=st.floats(0.01, 1.0), device=st.floats(0.0, 0.3)), min_size=2, max_size=8
    ),
    interferences,
)
@example([Kernel(0.5, 1.0), Kernel(0.5, 1.0), Kernel(1.0, 1.0)], 0.1)
@example([Kernel(0.5, 1.0), Kernel(0.25, 1.0), Kernel(0.25, 0.6), Kernel(0.25, 0.6)], 0.5)
@example([Kernel(0.25, 1.0), Kernel(8.0, 0.5), Kernel(0.25, 0.4)], 0.2)
@example([Kernel(0.5, 1.0), Kernel(1.25, 1.0), Kernel(0.5, 1.0), Kernel(5.0, 0.3)], 0.1)
@example([Kernel(0.0125, 1.0), *[Kernel(0.0125, 1.0, device=0.3)] * 4], 0.0)
def test_as_if_blocks_were_dealt_to_one_sm_after_the_other(running: list[Kernel], interference: float) -> None:
    # Powers of two tell SMs of unlike contents apart by their warps: no order of equals decides.
    running = [replace(one, warps=2.0**index) for index, one in enumerate(running)]
    assert stretches(running, interference) == pytest.approx(dealt(running, interference), rel=1e-6)


@given(any_kernels | of_whole_sms, interferences)
def test_a_kernel_alone_is_never_stretched(one: Kernel, interference: float) -> None:
    assert stretches([one], interference) == pytest.approx([1.0], rel=1e-4)


@given(st.lists(of_one_wave, min_size=1, max_size=8), of_one_wave, interferences)
def test_a_kernel_that_starts_never_speeds_those_that_run(
    running: list[Kernel], new: Kernel, interference: float
) -> None:
    before, after = stretches(running, interference), stretches([*running, new], interference)
    assert all(late >= early * (1 - 1e-4) for early, late in zip(before, after[:-1], strict=True))
    assert min(after) >= 1.0 - 1e-9


@given(st.lists(of_one_wave, min_size=2, max_size=8), interferences)
def test_nobody_gets_what_there_is_not(running: list[Kernel], interference: float) -> None:
    slower = np.array(stretches(running, interference))
    used = np.array([one.demand for one in running]) / slower
    assert used.sum() <= (1 + 1e-5) / (1 + interference)
    for asked in (lambda one: one.device, lambda one: one.power):
        assert (np.array([asked(one) for one in running]) / slower).sum() <= (1 + 1e-5) / (1 + interference)


@pytest.mark.parametrize(
    ("before", "whole", "waves"),
    [
        (Kernel(0.25, 0.5), Kernel(0.75, 0.5, sms=1.0), 1.0),
        (Kernel(0.25, 0.5), Kernel(0.9, 0.5, sms=1.0), 2.0),
        (Kernel(0.25, 0.5), Kernel(0.9, 0.5, sms=1.0, tail=0.5), 1.2),  # further waves fill the SMs that end first
        (Kernel(0.5, 0.5, sms=1.1), Kernel(0.4, 0.5, sms=1.1), 1.0),
        (Kernel(0.5, 0.5, sms=1.1), Kernel(0.5, 0.5, sms=1.1), 2.0),
        # An eighth of its SMs leaves a GPC room for three clusters of four, or for one of two.
        (Kernel(0.125, 0.5), Kernel(0.75, 0.5, sms=1.0, gpc_clusters=4.125), 1.0),
        (Kernel(0.125, 0.5), Kernel(0.6, 0.5, sms=1.0, gpc_clusters=2.0625), 2.0),
    ],
)
def test_a_block_with_an_sm_to_itself_finds_room_on_those_without_others(
    before: Kernel, whole: Kernel, waves: float
) -> None:
    assert stretches([before, whole], 0.0) == pytest.approx([1.0, waves])


@pytest.mark.parametrize(
    ("second_us", "ends_us"),
    [
        (10.0, [10.0, 20.0, 20.0]),
        (6.0, [10.0, 12.0, 20.0]),  # the second wave has the room of the first one, and leaves none
        (20.0, [10.0, 30.0, 20.0]),  # the second wave begins where the first kernel ends, beside its own first one
    ],
)
def test_blocks_without_room_for_all_run_as_two_waves(second_us: float, ends_us: list[float]) -> None:
    """Blocks on 6 of 10 SMs, then on 8 of them, four at first and four more later; a third kernel needs two."""
    first, third = Kernel(0.6, 0.5, sms=1.0), Kernel(0.2, 0.5, sms=1.0)
    second = Kernel(0.8, 0.5, sms=1.0, alone_us=second_us)
    assert run([[first], [second], [third]], 0.0)[1] == pytest.approx(ends_us)


HALF = Kernel(0.25, 0.5)
DRAM_OR_POWER = [replace(HALF, device=0.9), replace(HALF, power=0.9)]


@pytest.mark.parametrize(
    ("running", "interference", "expected"),
    [
        # DRAM is shared in proportion where it is short.
        ([replace(HALF, device=0.6)] * 2, 0.25, [1.5, 1.5]),
        # DRAM and power are not one; whoever asks for some of what is short waits with the others.
        (DRAM_OR_POWER, 0.0, [1.0, 1.0]),
        ([*DRAM_OR_POWER, replace(HALF, device=0.3, power=0.2)], 0.0, [1.2, 1.1, 1.2]),
    ],
)
def test_kernels_are_stretched_by(running: list[Kernel], interference: float, expected: list[float]) -> None:
    """By what an SM is asked for, see the dealt blocks above."""
    assert stretches(running, interference) == pytest.approx(expected)


def test_kernels_wait_for_slots_in_their_order() -> None:
    # Blocks of 1,024 threads that sleep, two to an SM of a V100: 80 leave room for 80 more, 160 do not.
    few, many = Kernel(1.0, 0.0, warps=32.0, slots=0.5), Kernel(2.0, 0.0, warps=32.0, slots=0.5)
    assert run([[few], [few]], 0.0)[1] == pytest.approx([10.0, 10.0])
    assert run([[many], [many]], 0.0)[1] == pytest.approx([10.0, 20.0])
    assert run([[many], [few], [few]], 0.0)[1] == pytest.approx([10.0, 20.0, 20.0])
    # Half of what it wants for as long as the first runs, then all.
    assert run([[few], [many]], 0.0)[1] == pytest.approx([10.0, 15.0])


def test_a_last_wave_lets_others_in() -> None:
    # Four waves of 10 us, the last of half as many blocks.
    waves, small = Kernel(2.0, 0.0, slots=0.5, alone_us=40.0, tail=0.25, last=0.5), Kernel(1.0, 0.0, slots=0.5)
    prices, spans = priced([3], PreparedProblem.of([unit([waves]), unit([small])]).kernels, 0.0, 1)
    assert prices == pytest.approx([40.0])
    # It starts when it gets room.
    np.testing.assert_allclose(spans, [[0, 0, 40], [1, 30, 40]])


def test_full_waves_go_round_a_busy_sm_and_the_last_does_not() -> None:
    # A quarter of the SMs is asked for 1.5 times as much as it has; 11 in 12 parts of the blocks go on.
    small = Kernel(0.25, 1.0, alone_us=100.0)
    waves = Kernel(4.0, 0.5, alone_us=20.0, tail=0.5)
    assert run([[waves], [small]], 0.0)[1][0] == pytest.approx(10.0 * 12 / 11 + 10.0 * 1.5)


def test_footprints_add_up() -> None:
    # Each fits by itself; two together are lost, and then come from DRAM.
    fits = Kernel(0.25, 0.5, footprint=0.8, kept=0.75, device=0.25)
    assert stretches([fits], 0.0) == pytest.approx([1.0], rel=1e-4)
    assert stretches([fits, fits], 0.0) == pytest.approx([2.0, 2.0])
    # Half lost at the middle of both bounds.
    smaller = replace(fits, footprint=0.525)
    assert stretches([smaller, smaller], 0.0) == pytest.approx([1.25, 1.25])


def test_as_many_kernels_as_a_stage_has_groups() -> None:
    # Each splits a segment: 64 kernels on blocks of 1 to 64 SMs.
    running = [Kernel((index + 1) / SMS, 0.2, warps=2.0 ** (index % 16)) for index in range(MAX_GROUPS)]
    price_us, ends_us = run([[replace(one, alone_us=1.0)] for one in running], 0.1)
    assert max(ends_us) == price_us < inf
    assert price_us >= sum(one.demand for one in running)


@st.composite
def stages(draw: st.DrawFn) -> list[list[Kernel]]:
    """Groups of a unit each, and the kernels of each unit."""
    return draw(st.lists(st.lists(any_kernels | of_whole_sms, min_size=1, max_size=4), min_size=2, max_size=6))


@given(stages(), interferences)
def test_known_slowdowns_change_no_price(groups: list[list[Kernel]], interference: float) -> None:
    """Every subset of the groups, at slowdowns that are found anew, and at those of the subsets before."""
    kernels = PreparedProblem.of([unit(group) for group in groups]).kernels
    masks = list(range(1, 1 << len(groups)))
    anew = [priced([mask], kernels, interference, 1)[0][0] for mask in masks]
    assert priced(masks, kernels, interference, 64)[0] == anew


#: The last blocks of the short kernel begin while its first ones have more than a second wave's time left.
SHORT_AT_THE_END = [
    [Kernel(1.0, 0.0, alone_us=127.0), Kernel(0.7375, 0.0, alone_us=2.0, sms=1.0, again=0.5)],
    [Kernel(0.275, 0.0, alone_us=127.0, sms=1.0, again=0.5)],
]


@given(stages(), interferences)
@example(SHORT_AT_THE_END, 0.0)
def test_bounds_of_the_fluid(groups: list[list[Kernel]], interference: float) -> None:
    """The inequalities behind ``SimulatorCostModel.bounds``, for kernels of any kind."""
    found_us = run(groups, interference)[0] * (1 + 1e-9)
    everything = [one for group in groups for one in group]
    assert found_us >= max(sum(one.alone_us for one in group) for group in groups)
    assert found_us >= sum(one.host_us for one in everything)
    for asked in (lambda one: one.demand, lambda one: one.device, lambda one: one.power):
        bound_us = sum(one.running_us * min(1.0, (1 + interference) * asked(one)) for one in everything)
        assert found_us >= bound_us * (1 - 1e-6)
    # Each holds slots for as long as it takes alone, in its last wave those of its last blocks.
    for slots in (lambda one: one.slots, lambda one: one.sms):
        held_us = sum(
            one.running_us * slots(one) * one.spread * (1 - one.tail + one.tail * one.last) for one in everything
        )
        assert found_us >= held_us * (1 - 1e-6)
