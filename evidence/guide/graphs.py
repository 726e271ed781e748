"""Ops, the units that they fuse into, and the blocks that these form."""

from __future__ import annotations

from collections.abc import Sequence

from evidence.guide.drawing import WIDTH, Drawing, colour
from iossim.ir.network import Network

_COLUMN, _BOX, _HEIGHT = 140, 112, 26


def ops_to_units(network: Network) -> str:
    """The graph of ops; the ops of a unit stand in one tinted box under its name."""
    picture = Drawing(f"The {len(network.graph.nodes)} ops of {network.name} in {len(network.units)} units")
    heights = [24 + 34 * len(unit.nodes) for unit in network.units]
    places, bottom = _places(network, heights, 72, 36)
    _edges(picture, network, places, heights)
    for number, unit in enumerate(network.units):
        x, y = places[number]
        picture.box(x - 64, y, 128, heights[number], colour(unit.name), rx="8", fill_opacity="0.2")
        picture.text(x - 56, y + 18, f"unit {unit.name}", "bold")
        for place, node in enumerate(unit.nodes):
            top = y + 26 + 34 * place
            if place:
                picture.line(x, top - 8, x, top)
            picture.named(x - _BOX / 2, top, _BOX, _HEIGHT, network.graph.nodes[node].op.kind, unit.name)
    return picture.svg(bottom)


def units_to_blocks(network: Network, larger: Network) -> str:
    """The graph of units in the frame of its block; below it the blocks of a larger network, one dot for each unit."""
    picture = Drawing(f"{network.name} is one block; {larger.name} has {len(larger.blocks)}")
    heights = [float(_HEIGHT)] * len(network.units)
    places, bottom = _places(network, heights, 72, 38)
    (block,) = network.blocks
    picture.box(8, 50, WIDTH - 16, bottom - 62, "band", rx="8")
    picture.text(WIDTH - 20, bottom - 24, f"block {block.name}", "bold end")
    _edges(picture, network, places, heights)
    for number, unit in enumerate(network.units):
        x, y = places[number]
        picture.named(x - _BOX / 2, y, _BOX, _HEIGHT, unit.name, unit.name)
    for y in (50, bottom - 12):
        picture.line(8, y, WIDTH - 8, y, "best dashed")
    picture.text(20, bottom + 8, "Every path passes through concat: the block ends.", "soft")
    top = bottom + 36
    sizes = [len(each.units) for each in larger.blocks]
    picture.text(20, top, f"{larger.name}: {sum(sizes)} units in {len(sizes)} blocks", "bold")
    step, row = (WIDTH - 16) / len(sizes), 11
    for place, size in enumerate(sizes):
        left = 8 + place * step
        picture.box(left + 2, top + 12, step - 4, 10 + row * max(sizes), "band", rx="5")
        for dot in range(size):
            picture.box(left + step / 2 - 4, top + 19 + row * dot, 8, 8, "soft", rx="2")
        picture.text(left + step / 2, top + 40 + row * max(sizes), str(size), "middle soft")
    return picture.svg(top + 52 + row * max(sizes))


def _places(
    network: Network, heights: Sequence[float], top: float, gap: float
) -> tuple[list[tuple[float, float]], float]:
    """Middle and top of each unit, below all that it reads, and the end of the lowest."""
    places: list[tuple[float, float]] = []
    columns = sum(not before for before in network.predecessors)
    first = WIDTH / 2 - _COLUMN * (columns - 1) / 2
    for before in network.predecessors:
        if before:
            x = sum(places[other][0] for other in before) / len(before)
            places.append((x, max(places[other][1] + heights[other] for other in before) + gap))
        else:
            places.append((first + _COLUMN * len(places), top))
    return places, max(y + height for (_, y), height in zip(places, heights, strict=True)) + 24


def _edges(picture: Drawing, network: Network, places: list[tuple[float, float]], heights: Sequence[float]) -> None:
    """The network's input, and a curve for each value that a unit reads."""
    (given,) = network.graph.inputs
    picture.text(WIDTH / 2, 22, f"{given} {network.graph.types[given]}", "middle soft")
    for unit, before in enumerate(network.predecessors):
        x, y = places[unit]
        if not before:
            picture.curve(WIDTH / 2, 30, x, y)
        for other in before:
            picture.curve(places[other][0], places[other][1] + heights[other], x, y)
