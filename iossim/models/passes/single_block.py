"""Some units of a network as a network of its own: what they read from outside are graph inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from iossim.base.errors import OptionError, did_you_mean
from iossim.ir.graph import Graph
from iossim.ir.network import Block, Network, make_unit


def single_block(network: Network, block: str | int) -> Network:
    """The block of that name, or of that number (1 is the first, -1 the last), with its units as they are.

    Raises OptionError for a block that there is not.
    """
    chosen = _find(network, block)
    return units_alone(network, chosen.units, f"{network.name}.{chosen.name}")


def units_alone(network: Network, units: Iterable[int], name: str) -> Network:
    """These units as they are, each in the block that it was in.

    The outputs of the graph are the values that the rest of the network reads, or that the network returns.
    """
    chosen = sorted(units)
    kept = sorted(node for unit in chosen for node in network.units[unit].nodes)
    nodes = [network.graph.nodes[index] for index in kept]
    made = {value for node in nodes for value in node.outputs}
    members = {node.name for node in nodes}
    inputs: dict[str, None] = {}
    for node in nodes:
        for value in node.inputs:
            if value not in made and value not in network.graph.constants:
                inputs[value] = None
    outputs = [
        value
        for node in nodes
        for value in node.outputs
        if value in network.graph.returned
        or any(reader.name not in members for reader in network.graph.consumers[value])
    ]
    graph = Graph.create(
        {name: network.graph.types[name] for name in inputs}, outputs, nodes, network.graph.constants
    )
    place = {node.name: index for index, node in enumerate(graph.nodes)}
    own = [
        make_unit(graph, unit.name, unit.kind, [place[network.graph.nodes[node].name] for node in unit.nodes])
        for unit in (network.units[index] for index in chosen)
    ]
    position = {unit: index for index, unit in enumerate(chosen)}
    inside = (
        Block(block.name, tuple(position[unit] for unit in block.units if unit in position))
        for block in network.blocks
    )
    blocks = tuple(block for block in inside if block.units)
    return replace(network, name=name, graph=graph, units=tuple(own), blocks=blocks)


def _find(network: Network, block: str | int) -> Block:
    blocks = network.blocks
    if isinstance(block, str):
        for each in blocks:
            if each.name == block:
                return each
        try:
            block = int(block)
        except ValueError:
            names = [each.name for each in blocks]
            raise OptionError(
                f"network {network.name!r} has no block {block!r}; {did_you_mean(block, names)}"
            ) from None
    if not 1 <= abs(block) <= len(blocks):
        raise OptionError(
            f"network {network.name!r} has {len(blocks)} blocks, and none has the number {block}; give 1 to {len(blocks)}, "
            "or -1 for the last"
        )
    return blocks[block - 1 if block > 0 else block]
