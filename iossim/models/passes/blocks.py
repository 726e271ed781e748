"""Blocks of any network: cut where one unit separates all preceding units from all following ones.

*A cut after unit v.* Every unit but v leads to v, or depends on v. Then v is the last of its ancestors to finish,
in any schedule, and none of its descendants could have begun earlier: scheduling block by block loses nothing (a
stage across the cut would contain v, and so be a single group). In graph terms v dominates all that follows and
post-dominates all before; values may well bypass it: a residual, or the mask that every layer of a
transformer reads.

Two kinds of units need not be ordered with respect to v, and prevent no cut:

- a *dead end* (a unit without consumers: it only makes graph outputs) stays in the block of the last unit it reads,
  possibly through preparations;
- a *preparation* goes to the block of the first unit that reads it: one without multiply-adds that depends only on
  such units, and is not an ancestor of all multiply-adds (a mask that is cast and expanded for a layer, a
  lookup of positions). It could have run earlier, if there was room; it is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, starmap

from iossim.base.errors import OptionError, is_count
from iossim.ir.graph import Graph
from iossim.ir.network import Block, Network, Unit
from iossim.schedule.problem import MAX_UNITS


def cut_blocks(network: Network) -> Network:
    """The network with one block between adjacent cuts."""
    return network.with_blocks(_between_cuts(network))


def cut_as_loaded(network: Network) -> Network:
    """The network with one block between adjacent cuts, split at the ``max_block`` that its source was loaded with."""
    limit = dict(network.source.options).get("max_block")
    return split_blocks(cut_blocks(network), None if limit is None else int(limit))


def split_blocks(network: Network, max_block: int | None) -> Network:
    """The network with each block of more than ``max_block`` units split, if given, and a note for each split one.

    A part is a run of the block's units in topological order, with at least half as many units as equal parts would
    have. Among such splits into the fewest parts, this one has the fewest values that cross between parts, and
    among those the least different sizes.

    Raises OptionError for an impossible limit.
    """
    check_max_block(max_block)
    if max_block is None:
        return network
    blocks: list[Block] = []
    notes: list[str] = []
    for block in network.blocks:
        if len(block.units) <= max_block:
            blocks.append(block)
            continue
        from iossim.models.passes.block_parts import parts_of  # few blocks are split

        parts = parts_of(network, block, max_block)
        blocks += [Block(f"{block.name}.part{index}", part) for index, part in enumerate(parts, 1)]
        sizes = ", ".join(str(len(part)) for part in parts)
        notes.append(
            f"Block {block.name!r} has {len(block.units)} units, more than {max_block}: "
            f"it is scheduled in {len(parts)} parts of {sizes} units."
        )
    return network.with_blocks(blocks, *notes) if notes else network


def one_block(network: Network, units: Sequence[Unit], graph: Graph | None = None) -> Network:
    """The network of these units of its own or another graph, in topological order, not cut into blocks."""
    return replace(network, graph=graph or network.graph, units=tuple(units), blocks=Block.of_all(units), notes=())


def in_blocks(network: Network, units: Sequence[Unit]) -> Network:
    """The network of these units in topological order; each belongs to the block of its last op.

    The blocks stay in topological order, since an op is never in an earlier block than its predecessors.
    """
    block_of_unit = {unit: index for index, block in enumerate(network.blocks) for unit in block.units}
    block_of_node = {node: block_of_unit[index] for index, unit in enumerate(network.units) for node in unit.nodes}
    members: list[list[int]] = [[] for _ in network.blocks]
    for index, unit in enumerate(units):
        members[block_of_node[unit.nodes[-1]]].append(index)
    filled = [(block.name, tuple(inside)) for block, inside in zip(network.blocks, members, strict=True) if inside]
    return replace(network, units=tuple(units), blocks=tuple(starmap(Block, filled)))


def narrow_blocks(network: Network) -> Network:
    """The network for callers that treat each block as a whole: no block has more units than compiled code supports.

    Its source records a split, so that loading it again gives these blocks.
    """
    found = split_blocks(network, MAX_UNITS)
    if found is network:
        return network
    options = {**dict(network.source.options), "max_block": str(MAX_UNITS)}
    return replace(found, source=replace(network.source, options=tuple(options.items())))


def check_max_block(max_block: int | None) -> None:
    """Raise OptionError unless this is a valid limit on a block's units."""
    if max_block is not None and not is_count(max_block):
        raise OptionError(f"blocks of at most {max_block!r} units cannot be: give 1 or more, or leave it out")


