"""Stages that ask the same are priced once, at what they would cost one by one; and the partition engine's best division."""

from __future__ import annotations

import multiprocessing
from itertools import pairwise, product
from multiprocessing.connection import Connection

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import iossim
from iossim import api
from iossim.backends.simulator import stage_pricing
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.device_sharing import Fluid
from iossim.backends.simulator.partition import PreparedPartition
from iossim.backends.simulator.stage_pricing import price_concurrent
from iossim.base import threads
from iossim.base.errors import OptionError
from iossim.execution.engine import Engine
from iossim.hardware.green_contexts import part_sizes
from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.search.assemble import reprice
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
        fluid = Fluid.of(prepared.kernels, model.profile.parameters.interference)
        plain = price_concurrent(masks, problem.predecessors, [fluid])
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


V100 = device("v100-sxm2")
SIZES = np.array([2, 4, 6, 8], dtype=np.int64)
SMS = 10


def partition(unit_us: np.ndarray, shared_us: np.ndarray) -> PreparedPartition:
    single_us = unit_us.min(axis=1) * 0.9
    keys = np.arange(1, len(unit_us) + 1, dtype=np.uint64)
    return PreparedPartition(SMS, SIZES, unit_us, shared_us, single_us, keys)


def brute_force_us(found: PreparedPartition, groups: list[list[int]]) -> float:
    """The shortest longest group over every division."""
    choices = product(range(len(SIZES)), repeat=len(groups))
    return min(
        max(found.unit_us[group, size].sum() for group, size in zip(groups, sizes, strict=True))
        for sizes in choices
        if SIZES[list(sizes)].sum() <= SMS
    )


@given(st.data())
def test_the_longest_group_is_as_short_as_any_division_makes_it(data: st.DataObject) -> None:
    """Times need not fall with the SMs: a bigger part may keep less in L2."""
    count = data.draw(st.integers(2, 5))
    us = st.floats(1.0, 100.0)
    unit_us = np.array(data.draw(st.lists(st.lists(us, min_size=4, max_size=4), min_size=count, max_size=count)))
    group_of = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    # Units of one group are a chain.
    groups = [[u for u in range(count) if group_of[u] == g] for g in sorted(set(group_of), key=group_of.index)]
    predecessors = np.zeros(count, dtype=np.uint64)
    for group in groups:
        for before, unit in pairwise(group):
            predecessors[unit] = np.uint64(1 << before)
    found = partition(unit_us, np.zeros((count, 4, 2)))
    mask = np.array([(1 << count) - 1], dtype=np.uint64)
    (price,) = found.price(mask, predecessors)
    bounds = found.bounds()
    assert (bounds.serial_us <= bounds.single_us).all()
    if len(groups) == 1:
        assert price == pytest.approx(found.single_us.sum())
        return
    assert price == pytest.approx(brute_force_us(found, groups))
    parts, price_us = found.divide(groups)
    assert price_us == pytest.approx(price, rel=1e-12)
    own = [found.unit_us[group, list(SIZES).index(len(part))].sum() for group, part in zip(groups, parts, strict=True)]
    assert max(own) == pytest.approx(price)
    assert sum(map(len, parts)) <= SMS
    assert len({sm for part in parts for sm in part}) == sum(map(len, parts))
    assert bounds.work_us.sum(axis=0).max() <= price
    assert max(bounds.serial_us[group].sum() for group in groups) <= price


@pytest.mark.parametrize(
    ("unit_us", "shared_us", "expected_us"),
    [
        ([8.0, 4.0, 3.0, 2.0], 5.0, 10.0),  # what all share is no faster for the division
        ([8.0, 8.5, 9.0, 9.5], 0.0, 8.0),  # and no part is larger than pays
    ],
)
def test_divisions_by_hand(unit_us: list[float], shared_us: float, expected_us: float) -> None:
    found = partition(np.array([unit_us] * 2), np.full((2, 4, 2), [shared_us, 0.0]))
    assert found.price(np.array([3], dtype=np.uint64), np.zeros(2, dtype=np.uint64)).tolist() == [expected_us]


def test_more_groups_than_parts_share_them_one_after_another() -> None:
    found = partition(np.array([[8.0, 4.0, 3.0, 2.0]] * 7), np.zeros((7, 4, 2)))
    parts, _ = found.divide([[unit] for unit in range(7)])
    assert parts[5] == parts[0]
    assert parts[6] == parts[1]
    assert len(set(parts)) == 5
    (price,) = found.price(np.array([127], dtype=np.uint64), np.zeros(7, dtype=np.uint64))
    assert price == 16.0


def test_stages_of_one_group_and_merged_ones_have_the_whole_device() -> None:
    network = load("squeezenet")
    sequential = [api.optimize(network, V100, scheduler="sequential", engine=one).latency_us for one in Engine]
    assert sequential[2] == sequential[1]


@pytest.mark.slow
def test_a_search_finds_no_worse_than_any_schedule_priced_on_parts() -> None:
    network = load("squeezenet")
    prices = SimulatorCostModel(V100, Precision.FP32, Engine.PARTITION)
    best = api.optimize(network, V100, engine=Engine.PARTITION)
    for engine in Engine:
        other = api.optimize(network, V100, engine=engine, scheduler="ios-parallel")
        assert best.latency_us <= reprice(other, network, prices).latency_us * (1 + 1e-9)
    spans = prices.timeline(network, best)
    assert max(span.end_us for span in spans) == pytest.approx(best.latency_us)


def test_sizes_of_parts_by_generation() -> None:
    assert part_sizes(V100) == tuple(range(2, 79, 2))
    assert part_sizes(device("a100-sxm-40gb"))[:3] == (4, 6, 8)
    assert part_sizes(device("h100-sxm"))[:3] == (8, 16, 24)
    with pytest.raises(OptionError, match=r"'k80' \(kepler\) cannot divide its SMs.*give `engine` paper or graph"):
        SimulatorCostModel(device("k80"), Precision.FP32, Engine.PARTITION)
    with pytest.raises(OptionError, match="has 2 SMs and a green context at least 2"):
        part_sizes(device("v100-sxm2+sms=2"))
