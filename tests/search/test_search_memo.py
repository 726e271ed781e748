"""Searches that share what they find find the same schedules, and say what they would have taken alone."""

from __future__ import annotations

import pytest

import iossim
from iossim.cost.random import RandomCostModel
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.search import ios, solver
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchLimits, SearchOptions, StageSpace
from iossim.search.scheduler import schedule, scheduler_names


@pytest.mark.parametrize(
    ("space", "limits"),
    [
        (StageSpace(), SearchLimits()),
        (StageSpace("paper", 2, 3), SearchLimits()),
        (StageSpace(), SearchLimits(max_states=30)),
    ],
)
def test_schedules_are_the_same(space: StageSpace, limits: SearchLimits) -> None:
    network, prices = iossim.load("squeezenet"), RandomCostModel(seed=5)
    memo = SearchMemo(prices)

    def found(name: str, memo: SearchMemo | None) -> Schedule:
        options = SearchOptions(space, limits)
        return schedule(network, prices, name, options, memo=memo).model_copy(update={"search_s": 0.0})

    for name in scheduler_names():
        assert found(name, memo) == found(name, None)


def test_what_was_solved_is_not_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing merges, ios-both asks for what ios-parallel has solved; another cost model for nothing of it."""
    problem = ScheduleProblem.of_edges(5, [(0, 2), (1, 3), (1, 4)])
    solved: list[int] = []
    solve_block = solver.solve_block

    def counted(*given: object, **named: object) -> object:
        solved.append(1)
        return solve_block(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(solver, "solve_block", counted)
    prices, options = RandomCostModel(), SearchOptions()
    memo = SearchMemo(prices)
    first = ios.solve([problem], prices, options, concurrent=True, merge=False, memo=memo)
    assert (len(solved), first.saved_s) == (1, 0)
    second = ios.solve([problem], prices, options, concurrent=True, merge=True, memo=memo)
    assert len(solved) == 1
    assert second.plans == first.plans
    assert second.saved_s > 0
    ios.solve([problem], prices, options, concurrent=False, merge=True, memo=memo)
    assert len(solved) == 2
    ios.solve([problem], RandomCostModel(seed=1), options, concurrent=True, merge=True, memo=memo)
    assert len(solved) == 3
