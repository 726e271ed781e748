"""Room on an SM: alone as the occupancy calculator says, and mixed never over a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iossim.backends.simulator.events.footprint import block_footprint, empty_multiprocessor
from iossim.hardware.compute_capability import LIMITS, MultiprocessorLimits
from iossim.hardware.lowering.kernel import ceil_div, resident_blocks

limits_of_any = st.sampled_from(sorted(LIMITS)).map(LIMITS.__getitem__)
needs = st.tuples(st.integers(1, 1024), st.integers(0, 255), st.integers(0, 100_000))
Needs = tuple[int, int, int]


@given(limits_of_any, needs)
def test_a_kernel_alone_has_the_blocks_of_the_occupancy_calculator(limits: MultiprocessorLimits, block: Needs) -> None:
    footprint = block_footprint(limits, *block)
    resident = resident_blocks(limits, *block)
    assert (footprint is None) == (resident == 0)
    if footprint is not None:
        assert empty_multiprocessor(limits).room(footprint) == resident


@given(limits_of_any, st.lists(needs, min_size=1, max_size=12))
def test_each_block_takes_room_for_one_and_unlike_ones_never_exceed_a_limit(
    limits: MultiprocessorLimits, blocks: list[Needs]
) -> None:
    free = empty_multiprocessor(limits)
    placed: list[Needs] = []
    for block in blocks:
        footprint = block_footprint(limits, *block)
        if footprint is None or not free.room(footprint):
            continue
        left = free.minus(footprint, 1)
        assert left.room(footprint) == free.room(footprint) - 1
        assert left.minus(footprint, -1) == free
        free = left
        placed.append(block)
    warps = [ceil_div(threads, 32) for threads, _, _ in placed]
    per_warp = [
        ceil_div(registers * 32, limits.register_granularity) * limits.register_granularity
        for _, registers, _ in placed
    ]
    unit = limits.shared_granularity_bytes
    assert len(placed) <= limits.max_blocks
    assert sum(warps) <= limits.max_warps
    assert sum(warps) * 32 <= limits.max_threads
    assert sum(count * each for count, each in zip(warps, per_warp, strict=True)) <= limits.registers
    assert (
        sum(ceil_div(shared + limits.reserved_shared_bytes_per_block, unit) * unit for _, _, shared in placed)
        <= limits.shared_bytes
    )
