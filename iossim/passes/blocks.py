"""Blocks of any network: cut where a single unit stands between all that comes before and all that follows.

Scheduling block by block loses nothing at such a cut: dead ends aside, nothing behind it could have run beside
anything before it.

*A cut behind unit v.* Let B be all that depends on v, A the rest. There is a cut where no unit of B reads one of A
other than v itself (single entry), and each unit of A leads to v (single exit). A *dead end* (a unit that no other
reads: it only makes graph outputs) need not lead to v: it stays in the block of the last unit it reads.
Graph inputs and weights may enter anywhere, since they are there from the start.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from iossim.errors import OptionError
from iossim.ir.network import Block, Network
from iossim.schedule.problem import MAX_UNITS


def cut_blocks(network: Network, max_block: int = MAX_UNITS) -> Network:
    """The network with a block between neighbouring cuts; a block of more than ``max_block`` units is split."""
    return split_blocks(network.with_blocks(_single_entry_single_exit(network)), max_block)


def split_blocks(network: Network, max_block: int = MAX_UNITS) -> Network:
    """The network with each block of more than ``max_block`` units split, and a note for each that was.

    A part is a run of the block's units in topological order, and no part has fewer than half the units that it would
    have if all had the same. Of the ways to do so with the fewest parts it is the one in which the fewest
    values cross from part to part, and of those the one whose sizes differ least.

    Raises OptionError for an impossible limit.
    """
    check_max_block(max_block)
    blocks: list[Block] = []
    notes: list[str] = []
    for block in network.blocks:
        if len(block.units) <= max_block:
            blocks.append(block)
            continue
        parts = _parts(network, block, max_block)
        blocks += [Block(f"{block.name}.part{index}", part) for index, part in enumerate(parts, 1)]
        sizes = ", ".join(str(len(part)) for part in parts)
        notes.append(
            f"Block {block.name!r} has {len(block.units)} units, more than {max_block}: "
            f"it is scheduled in {len(parts)} parts of {sizes} units."
        )
    return network.with_blocks(blocks, *notes) if notes else network


def check_max_block(max_block: int) -> None:
    """Raise OptionError unless a block may have that many units at most."""
    if not isinstance(max_block, int) or not 1 <= max_block <= MAX_UNITS:
        raise OptionError(f"blocks of at most {max_block!r} units cannot be: give a number from 1 to {MAX_UNITS}")


def _single_entry_single_exit(network: Network) -> list[Block]:
    """Blocks between cuts, in time linear in units and edges.

    Dead ends aside, the units before a cut are the ancestors of v and those behind it its descendants, so that the
    cuts can be found in any topological order of the units: there is one behind position i exactly if

    - of the units up to i, only that at i has no reader among them (then all lead to it);
    - none before i is read behind i (single entry);
    - none behind i reads nothing (then all depend on i);
    - no dead end reads units on both sides of the cut, the unit at i counted to what follows.
    """
    count = len(network.units)
    is_read = [False] * count
    for predecessors in network.predecessors:
        for before in predecessors:
            is_read[before] = True
    order = [unit for unit in range(count) if is_read[unit]]
    position = {unit: index for index, unit in enumerate(order)}
    last_reader = [-1] * len(order)
    first_reader = [len(order)] * len(order)
    last_source = -1
    spanned = [0] * (len(order) + 1)  # how many dead ends stand in the way of each cut, as differences
    for unit, predecessors in enumerate(network.predecessors):
        read = [position[before] for before in predecessors]
        if is_read[unit]:
            here = position[unit]
            last_source = last_source if read else here
            for before in read:
                first_reader[before] = min(first_reader[before], here)
                last_reader[before] = here
        elif read:
            spanned[min(read) + 1] += 1
            spanned[max(read) + 1] -= 1
    cuts_before = [0]  # cuts_before[i]: cuts behind positions less than i
    ends = [0] * (len(order) + 1)  # units that are first read at each position
    open_units, farthest = 0, -1
    for reader in first_reader:
        ends[reader] += 1
    for here, crossing in enumerate(list(accumulate(spanned))[:-1]):
        open_units += 1 - ends[here]
        is_cut = open_units == 1 and farthest <= here and last_source <= here and crossing == 0
        farthest = max(farthest, last_reader[here])
        cuts_before.append(cuts_before[-1] + is_cut)
    members: dict[int, list[int]] = {}
    for unit, predecessors in enumerate(network.predecessors):
        if is_read[unit]:
            block = cuts_before[position[unit]]
        else:
            block = max((cuts_before[position[before] + 1] for before in predecessors), default=0)
        members.setdefault(block, []).append(unit)
    return [_named(network, members[block]) for block in sorted(members)]


def _named(network: Network, units: list[int]) -> Block:
    first, last = network.units[units[0]].name, network.units[units[-1]].name
    return Block(first if len(units) == 1 else f"{first}..{last}", tuple(units))


def _parts(network: Network, block: Block, max_block: int) -> list[tuple[int, ...]]:
    """The best split of a block into consecutive runs, by dynamic programming over where a part ends."""
    count = len(block.units)
    least = max(1, count // -(-count // max_block) // 2)
    crossing = _crossing_values(network, block)
    # best[i]: (parts, values that cross, sum of squared sizes, where the last part begins) for the first i units.
    best: list[tuple[int, int, int, int] | None] = [(0, 0, 0, 0)] + [None] * count
    for end in range(1, count + 1):
        ways = []
        for begin in range(max(0, end - max_block), end - least + 1):
            before = best[begin]
            if before is not None:
                parts, crossed, squares, _ = before
                ways.append((parts + 1, crossed + crossing[begin], squares + (end - begin) ** 2, begin))
        best[end] = min(ways, default=None)
    bounds = [count]
    while bounds[-1] > 0:
        way = best[bounds[-1]]
        assert way is not None, "parts of at least half the even size always add up"
        bounds.append(way[3])
    return [block.units[begin:end] for begin, end in pairwise(reversed(bounds))]


def _crossing_values(network: Network, block: Block) -> list[int]:
    """For each position how many values made before it in the block are read behind it in the block."""
    last_read: dict[str, int] = {}
    for index, unit in enumerate(block.units):
        for value in network.units[unit].inputs:
            last_read[value] = index
    steps = [0] * (len(block.units) + 1)
    for index, unit in enumerate(block.units):
        for value in network.units[unit].outputs:
            if value in last_read:
                steps[index + 1] += 1
                steps[last_read[value] + 1] -= 1
    return list(accumulate(steps))
