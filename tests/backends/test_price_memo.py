"""Stages that ask the same are priced once, at what they would cost one by one, on any number of threads."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np
import pytest

import iossim
from iossim import api
from iossim.backends.simulator import stage_pricing
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.stage_pricing import price_concurrent
from iossim.base import threads
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.search.lattice import build_lattice


@pytest.fixture(params=["nasnet_a", "randwire"])
def problem(request: pytest.FixtureRequest) -> ScheduleProblem:
    network = iossim.load(request.param)
    return ScheduleProblem.of_block(network, network.blocks[4])


def simulator() -> SimulatorCostModel:
    found = api.cost_model("simulator", "v100-sxm2")
    assert isinstance(found, SimulatorCostModel)
    return found


def random_masks(problem: ScheduleProblem, count: int, seed: int) -> Masks:
    """Sets of up to six units; the stage model prices any."""
    chance = np.random.default_rng(seed)
    units = (chance.choice(len(problem), chance.integers(1, 7), replace=False) for _ in range(count))
    return np.array([sum(1 << int(unit) for unit in several) for several in units], dtype=np.uint64)


@pytest.mark.parametrize("most", [stage_pricing.MOST_KEPT, 300])
def test_prices_are_those_of_each_stage_alone(
    problem: ScheduleProblem, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(stage_pricing, "MOST_KEPT", most)
    model = simulator()
    prepared = model.stages.prepare(problem)
    for seed in range(8):
        masks = random_masks(problem, 400, seed)
        plain = price_concurrent(masks, problem.predecessors, prepared.kernels, model.profile.parameters.interference)
        assert np.array_equal(model.price_stages(StageBatch.concurrent(problem, masks)), plain)


@pytest.mark.parametrize("engine", ["paper", "graph"])
def test_a_price_below_its_limit_is_the_price_and_any_other_is_bounded(problem: ScheduleProblem, engine: str) -> None:
    """Limits rise and fall from call to call, and stages occur twice in one, with other limits."""
    model, chance = iossim.cost_model("simulator", "v100-sxm2", engine=engine), np.random.default_rng(7)
    masks = random_masks(problem, 300, 5)
    prices = iossim.cost_model("simulator", "v100-sxm2", engine=engine).price_stages(
        StageBatch.concurrent(problem, masks)
    )
    given_up = 0
    for _ in range(4):
        places = chance.integers(0, len(masks), 400)
        limits_us = prices[places] * chance.uniform(0.2, 1.5, 400)
        below = model.price_below(StageBatch.concurrent(problem, masks[places]), limits_us.copy())
        exact = below >= 0
        assert np.array_equal(below[exact], prices[places][exact])
        assert exact[prices[places] < limits_us].all()
        assert ((limits_us <= -below) & (-below <= prices[places]))[~exact].all()
        given_up += int((~exact).sum())
    assert given_up > 100
    assert np.array_equal(model.price_stages(StageBatch.concurrent(problem, masks)), prices)


def test_equal_stages_of_equal_cells_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells of NasNet in the middle of the network are the same: the second asks for nothing."""
    network = iossim.load("nasnet_a")
    cells: dict[str, list[ScheduleProblem]] = {}
    for block in network.blocks:
        problem = ScheduleProblem.of_block(network, block)
        cells.setdefault(problem.key, []).append(problem)
    cell, same = max(cells.values(), key=len)[:2]
    model, asked = simulator(), []
    priced = price_concurrent

    def counted(masks: Masks, *given: object) -> object:
        asked.append(len(masks))
        return priced(masks, *given)  # type: ignore[arg-type]

    monkeypatch.setattr("iossim.backends.simulator.stage_pricing.price_concurrent", counted)
    masks = random_masks(cell, 500, 0)
    first = model.price_stages(StageBatch.concurrent(cell, masks))
    assert len(asked) == 1
    assert asked[0] < 500
    assert np.array_equal(model.price_stages(StageBatch.concurrent(same, masks)), first)
    assert np.array_equal(model.price_stages(StageBatch.concurrent(cell, masks[::-1])), first[::-1])
    assert len(asked) == 1


@pytest.mark.parametrize("where", ["stage_pricing.price_concurrent", "stage_pricing.GrowingTable.enter"])
def test_an_interrupt_while_pricing_leaves_no_stage_without_a_price(
    problem: ScheduleProblem, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    model = simulator()
    masks = random_masks(problem, 50, 3)
    expected = simulator().price_stages(StageBatch.concurrent(problem, masks))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"iossim.backends.simulator.{where}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.price_stages(StageBatch.concurrent(problem, masks))
    assert np.array_equal(model.price_stages(StageBatch.concurrent(problem, masks)), expected)


def many_stages() -> tuple[ScheduleProblem, Masks]:
    """More stages of one block than a single thread is given: all its states, as stages from nothing done."""
    network = iossim.load("randwire")
    problem = max((ScheduleProblem.of_block(network, block) for block in network.blocks), key=len)
    lattice = build_lattice(problem, 400_000)
    assert lattice is not None
    masks = lattice.masks[1:]
    assert len(masks) > stage_pricing.FEWEST_IN_PARALLEL
    return problem, masks


@pytest.mark.parametrize("cores", [1, 2, 3, 7])
def test_the_same_prices_on_any_number_of_cores(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, masks = many_stages()
    prices = iossim.cost_model("simulator", "v100-sxm2")
    few = [prices.price_stages(StageBatch.concurrent(problem, part)) for part in np.array_split(masks, 40)]
    monkeypatch.setattr(threads, "usable_cores", lambda: tuple(range(cores)))
    threads._pool.cache_clear()
    at_once = prices.price_stages(StageBatch.concurrent(problem, masks))
    threads._pool.cache_clear()
    assert np.array_equal(at_once, np.concatenate(few))


def test_a_forked_process_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: (0, 1))
    problem, masks = many_stages()
    prices = iossim.cost_model("simulator", "v100-sxm2")
    expected = prices.price_stages(StageBatch.concurrent(problem, masks))
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def child(answer: Connection) -> None:
        answer.send(prices.price_stages(StageBatch.concurrent(problem, masks)).tobytes())

    process = context.Process(target=child, args=(there,))
    process.start()
    assert here.poll(60), "the forked process waits for threads that it does not have"
    assert here.recv() == expected.tobytes()
    process.join()
