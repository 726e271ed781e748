"""Both engines on the stages of small networks: all of them or a sample, and each engine's optimum by the other."""

from __future__ import annotations

import numpy as np
import pytest

from evidence.validation.engines import SPACE, EventDrivenStages, compare_prices
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events.program import KernelLibrary
from iossim.backends.simulator.events.run import stage_us
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.problem import ScheduleProblem
from iossim.search.counting import distinct_stages

DEVICE = device("v100-sxm2")


@pytest.mark.parametrize("engine", UNDIVIDED)
def test_all_stages(engine: Engine) -> None:
    network = load("squeezenet")
    told: list[tuple[int, int]] = []
    found = compare_prices(network, DEVICE, progress=lambda done, total: told.append((done, total)), engine=engine)
    analytic, library = SimulatorCostModel(DEVICE, Precision.FP32, engine), KernelLibrary(DEVICE, engine)
    problems = {}
    for block in network.blocks:
        problem = ScheduleProblem.of_block(network, block)
        problems.setdefault(problem.key, problem)
    analytic_us: list[float] = []
    events_us: list[float] = []
    groups: list[int] = []
    for problem in problems.values():
        masks = distinct_stages(problem, SPACE)
        analytic_us += analytic.price_stages(StageBatch.concurrent(problem, masks)).tolist()
        events_us += [stage_us(problem, mask, network, library) for mask in masks.tolist()]
        groups += [len(problem.groups(mask)) for mask in masks.tolist()]
    np.testing.assert_array_equal(found.analytic_us, analytic_us)
    np.testing.assert_array_equal(found.events_us, events_us)
    np.testing.assert_array_equal(found.groups, groups)
    assert found.median < 0.1
    assert found.to_json()["engine"] == engine
    assert found.total == len(found.groups)
    assert told[-1] == (found.total, found.total)
    # The best of all is not beaten, at its own prices.
    assert found.analytic_optimum_by_events is not None
    assert found.events_optimum_by_analytic is not None
    assert found.analytic_optimum_by_events >= -1e-9
    assert found.events_optimum_by_analytic >= -1e-9


def test_sample() -> None:
    network = load("squeezenet")
    whole = compare_prices(network, DEVICE)
    first, again, other = (compare_prices(network, DEVICE, 12, seed) for seed in (3, 3, 4))
    assert len(first.groups) == 12
    assert first.total == whole.total
    np.testing.assert_array_equal(first.events_us, again.events_us)
    assert not np.array_equal(first.events_us, other.events_us)
    assert set(first.events_us.tolist()) <= set(whole.events_us.tolist())
    assert first.analytic_optimum_by_events is None
    assert first.to_json()["priced"] == 12


def test_a_stage_is_simulated_once() -> None:
    network = load("ios_sample")
    analytic = SimulatorCostModel(DEVICE, Precision.FP32)
    asked: list[None] = []
    model = EventDrivenStages(network, analytic, lambda: asked.append(None))
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    masks = np.array([1, 3, 1, 3], dtype=np.uint64)
    prices = model.price_stages(StageBatch.concurrent(problem, masks))
    assert len(asked) == 2
    assert prices[0] == prices[2]
    merged = StageBatch(problem, masks[:1], np.array([Strategy.MERGE.code], dtype=np.uint8))
    assert model.price_stages(merged).tolist() == [np.inf]
    assert model.price_boundary(True, False) == analytic.price_boundary(True, False)
    assert model.bounds(problem) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "median", "high", "worst", "optimum"),
    [
        # A last wave that others leave no room for is a wave more, as long as the latency that the blocks are given.
        ("v100-sxm2", 0.005, 0.045, 1.4, 0.025),
        ("a100-sxm-40gb", 0.002, 0.05, 1.3, 0.01),
        ("t4", 0.012, 0.08, 1.4, 0.03),
    ],
)
def test_stages_and_optima_of_inception_in_graphs(
    name: str, median: float, high: float, worst: float, optimum: float
) -> None:
    """Those of streams are in README, and judged with it (``test_quoted_figures.py``)."""
    found = compare_prices(load("inception_v3"), device(name), engine=Engine.GRAPH)
    assert found.median <= median
    assert found.percentile_95 <= high
    takes_time = found.analytic_us > 0  # concats in place take none
    assert (found.events_us[~takes_time] == 0).all()
    ratios = found.events_us[takes_time] / found.analytic_us[takes_time]
    assert 1 / worst <= ratios.min() <= ratios.max() <= worst
    assert found.analytic_optimum_by_events is not None
    assert found.events_optimum_by_analytic is not None
    assert found.analytic_optimum_by_events <= optimum
    assert found.events_optimum_by_analytic <= optimum
