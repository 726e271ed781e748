"""What a budget buys: mean regret against the optimum when all is measured, with seeded errors as a stand-in for hardware."""

from __future__ import annotations

from statistics import mean

import pytest

import iossim
from iossim.cost.capabilities import MeasuringCostModel
from iossim.schedule.problem import ScheduleProblem
from iossim.search.measured import Budget
from iossim.search.measured.schedule import expected_deviation
from iossim.search.measured.search import MeasuredSolution, measured_search
from iossim.search.options import SearchOptions, StageSpace

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
