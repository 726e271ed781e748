"""States and stages of a block: the lattice of its order ideals, with the cheapest way into each."""

from __future__ import annotations

from itertools import accumulate, combinations
from operator import or_

from evidence.guide.drawing import Drawing
from iossim.cost.model import CostModel, price_path
from iossim.schedule.batch import Strategy
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search.ios import solve
from iossim.search.lattice import build_lattice
from iossim.search.options import SearchOptions

#: Where the states of each level stand, from left to right and below the level before.
_ACROSS = ((250,), (42, 117, 396), (104, 200, 296, 392), (44, 150, 254), (104,), (104,))
_DOWN = (14, 82, 190, 278, 366, 454)
#: Half the width of a state's box, its height, and the height of the text above it.
_HALF, _BOX, _TEXT = 36, 38, 21
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
        picture.curve(place[one][0], place[one][1] + _BOX, place[other][0], place[other][1] - _TEXT, style)

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
        picture.box(x - _HALF, y, 2 * _HALF, _BOX, "node chosen" if state in best else "node", rx="8")
        picture.text(x, y + 16, names or "start")
        picture.text(x, y + 32, f"{plans[state][1]:.1f}", "middle bold")
        if state:
            stage = plans[state][0][-1]
            (price_us,) = price_path(problem, [stage], cost_model).prices_us
            picture.text(x, y - 7, f"{_words(problem, stage)}: {price_us:.1f}", "middle halo")
    sync_us = cost_model.price_boundary(True, False)
    bottom = _DOWN[len(problem)] + _BOX
    told = (f"{len(states)} states, {stages} stages; prices in us", *_SIGNS, f"a synchronisation: {sync_us:.1f}")
    for row, text in enumerate(told):
        picture.text(180, bottom - 22 * (len(told) - row) + 16, text, "soft")
    return picture.svg(bottom + 14)


def _best(problem: ScheduleProblem, state: int, cost_model: CostModel) -> tuple[tuple[PlannedStage, ...], float]:
    """The best stages of the units of a state, and what they cost with the synchronisations between them, us."""
    if not state:
        return (), 0.0
    units = bits(state)
    found = solve([problem.restrict(units)], cost_model, SearchOptions(), concurrent=True, merge=True)
    return tuple(stage.spread(units) for stage in found.plans[0]), found.cost_us


def _words(problem: ScheduleProblem, stage: PlannedStage) -> str:
    """A stage in signs: ``a+b`` merges, ``c | d`` runs side by side, ``a,d`` in order."""
    if stage.strategy is Strategy.MERGE:
        return "+".join(problem.unit_names[unit] for unit in bits(stage.mask))
    return " | ".join(
        ", ".join(problem.unit_names[unit] for unit in bits(group)) for group in problem.groups(stage.mask)
    )
