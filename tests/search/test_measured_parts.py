"""The parts of the measured search, and what a budget buys: mean regret against the optimum when all is measured."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import layered, problems, spaces
from stage_signature import stage_signature

import iossim
from iossim.cost.capabilities import MeasuringCostModel
from iossim.cost.random import RandomCostModel
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.stage_hash import stage_hashes, unit_keys
from iossim.search.counting import count_search_space
from iossim.search.ios import solve
from iossim.search.lattice import build_lattice, price_merges
from iossim.search.measured import Budget
from iossim.search.measured.correction import Correction, optimistic_us
from iossim.search.measured.planner import Planner
from iossim.search.measured.schedule import expected_deviation
from iossim.search.measured.search import MeasuredSolution, measured_search
from iossim.search.measured.stage_classes import StageClasses, classify, number_units
from iossim.search.measured.transitions import Transitions, enumerate_transitions
from iossim.search.options import SearchOptions, StageSpace


def transitions_of(
    problem: ScheduleProblem, space: StageSpace, concurrent: bool = True, merge: bool = False
) -> Transitions:
    lattice = build_lattice(problem, 10**6)
    assert lattice is not None
    most_groups = space.max_groups or len(problem)
    masks = price_merges(problem, RandomCostModel(), most_groups).masks if merge else np.zeros(0, dtype=np.uint64)
    return enumerate_transitions(problem, lattice, space, masks, concurrent)


@settings(max_examples=20)
@given(problems(10), spaces)
def test_transitions_are_those_that_are_counted(problem: ScheduleProblem, space: StageSpace) -> None:
    found = transitions_of(problem, space)
    counted = count_search_space(problem, space)
    assert len(found.target) == len(found.stage) == found.begin[-1] == counted.transitions
    assert len(found.masks) == len(set(found.masks.tolist())) == counted.distinct_stages
    assert found.states == counted.states + 1
    lattice = build_lattice(problem, 10**6)
    assert lattice is not None
    for row in range(2 * found.states):
        for index in range(found.begin[row], found.begin[row + 1]):
            mask = int(found.masks[found.stage[index]])
            assert lattice.masks[found.target[index]] == lattice.masks[row // 2] | np.uint64(mask)
            assert (len(problem.groups(mask)) > 1) == row % 2


def test_more_transitions_of_a_state_than_a_walk_hands_over_at_a_time() -> None:
    found = transitions_of(ScheduleProblem.of_edges(10, []), StageSpace())
    assert sorted(found.masks.tolist()) == list(range(1, 1 << 10))
    assert len(set(found.target[: found.begin[2]].tolist())) == found.begin[2] == 2**10 - 1


@settings(max_examples=20)
@given(problems(8), spaces)
def test_without_concurrency_stages_are_units(problem: ScheduleProblem, space: StageSpace) -> None:
    found = transitions_of(problem, space, concurrent=False)
    assert sorted(found.masks.tolist()) == [1 << unit for unit in range(len(problem))]
    lattice = build_lattice(problem, 10**6)
    assert lattice is not None
    assert len(found.target) == int(np.bitwise_count(lattice.addable).sum())


@settings(max_examples=30)
@given(problems(8), spaces)
def test_merged_stages_lead_where_their_units_do(problem: ScheduleProblem, space: StageSpace) -> None:
    plain, merging = transitions_of(problem, space), transitions_of(problem, space, merge=True)
    merged = np.flatnonzero(merging.strategies == Strategy.MERGE.code)
    assert len(merging.masks) == len(plain.masks) + len(merged)
    lattice = build_lattice(problem, 10**6)
    assert lattice is not None
    for row in range(2 * merging.states):
        for index in range(merging.begin[row], merging.begin[row + 1]):
            stage = merging.stage[index]
            assert lattice.masks[merging.target[index]] == lattice.masks[row // 2] | merging.masks[stage]
            if stage in merged:
                assert row % 2 == 0
    able = [
        sum(not int(mask) & ~int(addable) for mask in merging.masks[merged]) for addable in lattice.addable.tolist()
    ]
    assert len(merging.target) - len(plain.target) == sum(able)


@settings(max_examples=30)
@given(problems(8), st.lists(st.sampled_from("abc"), min_size=8, max_size=8))
def test_hashes_are_equal_where_signatures_are(problem: ScheduleProblem, names: list[str]) -> None:
    alike = ScheduleProblem(
        "alike", problem.unit_names, problem.predecessors, problem.merge_class, tuple(names[: len(problem)])
    )
    masks = np.repeat(np.arange(1, alike.full + 1, dtype=np.uint64), 2)
    batch = StageBatch(
        alike, masks, np.tile([Strategy.CONCURRENT.code, Strategy.MERGE.code], alike.full).astype(np.uint8)
    )
    hashes = stage_hashes(batch, unit_keys(alike.signatures)).tolist()
    signatures = [stage_signature(alike, mask, strategy) for mask, strategy in batch.stages()]
    assert len(set(zip(hashes, signatures, strict=True))) == len(set(hashes)) == len(set(signatures))


def test_units_that_do_nothing_do_not_count() -> None:
    """Behind a chain of a and b, between them, and beside them, in a group of its own."""
    chain = ScheduleProblem.of_edges(4, [(0, 1), (1, 2)])
    keys = unit_keys(["a", "free", "b", "free"])
    keys[[1, 3]] = 0
    masks = np.array([0b0101, 0b0111, 0b1111, 0b0001, 0b0011, 0b1001, 0b0010, 0b1010], dtype=np.uint64)
    hashes = stage_hashes(StageBatch.concurrent(chain, masks), keys).tolist()
    assert hashes[1] == hashes[2]
    assert hashes[3] == hashes[4] == hashes[5]
    assert hashes[6] == hashes[7] == 0
    assert len({hashes[0], hashes[1], hashes[3], 0}) == 4


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
    spaces = [transitions_of(block, StageSpace()) for block in blocks[:-1]]
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
    found = transitions_of(problem, space, concurrent)
    boundary = np.array([[model.price_boundary(bool(i), bool(j)) for j in range(2)] for i in range(2)])
    best = Planner([found], [0], boundary, concurrent).best([model.price_stages(found.batch())])
    exact = solve([problem], model, SearchOptions(space), concurrent=concurrent, merge=False)
    assert best.cost_us == pytest.approx(exact.cost_us, rel=1e-9)


def classes_of(problem: ScheduleProblem) -> tuple[Transitions, StageClasses]:
    found = transitions_of(problem, StageSpace("general", 3, 8))
    numbers, units = number_units([problem.signatures])
    return found, classify([found], numbers, units, RandomCostModel(4))


def test_an_error_of_units_is_learned_from_other_stages() -> None:
    """Each unit's time is off by a factor: what 150 stages say of it holds for the others."""
    problem = layered(np.random.default_rng(2), layers=4, width=4)
    _, classes = classes_of(problem)
    features = classes.features
    off = np.random.default_rng(1).normal(0, 0.4, features.units)
    rows = np.repeat(np.arange(len(classes)), np.diff(features.begin))
    truth = np.bincount(rows, weights=features.time * off[features.unit], minlength=len(classes))
    truth += np.random.default_rng(2).normal(0, 0.02, len(classes))
    seen = np.random.default_rng(3).choice(len(classes), 150, replace=False)
    correction = Correction(features, 0.15)
    correction.add(seen.tolist(), truth[seen])
    correction.fit()
    unseen = np.setdiff1d(np.arange(len(classes)), seen)
    assert truth[unseen].std() > 0.08
    assert (truth - correction.predict())[unseen].std() < 0.04
    assert correction.deviation == pytest.approx(0.02, abs=0.015)


@pytest.mark.parametrize("sigma", [0.05, 0.2])
def test_an_error_without_structure_is_taken_for_none(sigma: float) -> None:
    problem = layered(np.random.default_rng(2), layers=4, width=4)
    _, classes = classes_of(problem)
    residuals = np.random.default_rng(5).normal(0, sigma, 200)
    correction = Correction(classes.features, 0.15)
    correction.add(list(range(200)), residuals)
    correction.fit()
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
        return measured_search(
            problems,
            simulator,
            truth,
            SearchOptions(StageSpace("general", 3, 8)),
            spend,
            concurrent=True,
            merge=True,
            deviation=expected_deviation(simulator),
        )

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
