"""Pictures of ops, units and blocks, and of the states and stages of a block: SVG for phone and desk, light and dark.

A picture is 440 pixels wide with letters of 14, so that letters have 11 pixels on a screen of 390. A browser chooses
the colours by the scheme of the page around the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import accumulate, combinations
from operator import or_

from iossim.cost.model import CostModel, price_path
from iossim.ir.network import Network
from iossim.report.colours import text_on
from iossim.report.figures.vega import PALETTE
from iossim.schedule.batch import Strategy
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search.ios import solve
from iossim.search.lattice import build_lattice
from iossim.search.options import SearchOptions

WIDTH = 440
_STYLE = """
svg { --ink: #1b1f24; --soft: #59626c; --line: #7d8791; --faint: #c9ced4; --band: #eef1f4; --paper: #ffffff; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e8eaed; --soft: #b4bac2; --line: #8f98a2; --faint: #4a515a; --band: #262b33; --paper: #15181d; }
}
text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--ink); }
.soft { fill: var(--soft); } .bold { font-weight: 650; } .middle { text-anchor: middle; } .end { text-anchor: end; }
.halo { paint-order: stroke; stroke: var(--paper); stroke-width: 5px; stroke-linejoin: round; }
.light { fill: #ffffff; } .dark { fill: #000000; }
.line { fill: none; stroke: var(--line); stroke-width: 1.4; } .faint { fill: none; stroke: var(--faint); }
.best { fill: none; stroke: var(--ink); stroke-width: 3.2; } .dashed { stroke-dasharray: 5 4; }
.paper { fill: var(--paper); } .band { fill: var(--band); } .sync { fill: var(--faint); }
.node { fill: var(--paper); stroke: var(--line); stroke-width: 1.4; } .chosen { stroke: var(--ink); stroke-width: 2.6; }
"""
#: Colour of each unit of the sample network, and of each kind of unit in Inception's block.
_COLOURS = {
    name: paint
    for names in ("abcd", ("1x1", "3x3", "1x3", "3x1", "pool"))
    for name, paint in zip(names, PALETTE, strict=False)
}


def colour(unit: str) -> str:
    return _COLOURS.get(unit, "#8b939c")


class Drawing:
    """Marks one above the other, under a ``title`` for those who cannot see them."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._marks: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, paint: str, **more: str) -> None:
        """A rectangle in a colour (``#rrggbb``) or of a class of the style; ``more`` are attributes of SVG."""
        given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        painted = f'fill="{paint}"' if paint.startswith("#") else f'class="{paint}"'
        size = f'width="{width:.1f}" height="{height:.1f}"'
        self._marks.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} {painted}{given}/>')

    def text(self, x: float, y: float, text: str, style: str = "middle") -> None:
        self._marks.append(f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>')

    def named(self, x: float, y: float, width: float, height: float, text: str, unit: str) -> None:
        """A box in the colour of a unit with a text in its middle."""
        self.box(x, y, width, height, colour(unit), rx="4")
        self.label(x + width / 2, y + height / 2 + 5, text, unit)

    def label(self, x: float, y: float, text: str, unit: str) -> None:
        """A text on the colour of a unit."""
        self.text(x, y, text, f"middle {'light' if text_on(colour(unit)) == 'white' else 'dark'}")

    def curve(self, x0: float, y0: float, x1: float, y1: float, style: str = "line") -> None:
        """A curve that leaves downwards and arrives from above; a straight line below itself."""
        bend = (y1 - y0) / 2
        path = f"M{x0:.1f} {y0:.1f}C{x0:.1f} {y0 + bend:.1f} {x1:.1f} {y1 - bend:.1f} {x1:.1f} {y1:.1f}"
        self._marks.append(f'<path class="{style}" d="{path}"/>')

    def line(self, x0: float, y0: float, x1: float, y1: float, style: str = "line") -> None:
        self._marks.append(f'<path class="{style}" d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}"/>')

    def axis(self, y: float, left: float, scale: float, end_us: float, step_us: int) -> None:
        """A time axis of ``scale`` pixels a microsecond, from 0."""
        self.line(left, y, left + scale * end_us, y)
        for us in range(0, int(end_us) + 1, step_us):
            self.line(left + scale * us, y, left + scale * us, y + 5)
            self.text(left + scale * us, y + 20, f"{us} us" if us else "0", "middle soft")

    def svg(self, height: float) -> str:
        size = f'width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>',
                f"<title>{escape(self._title)}</title>",
                f"<style>{_STYLE}</style>",
                f'<rect class="paper" width="{WIDTH}" height="{height:g}" rx="8"/>',
                *self._marks,
                "</svg>\n",
            ]
        )


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


