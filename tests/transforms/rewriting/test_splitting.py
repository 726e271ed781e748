"""Cuts: the fewest places are broken, nothing leads back, and all units are in one part each."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import iossim
from iossim.models.passes.block_parts import units_alone
from iossim.transforms.rewriting.parts import minimum_cut, split


@pytest.mark.parametrize("seed", range(30))
def test_the_cut_is_the_least(seed: int) -> None:
    """Against every cut that keeps the first and the last third on their sides."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 9))
    edges = [(a, b) for a, b in combinations(range(count), 2) if rng.random() < 0.35]
    places = [
        frozenset(rng.choice(count, size=min(count, int(rng.integers(1, 4))), replace=False).tolist())
        for _ in range(int(rng.integers(0, 7)))
    ]
    third = max(1, count // 3)

    def broken(before: frozenset[int]) -> tuple[int, int]:
        return (
            sum(bool(place & before) and bool(place - before) for place in places),
            sum(a in before and b not in before for a, b in edges),
        )

    ways = []
    middle = range(third, count - third)
    for size in range(len(middle) + 1):
        for chosen in combinations(middle, size):
            before = frozenset({*range(third), *chosen})
            if not any(b in before and a not in before for a, b in edges):
                ways.append(broken(before))
    found = minimum_cut(range(count), [1] * count, edges, places)
    assert not any(b in found and a not in found for a, b in edges)
    assert set(range(third)) <= found
    assert not found & set(range(count - third, count))
    assert broken(found) == min(ways)


@pytest.mark.parametrize("model", ["squeezenet", "inception_v3"])
def test_parts_hold_each_unit_once_in_an_order_in_which_they_can_run(model: str) -> None:
    network = iossim.load(model)
    for together in ([(unit,) for unit in range(len(network.units))], [block.units for block in network.blocks]):
        parts = split(network, together, [])
        assert sorted(unit for part in parts for unit in part) == list(range(len(network.units)))
        part_of = {unit: index for index, part in enumerate(parts) for unit in part}
        for unit, reads in enumerate(network.predecessors):
            assert all(part_of[before] <= part_of[unit] for before in reads)
        assert all(len({part_of[unit] for unit in units}) == 1 for units in together)
        for part in parts:
            ops = sum(len(network.units[unit].nodes) for unit in part)
            assert ops <= 30 or sum(set(units) <= set(part) for units in together) == 1
            assert len(units_alone(network, part, "part").graph.nodes) == ops


def test_places_are_kept_whole() -> None:
    """Two ops that a rule matches stay together, where as good a cut is beside them."""
    network = iossim.load("squeezenet")
    alone = [(unit,) for unit in range(len(network.units))]
    before, behind = split(network, alone, [], 45)[:2]
    place = [network.unit_nodes(network.units[unit])[0].name for unit in (before[-1], behind[0])]
    assert not any({before[-1], behind[0]} <= set(part) for part in split(network, alone, [], 45))
    assert any({before[-1], behind[0]} <= set(part) for part in split(network, alone, [place], 45))
