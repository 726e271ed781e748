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

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from iossim.base.errors import OptionError, did_you_mean, is_count
from iossim.ir.network import Block, Network, Unit, boundary, make_unit, subgraph
from iossim.schedule.problem import MAX_UNITS


def cut_blocks(network: Network, max_block: int | None = None) -> Network:
    """The network with one block between adjacent cuts; a block of more than ``max_block`` units is split."""
    return split_blocks(network.with_blocks(_between_cuts(network)), max_block)


def split_blocks(network: Network, max_block: int | None) -> Network:
    """The network with each block of more than ``max_block`` units split, and a note for each split one.

    None splits nothing.

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
        parts = _parts(network, block, max_block)
        blocks += [Block(f"{block.name}.part{index}", part) for index, part in enumerate(parts, 1)]
        sizes = ", ".join(str(len(part)) for part in parts)
        notes.append(
            f"Block {block.name!r} has {len(block.units)} units, more than {max_block}: "
            f"it is scheduled in {len(parts)} parts of {sizes} units."
        )
    return network.with_blocks(blocks, *notes) if notes else network


def one_block(network: Network, units: Sequence[Unit]) -> Network:
    """The network of these units in topological order, not cut into blocks."""
    return replace(network, units=tuple(units), blocks=(Block("all", tuple(range(len(units)))),), notes=())


def in_blocks(network: Network, units: Sequence[Unit]) -> Network:
    """The network of these units in topological order; each belongs to the block of its last op.

    The blocks stay in topological order, since an op is never in an earlier block than its predecessors.
    """
    block_of_unit = {unit: index for index, block in enumerate(network.blocks) for unit in block.units}
    block_of_node = {node: block_of_unit[index] for index, unit in enumerate(network.units) for node in unit.nodes}
    members: list[list[int]] = [[] for _ in network.blocks]
    for index, unit in enumerate(units):
        members[block_of_node[unit.nodes[-1]]].append(index)
    blocks = tuple(
        Block(block.name, tuple(inside)) for block, inside in zip(network.blocks, members, strict=True) if inside
    )
    return replace(network, units=tuple(units), blocks=blocks)


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
    later. So a unit that is first read at position r forbids the cuts between itself and r, and one that last reads
    position m those between m and itself.
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
    forbidding = [0] * (len(order) + 1)  # number of units that forbid a cut after each position, as differences
    for here, unit in enumerate(order):
        for begin, end in ((here + 1, first_reader[unit]), (last_read[unit] + 1, here)):
            forbidding[begin] += 1
            forbidding[end] -= 1
    cuts_before = [0]  # cuts_before[i]: cuts after positions less than i
    for forbidden in list(accumulate(forbidding))[:-1]:
        cuts_before.append(cuts_before[-1] + (forbidden == 0))
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
        if all(other in before for other in predecessors) and not _multiplies(network, unit):
            before[unit] = known | 1 << len(before)
        elif all(other in before for other in predecessors):
            trunk &= known  # its descendants have all of its ancestors, too
    return {unit for index, unit in enumerate(before) if not trunk >> index & 1}


def _multiplies(network: Network, unit: int) -> bool:
    graph = network.graph
    return any(
        node.op.multiply_adds(graph.input_types(node), graph.output_types(node))
        for node in network.unit_nodes(network.units[unit])
    )


def _named(network: Network, units: list[int]) -> Block:
    first, last = network.units[units[0]].name, network.units[units[-1]].name
    return Block(first if len(units) == 1 else f"{first}..{last}", tuple(units))


def _parts(network: Network, block: Block, max_block: int) -> list[tuple[int, ...]]:
    """The best split of a block into consecutive runs, by dynamic programming over the end of a part."""
    count = len(block.units)
    least = max(1, count // -(-count // max_block) // 2)
    crossing = _crossing_values(network, block)
    # best[i]: (parts, values that cross, sum of squared sizes, start of the last part) for the first i units.
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
    """For each position, the number of values made before it in the block and read after it in the block."""
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


def single_block(network: Network, block: str | int) -> Network:
    """The block of that name or number (1 the first, -1 the last) with its units; raises OptionError if missing."""
    chosen = _found(network.blocks, block, network.name)
    return units_alone(network, chosen.units, f"{network.name}.{chosen.name}")


def units_alone(network: Network, units: Iterable[int], name: str) -> Network:
    """These units unchanged, each in its former block.

    The outputs of the graph are the values that the rest of the network reads, or that the network returns.
    """
    chosen = sorted(units)
    kept = sorted(node for unit in chosen for node in network.units[unit].nodes)
    nodes = [network.graph.nodes[index] for index in kept]
    graph = subgraph(network.graph, nodes, *boundary(network.graph, nodes))
    own = [
        make_unit(graph, unit.name, unit.kind, [graph.position[node.name] for node in network.unit_nodes(unit)])
        for unit in (network.units[index] for index in chosen)
    ]
    position = {unit: index for index, unit in enumerate(chosen)}
    inside = (
        Block(block.name, tuple(position[unit] for unit in block.units if unit in position)) for block in network.blocks
    )
    blocks = tuple(block for block in inside if block.units)
    return replace(network, name=name, graph=graph, units=tuple(own), blocks=blocks)


def _found(blocks: Sequence[Block], block: str | int, network: str) -> Block:
    if isinstance(block, str):
        by_name = {each.name: each for each in blocks}
        if block in by_name:
            return by_name[block]
        try:
            block = int(block)
        except ValueError:
            raise OptionError(f"network {network!r} has no block {block!r}; {did_you_mean(block, by_name)}") from None
    if not is_count(block, -len(blocks)) or not 1 <= abs(block) <= len(blocks):
        raise OptionError(
            f"network {network!r} has {len(blocks)} blocks, and none has the number {block!r}; "
            f"give 1 to {len(blocks)}, or -1 for the last"
        )
    return blocks[block - 1 if block > 0 else block]