#: Places of the states of each level, from left to right and below the level before.
_ACROSS = ((250,), (42, 117, 396), (104, 200, 296, 392), (44, 150, 254), (104,), (104,))
_DOWN = (14, 82, 190, 278, 366, 454)
#: Half the width of a state's box, its height, and the height of the text above it.
_HALF, _SYMBOL, _TEXT = 36, 38, 21
#: Legend of the signs between units, below the right half of the lattice.
_SIGNS = ("a+b   merged into one convolution", "c | d   side by side", "a, d   in order")


def states_and_stages(problem: ScheduleProblem, cost_model: CostModel) -> str:
    """Every state with its least cost, the last stage of its best schedule with its price, and the best path, bold."""
    lattice = build_lattice(problem, 1000)
    assert lattice is not None
    states = [int(mask) for mask in lattice.masks]
    plans = {state: _best(problem, state, cost_model) for state in states}
    stages = sum(one & other in (one, other) for one, other in combinations(states, 2))
    picture = Drawing(f"{len(states)} states and {stages} stages of the block {problem.name}")
    levels = [[state for state in states if state.bit_count() == count] for count in range(len(problem) + 1)]
    source = {state: state & ~plans[state][0][-1].mask for state in states[1:]}
    place: dict[int, tuple[int, int]] = {}
    for count, level in enumerate(levels):
        level.sort(key=lambda state: place[source[state]][0] if state else 0)
        place |= {state: (x, _DOWN[count]) for x, state in zip(_ACROSS[count], level, strict=True)}

    def edge(one: int, other: int, style: str) -> None:
        picture.curve(place[one][0], place[one][1] + _SYMBOL, place[other][0], place[other][1] - _TEXT, style)

    for one, other in combinations(states, 2):
        if one & other == one and (one ^ other).bit_count() == 1:
            edge(one, other, "faint")
    best = set(accumulate((stage.mask for stage in plans[problem.full][0]), or_, initial=0))
    for style in ("line", "best"):
        for state in states[1:]:
            if (style == "best") == (state in best):
                edge(source[state], state, style)
    for state, (x, y) in place.items():
        names = " ".join(problem.unit_names[unit] for unit in bits(state)) if state != problem.full else "all"
        picture.box(x - _HALF, y, 2 * _HALF, _SYMBOL, "node chosen" if state in best else "node", rx="8")
        picture.text(x, y + 16, names or "start")
        picture.text(x, y + 32, f"{plans[state][1]:.1f}", "middle bold")
        if state:
            stage = plans[state][0][-1]
            (price_us,) = price_path(problem, [stage], cost_model).prices_us
            picture.text(x, y - 7, f"{_words(problem, stage)}: {price_us:.1f}", "middle halo")
    sync_us = cost_model.price_boundary(True, False)
    bottom = _DOWN[len(problem)] + _SYMBOL
    told = (f"{len(states)} states, {stages} stages; prices in us", *_SIGNS, f"a synchronisation: {sync_us:.1f}")
    for row, text in enumerate(told):
        picture.text(180, bottom - 22 * (len(told) - row) + 16, text, "soft")
    return picture.svg(bottom + 14)


def _best(problem: ScheduleProblem, state: int, cost_model: CostModel) -> tuple[tuple[PlannedStage, ...], float]:
    """The best stages of the units of a state, and what they cost with the synchronisations between them, us."""
    if not state:
        return (), 0.0
    units = bits(state)
    found = solve([problem.restrict(units)], cost_model, SearchOptions())
    return tuple(stage.spread(units) for stage in found.plans[0]), found.cost_us


def _words(problem: ScheduleProblem, stage: PlannedStage) -> str:
    """A stage in signs: ``a+b`` merges, ``c | d`` runs side by side, ``a,d`` in order."""
    if stage.strategy is Strategy.MERGE:
        return "+".join(problem.unit_names[unit] for unit in bits(stage.mask))
    return " | ".join(
        ", ".join(problem.unit_names[unit] for unit in bits(group)) for group in problem.groups(stage.mask)
    )
