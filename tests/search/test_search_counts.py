"""How much work the search of the paper's networks is: a search that becomes slower does more of it.

Prices on the V100 at batch 1, ios-both, unpruned. States and transitions follow from the networks alone; endings that
bounds leave, and stages that are priced, from prices besides, whose last digits may decide: these may be fewer. Most
stages are priced only until they are known to take too long.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

import iossim
from iossim.cost.capabilities import LimitedCostModel
from iossim.cost.model import Prices, WrappedCostModel
from iossim.cost.random import RandomCostModel
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.search import ios, solver
from iossim.search.counting import unpruned_transitions
from iossim.search.ios import solve
from iossim.search.lattice import build_lattice
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchLimits, SearchOptions, StageSpace
from iossim.search.scheduler import schedule, scheduler_names


class Work(NamedTuple):
    """Over the distinct blocks of a network."""

    states: int
    transitions: int
    endings: int
    priced_stages: int
    priced_to_the_end: int


#: RandWire's third stage has three quarters of its transitions, and takes as long as all that is here together.
WORK = {
    ("squeezenet", ""): Work(90, 328, 120, 109, 42),
    ("inception_v3", ""): Work(1_074, 25_049, 4_093, 2_034, 1_257),
    ("nasnet_a", ""): Work(30_559, 4_062_410, 327_425, 222_628, 62_025),
    ("randwire", "stage3"): Work(12_588, 10_666_745, 977_275, 279_340, 79_240),
}


class Counting(WrappedCostModel):
    """Counts the stages that are priced to the end."""

    ended = 0

    def price_below(self, batch: StageBatch, limits_us: Prices) -> Prices:
        assert isinstance(self.inner, LimitedCostModel)
        prices = self.inner.price_below(batch, limits_us)
        self.ended += int((prices >= 0).sum())
        return prices


@pytest.mark.parametrize(("network", "without"), WORK)
def test_the_search_does_no_more_than_it_did(network: str, without: str) -> None:
    loaded = iossim.load(network)
    blocks = [ScheduleProblem.of_block(loaded, block) for block in loaded.blocks if block.name != without]
    states = transitions = 0
    for block in {block.key: block for block in blocks}.values():
        lattice = build_lattice(block, 100_000)
        assert lattice is not None
        states += len(lattice)
        transitions += int(unpruned_transitions(lattice))
    prices = Counting(iossim.cost_model("simulator", "v100-sxm2"))
    solution = solve(blocks, prices, SearchOptions(), concurrent=True, merge=True)
    work = Work(states, transitions, solution.endings, solution.priced_stages, prices.ended)
    most = WORK[network, without]
    assert work[:2] == most[:2]
    for found, known in zip(work[2:], most[2:], strict=True):
        assert known * 0.9 <= found <= known * 1.001, f"{network}: {work} instead of {most}"


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
