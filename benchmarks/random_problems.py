"""Bounded search against plain search and brute force, over many random problems.

    python benchmarks/random_problems.py [--count 50000] [--seed 0]
    python benchmarks/random_problems.py --streams [--count 1000]

Each problem is a block of up to 11 units with random edges, merge classes, stage space and prices. All three find the
same cost (brute force up to 6 units), the bounded search prices no more stages than the plain one, and its bound is not
above the cost. With ``--streams`` the problems are launches of random blocks of 3 to 12 units on the simulated V100, and
the lower bound of all streams is not above what 50 random schedules cost. Ends with exit code 1 at the first problem
where one of these fails, and prints it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import typer
from rich.progress import track

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.cost.random import RandomCostModel
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.schedule.problem import ScheduleProblem
from iossim.search.ios import solve
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.streams.bounds import stream_bound_us

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from brute_force import Unbounded, cheapest
from random_networks import random_network, random_stream_batch

MOST_UNITS, MOST_BY_BRUTE_FORCE = 11, 6
#: Random schedules of streams for each problem.
SCHEDULES = 50


def main(count: int = 50_000, seed: int = 0, streams: bool = False) -> None:
    sys.exit(of_streams(count, seed) if streams else of_stages(count, seed))


def of_stages(count: int, seed: int) -> int:
    by_brute_force = priced = plainly_priced = 0
    for number in track(range(count), "problems", disable=not sys.stderr.isatty()):
        draw = np.random.default_rng((seed, number))
        problem = _problem(draw, number)
        prices = RandomCostModel(number, float(draw.random()), 30 * float(draw.random()))
        limits = [[None, 1, 2, 3][draw.integers(4)], [None, 1, 2, 3, 8][draw.integers(5)]]
        space = StageSpace(["general", "paper"][draw.integers(2)], *limits)
        may = {"concurrent": bool(draw.random() < 0.8), "merge": bool(draw.random() < 0.5)}
        bounded, plain = (
            solve([problem], own, SearchOptions(replace(space, **may))) for own in (prices, Unbounded(prices))
        )
        costs_us = [bounded.cost_us, plain.cost_us]
        if len(problem) <= MOST_BY_BRUTE_FORCE:
            by_brute_force += 1
            costs_us.append(cheapest(problem, prices, space, **may))  # type: ignore[arg-type]
        priced, plainly_priced = priced + bounded.priced_stages, plainly_priced + plain.priced_stages
        least_us = max(bounded.lower_bound_us or 0.0, bounded.relaxed_bound_us or 0.0)
        holds = np.allclose(costs_us, costs_us[0], rtol=1e-9, atol=0) and least_us <= costs_us[0] * (1 + 1e-12)
        if not holds or bounded.priced_stages > plain.priced_stages:
            print(f"problem {number} of seed {seed}: costs {costs_us}, bound {least_us}, {problem}, {space}, {may}")
            return 1
    print(
        f"{count:,} problems, {by_brute_force:,} of them by brute force: equal costs, bounds below them; "
        f"{priced:,} stages priced, {plainly_priced:,} by plain search"
    )
    return 0


def of_streams(count: int, seed: int) -> int:
    models = [
        SimulatorCostModel(device("v100-sxm2"), Precision.FP32, engine) for engine in (Engine.PAPER, Engine.GRAPH)
    ]
    schedules = 0
    for number in track(range(count), "problems", disable=not sys.stderr.isatty()):
        draw = np.random.default_rng((seed, number))
        model = models[number % 2]
        network = random_network(int(draw.integers(2**20)), blocks=1, units=int(draw.integers(3, 13)))
        known = random_stream_batch(network, number, count=SCHEDULES, most=6)
        bound_us = stream_bound_us(known.problem, model.launch_work(known.problem))
        least_us = float(model.price_streams(known).latency_us.min())
        schedules += SCHEDULES
        if bound_us > least_us * (1 + 1e-9):
            print(f"problem {number} of seed {seed}: bound {bound_us}, least {least_us}")
            return 1
    print(f"{count:,} problems: the bound is below all of {schedules:,} random schedules")
    return 0


def _problem(draw: np.random.Generator, number: int) -> ScheduleProblem:
    """A random block; units of one merge class read exactly the same units."""
    count = int(draw.integers(1, MOST_UNITS + 1))
    reads = [sorted(set(draw.integers(0, unit, draw.integers(0, 4)).tolist())) if unit else [] for unit in range(count)]
    classes: dict[tuple[int, ...], int] = {}
    merge_class = [classes.setdefault(tuple(own), len(classes)) if draw.random() < 0.5 else -1 for own in reads]
    edges = [(before, unit) for unit, own in enumerate(reads) for before in own]
    return ScheduleProblem.of_edges(count, edges, merge_class, name=str(number))


if __name__ == "__main__":
    typer.run(main)
