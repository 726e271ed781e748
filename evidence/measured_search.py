"""The measured search against exhaustive measuring: the value of a budget, and the cost of planning.

    python -m evidence.measured_search [NETWORK ...] [--errors 0.1 0.2 structured] [--seeds 5] [--curves]

The truth is the V100's simulator with a seeded error, as a stand-in for hardware (``iossim.cost.perturbed``):
independent for each stage, or structured as that of a simulator with wrong parameters. Regret is the relative excess of
the schedule found over the optimum under the truth, all of whose stages are then priced; r = 3, s = 8, both strategies.
*Trusting* is the regret of the schedule that is best by the simulator alone.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import mean
from time import process_time

import numpy as np

import iossim
from evidence.data.data_sets import shared_data
from iossim.cost.capabilities import MeasuringCostModel
from iossim.cost.model import CostModel
from iossim.schedule.problem import ScheduleProblem
from iossim.search.assemble import price_blocks, total_latency_us
from iossim.search.ios import solve
from iossim.search.measured import Budget
from iossim.search.measured.search import MeasuredSolution, expected_deviation, measured_search
from iossim.search.measured.space import build_space
from iossim.search.options import SearchOptions, StageSpace

DEVICE = "v100-sxm2"
OPTIONS = SearchOptions(StageSpace("general", max_group_size=3, max_groups=8))
#: Budgets of measurements for each network, by the error of the truth.
BUDGETS = {
    "squeezenet": {"0.1": 60, "0.2": 80, "structured": 1000},
    "inception_v3": {"0.1": 300, "0.2": 500, "structured": 1000},
    "randwire": {"0.1": 1000, "0.2": 3000, "structured": 1000},
    "nasnet_a": {"0.1": 2000, "0.2": 3000, "structured": 1000},
}
#: Largest admissible mean regret, percent: the largest found is 1.08 (RandWire) and 1.79 (NasNet-A).
BARS = {"0.1": 1.1, "0.2": 2.0, "structured": 1.0}
#: Points of the printed anytime curve, as fractions of the budget.
CURVE_AT = (0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0)


@dataclass(frozen=True)
class Trial:
    """One search: regrets in percent, and the time of planning."""

    found: MeasuredSolution
    optimum_us: float
    trusting: float
    planner_cpu_s: float
    stages: int

    @property
    def regret(self) -> float:
        return self.regret_of(self.found.cost_us)

    def regret_of(self, cost_us: float) -> float:
        return 100 * (cost_us / self.optimum_us - 1)

    def regret_at(self, measurements: float) -> float | None:
        """Regret of the best schedule after so many measurements; None before there was one."""
        costs = [cost_us for made, cost_us in self.found.curve if made <= measurements]
        return self.regret_of(costs[-1]) if costs else None


def problems_of(name: str) -> list[ScheduleProblem]:
    """Blocks of the network; RandWire by the paper's edge lists if available."""
    graphs = shared_data() / "randwire"
    network = iossim.load(name, graphs=graphs if name == "randwire" and graphs.is_dir() else None)
    return [ScheduleProblem.of_block(network, block) for block in network.blocks]


def optimum(problems: list[ScheduleProblem], estimate: CostModel, truth: MeasuringCostModel) -> tuple[float, int]:
    """Least cost of any schedule when all distinct stages are priced by the truth, and their number."""
    space = build_space(problems, estimate, truth, OPTIONS)
    prices_us = np.full(len(space.classes), np.nan)
    for transitions, classes in zip(space.transitions, space.classes.of_stage, strict=True):
        of_class, stages = np.unique(classes, return_index=True)
        new = np.isnan(prices_us[of_class])
        prices_us[of_class[new]] = truth.price_stages(transitions.batch(stages[new]))
    best = space.planner.best([prices_us[classes] for classes in space.classes.of_stage])
    return best.cost_us, len(prices_us)


def run(problems: list[ScheduleProblem], estimate: CostModel, error: str, seed: int, budget: int) -> Trial:
    """Search with one seed of the truth."""
    truth = iossim.cost_model(f"perturbed:{error},{seed}", DEVICE)
    assert isinstance(truth, MeasuringCostModel)
    optimum_us, stages = optimum(problems, estimate, truth)
    proposed = solve(problems, estimate, OPTIONS)
    trusting_us = total_latency_us(price_blocks(problems, proposed.plans, truth))
    measuring = _Timed(truth)
    started = process_time()
    found = measured_search(
        problems, estimate, measuring, OPTIONS, Budget(measurements=budget), deviation=expected_deviation(estimate)
    )
    cpu_s = process_time() - started - measuring.cpu_s
    return Trial(found, optimum_us, 100 * (trusting_us / optimum_us - 1), cpu_s, stages)


class _Timed:
    """A cost model that measures the CPU time of its prices."""

    def __init__(self, inner: MeasuringCostModel) -> None:
        self._inner = inner
        self.cpu_s = 0.0
        self.identity = inner.identity
        self.measured_by = inner.measured_by
        self.price_boundary = inner.price_boundary
        self.bounds = inner.bounds
        self.signatures = inner.signatures

    def price_stages(self, batch):  # type: ignore[no-untyped-def]
        started = process_time()
        prices = self._inner.price_stages(batch)
        self.cpu_s += process_time() - started
        return prices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(BUDGETS), metavar="NETWORK")
    parser.add_argument("--errors", nargs="+", default=list(BARS), choices=list(BARS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--curves", action="store_true", help="print each search's regret over measurements")
    given = parser.parse_args()
    estimate = iossim.cost_model("simulator", DEVICE)
    warm = problems_of("squeezenet")
    run(warm, estimate, "0.1", 0, 60)  # loads compiled code
    shown = "  ".join(f"{100 * part:4.0f}%" for part in CURVE_AT)
    print(f"{'network':13} {'error':10} {'stages':>7} {'budget':>6} {'regret %':>9} {'(max)':>6} "
          f"{'bar':>4} {'trusting %':>10} {'planner s':>9} {'cpu s':>6}   "
          f"mean regret % at parts of the budget: {shown}")  # fmt: skip
    for name in given.networks:
        problems = problems_of(name)
        for error in given.errors:
            budget = BUDGETS[name][error]
            trials = []
            for seed in range(given.first_seed, given.first_seed + given.seeds):
                trial = run(problems, estimate, error, seed, budget)
                trials.append(trial)
                if given.curves:
                    curve = ", ".join(f"{made}: {trial.regret_of(us):.2f}" for made, us in trial.found.curve)
                    print(f"  seed {seed}: {trial.found.measurements} measured, kappa {trial.found.kappa}, "
                          f"deviation {trial.found.deviation:.3f}; regret % by measurements: {curve}")  # fmt: skip
            at = [[trial.regret_at(part * budget) for trial in trials] for part in CURVE_AT]
            means = [mean(x for x in one if x is not None) if None not in one else None for one in at]
            curve = "  ".join(f"{'-':>5}" if one is None else f"{one:5.2f}" for one in means)
            regrets = [trial.regret for trial in trials]
            print(f"{name:13} {error:10} {trials[0].stages:7} {budget:6} {mean(regrets):9.3f} {max(regrets):6.2f} "
                  f"{BARS[error]:4.1f} {mean(trial.trusting for trial in trials):10.1f} "
                  f"{mean(trial.found.planner_s for trial in trials):9.2f} "
                  f"{mean(trial.planner_cpu_s for trial in trials):6.2f}   {'':37} {curve}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