def _between_cuts(network: Network) -> list[Block]:
    """Blocks between cuts, in time linear in units and edges.

    Take the units that must be ordered with respect to v, in any topological order. Those up to position i all lead
    to the one at i if each before i is read by one up to i; those after i all depend on it if each reads one at i or
    later.
    """
    count = len(network.units)
    readers: list[list[int]] = [[] for _ in range(count)]
    for unit, predecessors in enumerate(network.predecessors):
        for before in predecessors:
            readers[before].append(unit)
    preparations = _preparations(network, readers)
    order = [unit for unit in range(count) if readers[unit] and unit not in preparations]
    position = {unit: index for index, unit in enumerate(order)}
    # The first position that reads a unit and the last that it reads, possibly through preparations.
    first_reader: dict[int, int] = {}
    for unit in (unit for unit in reversed(range(count)) if readers[unit]):
        found = [
            position[other] if other in position else first_reader.get(other, len(order)) for other in readers[unit]
        ]
        first_reader[unit] = min(found)
    last_read: dict[int, int] = {}
    for unit in (unit for unit in range(count) if readers[unit]):
        found = [position[other] if other in position else last_read[other] for other in network.predecessors[unit]]
        last_read[unit] = max(found, default=-1)
    # For each position the latest first reader of the units before it, and the earliest last read of those after it.
    first = accumulate((first_reader[unit] for unit in order), max, initial=0)
    last = [*accumulate((last_read[unit] for unit in reversed(order[1:])), min, initial=len(order))][::-1]
    cuts = (before <= here <= after for here, (before, after) in enumerate(zip(first, last, strict=False)))
    cuts_before = [*accumulate(cuts, initial=0)]  # cuts_before[i]: cuts after positions less than i
    block_of = {unit: cuts_before[position[unit]] for unit in order}
    for unit, predecessors in enumerate(network.predecessors):
        if not readers[unit]:
            found = [position[other] if other in position else last_read[other] for other in predecessors]
            block_of[unit] = cuts_before[max(found, default=-1) + 1]
    for unit in sorted(preparations, reverse=True):
        block_of[unit] = min(block_of[reader] for reader in readers[unit])
    members: dict[int, list[int]] = {}
    for unit in range(count):
        members.setdefault(block_of[unit], []).append(unit)
    return [_named(network, members[block]) for block in sorted(members)]


def _preparations(network: Network, readers: Sequence[Sequence[int]]) -> set[int]:
    """The units that prepare something for a part of the network.

    ``before`` are the units without multiply-adds among their ancestors, each with itself and its ancestors, as bits;
    ``trunk`` those of them that are ancestors of all the others.
    """
    before: dict[int, int] = {}
    trunk = -1
    for unit, predecessors in enumerate(network.predecessors):
        known = 0
        for other in predecessors:
            known |= before.get(other, 0)
        if not readers[unit]:
            continue  # a dead end
        if all(other in before for other in predecessors) and not network.multiply_adds(network.units[unit]):
            before[unit] = known | 1 << len(before)
        elif all(other in before for other in predecessors):
            trunk &= known  # its descendants have all of its ancestors, too
    return {unit for index, unit in enumerate(before) if not trunk >> index & 1}


def _named(network: Network, units: list[int]) -> Block:
    first, last = network.units[units[0]].name, network.units[units[-1]].name
    return Block(first if len(units) == 1 else f"{first}..{last}", tuple(units))
