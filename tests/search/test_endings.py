"""The endings that the search looks at, and their bounds, against the definitions written out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import inf

import numpy as np
import pytest
from brute_force import ScrambledTable, cheapest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_ios_optimal import problems, spaces

from iossim.cost.model import LateWork, StageBounds
from iossim.cost.random import RandomCostModel
from iossim.schedule.batch import Strategy
from iossim.schedule.masks import GrowingTable
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search import clusters as module
from iossim.search.block_parts import Part
from iossim.search.block_search import solve_block
from iossim.search.clusters import cluster_states, cluster_transitions
from iossim.search.endings import BoundArrays, StateGraph, find_endings
from iossim.search.ios import solve
from iossim.search.lattice import Lattice, build_lattice, no_merges
from iossim.search.options import SearchOptions, StageSpace
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


SPACES = (StageSpace(), StageSpace(max_group_size=2, max_groups=2), StageSpace("paper"))


@dataclass(frozen=True)
class WholeClusters(ScrambledTable):
    """Prices of stages that part a cluster are infinite."""

    clusters: tuple[int, ...] = ()

    def price(self, problem: ScheduleProblem, mask: int, strategy: Strategy) -> float:
        if any(0 < mask & own < own for own in self.clusters):
            return inf
        return super().price(replace(problem, clusters=()), mask, strategy)


@st.composite
def clustered(draw: st.DrawFn) -> ScheduleProblem:
    """A problem of up to seven units, and clusters of units that follow one another in topological order."""
    count = draw(st.integers(2, 7))
    edges = [(u, v) for v in range(count) for u in range(v) if draw(st.booleans())]
    cuts = [0, *(unit for unit in range(1, count) if draw(st.booleans())), count]
    found = tuple((1 << end) - (1 << begin) for begin, end in pairwise(cuts))
    classes = [draw(st.integers(-1, 1)) for _ in range(count)]
    return replace(ScheduleProblem.of_edges(count, edges, classes), clusters=found)


#: A merged stage of a cluster and a unit beside it is one of three units, more than ``max_groups`` lets it have.
_MERGED_BEYOND_PRUNING = replace(ScheduleProblem.of_edges(4, [], [1, 1, 0, 1]), clusters=(3, 4, 8))


@settings(max_examples=60, deadline=None)
@example(_MERGED_BEYOND_PRUNING, 0, SPACES[1], False, True)
@given(clustered(), st.integers(0, 99), st.sampled_from(SPACES), st.booleans(), st.booleans())
def test_the_best_of_whole_clusters_is_found(
    problem: ScheduleProblem, seed: int, space: StageSpace, concurrent: bool, merge: bool
) -> None:
    prices = WholeClusters(seed, clusters=problem.clusters)
    least = cheapest(replace(problem, clusters=()), prices, space, concurrent, merge)
    if least == inf:  # a cluster that may not be a stage
        return
    found = solve([problem], prices, SearchOptions(space), concurrent=concurrent, merge=merge)
    assert found.cost_us == pytest.approx(least, rel=1e-12)
    masks = [stage.mask for stage in found.plans[0]]
    assert sum(masks) == problem.full
    assert all(mask & own in (0, own) for mask in masks for own in problem.clusters)
    assert "clusters" in found.notes[0]


def test_of_too_many_pairs_a_stage_takes_what_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two chains of three: 16 states, 84 pairs, of which 33 add what is ready.
    problem = ScheduleProblem.of_edges(6, [(0, 2), (2, 4), (1, 3), (3, 5)])
    problem = replace(problem, clusters=tuple(1 << unit for unit in range(6)))
    states = cluster_states(problem)
    assert states is not None
    assert (len(states), cluster_transitions(states)) == (16, 84)
    assert len(list(module._steps(problem, states))) == 84
    monkeypatch.setattr(module, "MOST_TRANSITIONS", 83)
    assert len(list(module._steps(problem, states))) == 33
    monkeypatch.setattr(module, "MOST_TRANSITIONS", 32)
    assert cluster_states(problem) is None


def test_where_even_these_are_too_many_the_block_is_searched_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(ScheduleProblem.of_edges(3, []), clusters=(3, 4))
    monkeypatch.setattr(module, "MOST_TRANSITIONS", 2)
    found = solve([problem], ScrambledTable(1), SearchOptions(), concurrent=True, merge=False)
    assert found.cost_us == cheapest(problem, ScrambledTable(1), StageSpace(), True, False)
    assert found.notes == ()
