"""The parts of the measured search, and what a budget buys: mean regret against the optimum when all is measured."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean

import numpy as np
import pytest
from brute_force import layered, problems, spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import iossim
from iossim.cost.capabilities import MeasuringCostModel
from iossim.cost.random import RandomCostModel
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem
from iossim.search.counting import count_search_space
from iossim.search.ios import solve
from iossim.search.lattice import Lattice, build_lattice, no_merges, price_merges
from iossim.search.measured import Budget
from iossim.search.measured.correction import Correction, optimistic_us
from iossim.search.measured.planner import Planner, Transitions, enumerate_transitions
from iossim.search.measured.search import MeasuredSolution, expected_deviation, measured_search
from iossim.search.measured.stage_classes import DENSE, StageClasses, classify, number_units
from iossim.search.options import SearchOptions, StageSpace


def transitions_of(
    problem: ScheduleProblem, space: StageSpace, concurrent: bool = True, merge: bool = False
) -> tuple[Lattice, Transitions]:
    lattice = build_lattice(problem, 10**6)
    assert lattice is not None
    most_groups = space.max_groups or len(problem)
    masks = price_merges(problem, RandomCostModel(), most_groups).masks if merge else no_merges().masks
    return lattice, enumerate_transitions(problem, lattice, replace(space, concurrent=concurrent), masks)


@settings(max_examples=40)
@given(problems(10), spaces, st.booleans())
def test_transitions_lead_where_their_units_do_and_are_those_that_are_counted(
    problem: ScheduleProblem, space: StageSpace, merge: bool
) -> None:
    lattice, found = transitions_of(problem, space, merge=merge)
    for row in range(2 * found.states):
        for index in range(found.begin[row], found.begin[row + 1]):
            stage = found.stage[index]
            assert lattice.masks[found.target[index]] == lattice.masks[row // 2] | found.masks[stage]
            is_merged = found.strategies[stage] == Strategy.MERGE.code
            assert (not is_merged and len(problem.groups(int(found.masks[stage]))) > 1) == row % 2
    counted = count_search_space(problem, space)
    assert found.states == len(lattice) == counted.states + 1
    merged = found.strategies == Strategy.MERGE.code
    assert len(set(found.masks[~merged].tolist())) == (~merged).sum() == counted.distinct_stages
    able = sum(int((found.masks[merged] & ~addable == 0).sum()) for addable in lattice.addable)
    assert len(found.target) == len(found.stage) == found.begin[-1] == counted.transitions + able


def test_more_transitions_of_a_state_than_a_walk_hands_over_at_a_time() -> None:
    _, found = transitions_of(ScheduleProblem.of_edges(10, []), StageSpace())
    assert sorted(found.masks.tolist()) == list(range(1, 1 << 10))
    assert len(set(found.target[: found.begin[2]].tolist())) == found.begin[2] == 2**10 - 1


@settings(max_examples=20)
@given(problems(8), spaces)
def test_without_concurrency_stages_are_units(problem: ScheduleProblem, space: StageSpace) -> None:
    lattice, found = transitions_of(problem, space, concurrent=False)
    assert sorted(found.masks.tolist()) == [1 << unit for unit in range(len(problem))]
    assert len(found.target) == int(np.bitwise_count(lattice.addable).sum())


@settings(max_examples=20)
@given(
    st.lists(problems(8), min_size=1, max_size=3),
    st.integers(0, 999),
    st.tuples(*(st.sampled_from([0.0, 3.0, 11.0]) for _ in range(4))),
    st.lists(st.sampled_from(["rise", "fall", "both", "same", "bar"]), min_size=1, max_size=6),
)
def test_plans_after_changed_prices_are_those_of_a_new_planner(
    blocks: list[ScheduleProblem], seed: int, boundary: tuple[float, ...], changes: list[str]
) -> None:
    generator = np.random.default_rng(seed)
    blocks = [*blocks, blocks[0]]
    spaces = [transitions_of(block, StageSpace())[1] for block in blocks[:-1]]
    order = [*range(len(spaces)), 0]
    arguments = spaces, order, np.reshape(boundary, (2, 2)), True
    planner = Planner(*arguments)
    prices = [generator.uniform(1, 30, len(space.masks)) for space in spaces]
    for change in changes:
        kept, fresh = planner.best(prices), Planner(*arguments).best(prices)
        assert kept.cost_us == pytest.approx(fresh.cost_us, rel=1e-12)
        if kept.steps:
            own = [float(prices[order[step.position]][step.stage]) for step in kept.steps]
            assert planner.cost_us(kept.steps, own) == pytest.approx(kept.cost_us, rel=1e-12)
            for position, index in enumerate(order):
                masks = [int(spaces[index].masks[s.stage]) for s in kept.steps if s.position == position]
                assert sum(masks) == blocks[index].full
        factors = {"rise": (1.0, 1.5), "fall": (0.5, 1.0), "both": (0.5, 1.5), "same": (1.0, 1.0), "bar": (1.0, 1.0)}
        prices = [
            one * np.where(generator.random(len(one)) < 0.2, generator.uniform(*factors[change], len(one)), 1.0)
            for one in prices
        ]
        if change == "bar":
            for one in prices:
                one[generator.random(len(one)) < 0.3] = np.inf


@settings(max_examples=25)
@given(problems(9), spaces, st.integers(0, 99), st.booleans())
def test_the_planner_finds_what_the_exact_search_finds(
    problem: ScheduleProblem, space: StageSpace, seed: int, concurrent: bool
) -> None:
    model = RandomCostModel(seed)
    _, found = transitions_of(problem, space, concurrent)
    boundary = np.array([[model.price_boundary(bool(i), bool(j)) for j in range(2)] for i in range(2)])
    best = Planner([found], [0], boundary, concurrent).best([model.price_stages(found.batch())])
    exact = solve([problem], model, SearchOptions(replace(space, concurrent=concurrent, merge=False)))
    assert best.cost_us == pytest.approx(exact.cost_us, rel=1e-9)


@pytest.fixture(scope="module")
def classes() -> StageClasses:
    problem = layered(np.random.default_rng(2), layers=4, width=4)
    _, found = transitions_of(problem, StageSpace("general", 3, 8))
    return classify([found], *number_units([problem.signatures]), RandomCostModel(4))


def test_features_of_two_groups() -> None:
    """A chain of two units beside a third: the price exceeds the longest group because the groups share the device."""
    problem, prices = ScheduleProblem.of_edges(3, [(0, 1)]), RandomCostModel(4)
    _, found = transitions_of(problem, StageSpace())
    features = classify([found], *number_units([problem.signatures]), prices).features
    alone_us = prices.bounds(problem).serial_us
    (price_us,) = prices.price_stages(StageBatch.concurrent(problem, np.array([7], dtype=np.uint64)))
    row = dict(zip(DENSE, features.dense[found.masks.tolist().index(7)], strict=False))
    sharing = 1 - max(alone_us[0] + alone_us[1], alone_us[2]) / price_us
    expected = {"several groups": 1, "log groups": np.log(2), "log overlap": np.log(alone_us.sum() / price_us)}
    assert row == pytest.approx({"constant": 1, "merged": 0, "log chain": 0, "sharing": sharing, **expected})


def learned(classes: StageClasses, seen: Sequence[int], residuals: np.ndarray) -> Correction:
    correction = Correction(classes.features, 0.15)
    correction.add(seen, residuals)
    correction.fit()
    return correction


def test_an_error_of_units_is_learned_from_other_stages(classes: StageClasses) -> None:
    """Each unit's time is off by a factor: what 150 stages say of it holds for the others."""
    features = classes.features
    off = np.random.default_rng(1).normal(0, 0.4, features.units)
    rows = np.repeat(np.arange(len(classes)), np.diff(features.begin))
    truth = np.bincount(rows, weights=features.time * off[features.unit], minlength=len(classes))
    truth += np.random.default_rng(2).normal(0, 0.02, len(classes))
    seen = np.random.default_rng(3).choice(len(classes), 150, replace=False)
    correction = learned(classes, seen.tolist(), truth[seen])
    unseen = np.setdiff1d(np.arange(len(classes)), seen)
    assert truth[unseen].std() > 0.08
    assert (truth - correction.predict())[unseen].std() < 0.04
    assert correction.deviation == pytest.approx(0.02, abs=0.015)


