"""Stages of whole clusters: the least of all schedules that keep them, by brute force."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import pytest
from brute_force import ScrambledTable, cheapest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iossim.schedule.batch import Strategy
from iossim.schedule.problem import ScheduleProblem
from iossim.search import clusters as module
from iossim.search.clusters import cluster_states, cluster_transitions
from iossim.search.ios import solve
from iossim.search.options import SearchOptions, StageSpace

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
