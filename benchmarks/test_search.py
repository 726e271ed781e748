"""The search, pricing by the simulator included: the four networks of the paper on the V100.

    pytest benchmarks/test_search.py

The first round warms up (machine code comes from the disk); the others are timed. Each round starts from a cost model that
has priced nothing, so lowering and pricing are part of the time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from algorithm1 import InterOperatorScheduler
from conftest import NETWORKS
from pytest_benchmark.fixture import BenchmarkFixture

import iossim
from iossim.cost.model import CostModelIdentity, Prices
from iossim.ir.network import Network
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.search.ios import solve
from iossim.search.options import SearchOptions, StageSpace

PRUNED = StageSpace("general", max_group_size=3, max_groups=8)


def search_all(networks: dict[tuple[str, int], Network], batch: int, space: StageSpace) -> float:
    """Latency of all four networks under their best schedules, in us."""
    total_us = 0.0
    for name in NETWORKS:
        model = iossim.cost_model("simulator", "v100-sxm2")
        total_us += iossim.optimize(
            networks[name, batch], None, cost_model=model, options=SearchOptions(space)
        ).latency_us
    return total_us


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("space", [StageSpace(), PRUNED], ids=["unpruned", "r3s8"])
def test_four_networks(
    benchmark: BenchmarkFixture, networks: dict[tuple[str, int], Network], batch: int, space: StageSpace
) -> None:
    benchmark.group = "four networks, V100"
    latency_us = benchmark.pedantic(search_all, (networks, batch, space), rounds=3, iterations=1, warmup_rounds=1)
    benchmark.extra_info["latency_us"] = latency_us


@pytest.mark.parametrize("name", NETWORKS)
def test_one_network(benchmark: BenchmarkFixture, networks: dict[tuple[str, int], Network], name: str) -> None:
    """Unpruned at batch 1: the figures of the README."""
    benchmark.group = "one network, V100, unpruned"

    def search() -> float:
        return iossim.optimize(networks[name, 1], "v100-sxm2").latency_us

    benchmark.extra_info["latency_us"] = benchmark.pedantic(search, rounds=1, iterations=1, warmup_rounds=1)


def transcription(problem: ScheduleProblem) -> float:
    """Algorithm 1 transcribed, with prices of zero cost."""
    return InterOperatorScheduler(problem, lambda ending: (scalar_price(ending), "concurrent"), 3, 8).run()[0]


def ours(problem: ScheduleProblem) -> float:
    """The same space by this project's search, with the same prices and no bounds."""
    options = SearchOptions(StageSpace("paper", 3, 8, merge=False))
    return solve([problem], FreePrices(), options).cost_us


@pytest.mark.parametrize("search", [transcription, ours])
def test_against_a_transcription_of_algorithm_1(
    benchmark: BenchmarkFixture, networks: dict[tuple[str, int], Network], search: object
) -> None:
    """Inception's last block, r=3 s=8; the ratio of the two rows is the gain of the search without bounds."""
    assert callable(search)
    network = networks["inception_v3", 1]
    problem = ScheduleProblem.of_block(network, network.blocks[-2])
    benchmark.group = "Inception V3 mixed_7c, r=3 s=8, free prices"
    cost_us = benchmark.pedantic(search, (problem,), rounds=5, iterations=1, warmup_rounds=1)
    assert cost_us == pytest.approx(transcription(problem))


def scalar_price(mask: int) -> float:
    """A price without structure, cheap to compute."""
    return 1.0 + (mask * 0x9E3779B97F4A7C15 >> 48 & 0xFFFF) / 65536 * mask.bit_count()


def free_prices(masks: Masks) -> Prices:
    """Prices without structure of an array of masks."""
    scrambled = (masks * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)
    return 1.0 + scrambled / 65536 * np.bitwise_count(masks)


class FreePrices:
    """The unstructured prices as a cost model."""

    identity = CostModelIdentity("free")

    def price_stages(self, batch: StageBatch) -> Prices:
        return free_prices(batch.masks)

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return 0.0

    def bounds(self, problem: ScheduleProblem) -> None:
        return None


def test_peak_memory() -> None:
    """Prints the peak of the unpruned search above the idle process, in MB (see it with ``-s``)."""
    script = Path(__file__).with_name("peak_memory.py")
    printed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    print(f"\n{printed}")
    assert "MB" in printed
