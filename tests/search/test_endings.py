"""The endings that the search looks at, and their bounds, against the definitions written out."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ios_optimal import problems, spaces

from iossim.cost.model import LateWork, StageBounds
from iossim.cost.random import RandomCostModel
from iossim.schedule.masks import GrowingTable
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search.block_parts import Part
from iossim.search.block_search import solve_block
from iossim.search.endings import BoundArrays, StateGraph, find_endings
from iossim.search.lattice import Lattice, build_lattice, no_merges
from iossim.search.options import StageSpace
from iossim.search.relaxation import Endings, Labels
from iossim.testing.cost_models import least_price_us


def random_bounds(units: int, seed: int) -> StageBounds:
    draw = np.random.default_rng(seed)
    late = LateWork(draw.random(units), draw.random((units, 2)), 2 * draw.random((units, 2)), draw.integers(2, 5, 2))
    return StageBounds(draw.random(units), 1 + draw.random(units), draw.random((units, 3)), draw.random(units), late)


def in_space(problem: ScheduleProblem, stage: int, space: StageSpace) -> bool:
    groups = problem.groups(stage)
    most_units, most_groups = space.limits(len(problem))
    if len(groups) > most_groups or max(group.bit_count() for group in groups) > most_units:
        return False
    roots = [sum(not int(problem.predecessors[unit]) & group for unit in bits(group)) for group in groups]
    return not space.single_root or max(roots) == 1


def lattice_of(problem: ScheduleProblem) -> Lattice:
    lattice = build_lattice(problem, 1 << 12)
    assert lattice is not None
    return lattice


@settings(max_examples=30, deadline=None)
@given(problems(7), spaces, st.integers(0, 99))
def test_every_ending_once_with_its_bound(problem: ScheduleProblem, space: StageSpace, seed: int) -> None:
    lattice, bounds = lattice_of(problem), random_bounds(len(problem), seed)
    labels = Labels.of(len(lattice))
    labels.leaving[:] = np.random.default_rng(seed).random(labels.leaving.shape)
    endings = Endings.room(1 << 13)
    graph = StateGraph(lattice.masks, lattice.down, problem.successors, problem.descendants, problem.ancestors)
    end, filled, full = find_endings(
        0, len(lattice), graph, BoundArrays.of(bounds), labels, np.zeros(2), False, *space.walk_limits(len(problem)),
        GrowingTable().table, endings, 0,
    )  # fmt: skip
    assert (end, full) == (len(lattice), False)
    found = {}
    for index in range(filled):
        target, bit = divmod(int(endings.label[index]), 2)
        found[int(endings.source[index]), target] = bit, int(endings.stage[index]), float(endings.least_us[index])
    assert len(found) == filled
    masks = lattice.masks.tolist()
    expected = {}
    for source, target in combinations(range(len(masks)), 2):
        stage = masks[target] & ~masks[source]
        if not masks[source] & ~masks[target] and in_space(problem, stage, space):
            groups = problem.groups(stage)
            bit = int(len(groups) > 1)
            least_us = labels.leaving[source, bit] + least_price_us(bounds, groups)
            expected[source, target] = bit, stage, pytest.approx(least_us, rel=1e-12)
    assert found == expected


@settings(max_examples=20, deadline=None)
@given(problems(12), spaces, st.integers(0, 99), st.floats(0, 20))
def test_bounds_change_what_is_priced_and_not_what_it_costs(
    problem: ScheduleProblem, space: StageSpace, seed: int, barrier_us: float
) -> None:
    costs, priced = [], []
    for bounded in (True, False):
        model = RandomCostModel(seed=seed, spread=0.0, barrier_us=barrier_us)
        solution = solve_block(
            Part(problem, lattice_of(problem), tuple(range(len(problem))), space, no_merges()), model, concurrent=True, entry=0,
            bounds=model.bounds(problem) if bounded else None,
        )  # fmt: skip
        costs.append(min(path.cost_us for path in (solution.single, solution.concurrent) if path is not None))
        priced.append(solution.priced_stages)
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)
    assert priced[0] <= priced[1]
