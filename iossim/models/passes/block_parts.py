"""Parts of a network: one of its blocks alone, some of its units alone, and a large block in runs of units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate, pairwise

from iossim.base.errors import OptionError, did_you_mean, is_count
from iossim.ir.network import Block, Network, boundary, make_unit, subgraph
from iossim.ir.shown_names import shown_names


def parts_of(network: Network, block: Block, max_block: int) -> list[tuple[int, ...]]:
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
    chosen = _found(network, block)
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


def _found(network: Network, block: str | int) -> Block:
    blocks = network.blocks
    if isinstance(block, str):
        by_name = {each.name: each for each in blocks}
        by_name = dict(zip(map(shown_names(network), by_name), blocks, strict=True)) | by_name
        if block in by_name:
            return by_name[block]
        try:
            block = int(block)
        except ValueError:
            raise OptionError(
                f"network {network.name!r} has no block {block!r}; {did_you_mean(block, by_name)}"
            ) from None
    if not is_count(block, -len(blocks)) or not 1 <= abs(block) <= len(blocks):
        raise OptionError(
            f"network {network.name!r} has {len(blocks)} blocks, and none has the number {block!r}; "
            f"give 1 to {len(blocks)}, or -1 for the last"
        )
    return blocks[block - 1 if block > 0 else block]