@pytest.mark.parametrize("sigma", [0.05, 0.2])
def test_an_error_without_structure_is_taken_for_none(sigma: float, classes: StageClasses) -> None:
    correction = learned(classes, range(200), np.random.default_rng(5).normal(0, sigma, 200))
    assert correction.deviation == pytest.approx(sigma, rel=0.2)
    assert np.abs(correction.predict()).mean() < 0.3 * sigma


def test_hope_grows_with_kappa_and_with_the_price() -> None:
    expected_us = np.array([1.0, 10.0, 50.0, 100.0, 1000.0])
    hoped = [optimistic_us(expected_us, 0.1, kappa, 50.0) / expected_us for kappa in (0.0, 1.0, 2.0, 3.0)]
    for one in hoped:
        assert (np.diff(one) < 0).all()
    for less, more in pairwise(hoped):
        assert (more < less).all()
    for kappa, one in zip((0.0, 1.0, 2.0, 3.0), hoped, strict=True):
        assert one[2] == pytest.approx(np.exp(-0.1 * kappa), rel=1e-3)


DEVICE = "v100-sxm2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "error", "budget", "percent", "seeds"),
    [
        ("inception_v3", "0.1", 300, 1.0, 2),
        ("inception_v3", "0.2", 500, 2.0, 2),
        ("inception_v3", "structured", 1000, 1.0, 2),
        ("nasnet_a", "structured", 1000, 1.0, 1),
    ],
)
def test_mean_regret(model: str, error: str, budget: int, percent: float, seeds: int) -> None:
    """SqueezeNet's, and five seeds of all, are kept figures (``tests/evidence/test_quoted_figures.py``)."""
    network = iossim.load(model)
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    simulator = iossim.cost_model("simulator", DEVICE)

    def search(truth: MeasuringCostModel, spend: Budget) -> MeasuredSolution:
        options, deviation = SearchOptions(StageSpace("general", 3, 8)), expected_deviation(simulator)
        return measured_search(problems, simulator, truth, options, spend, deviation=deviation)

    regrets = []
    for seed in range(seeds):
        truth = iossim.cost_model(f"perturbed:{error},{seed}", DEVICE)
        assert isinstance(truth, MeasuringCostModel)
        optimum = search(truth, Budget(everything=True))
        assert optimum.exhaustive
        found = search(truth, Budget(measurements=budget))
        assert found.measurements <= budget
        assert found.cost_us >= optimum.cost_us * (1 - 1e-9)
        regrets.append(100 * (found.cost_us / optimum.cost_us - 1))
    assert mean(regrets) <= percent, regrets
