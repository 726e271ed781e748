"""One limit for activations and workspaces: against every choice whose arena fits."""

from __future__ import annotations

import random
from functools import cache
from itertools import product

import pytest

import iossim
from iossim import api
from iossim.base.errors import OptionError
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.execution.plan import Plan
from iossim.ir.ops.conv import Conv
from iossim.microbatching.division import BenchmarkRow, Configuration, front
from iossim.microbatching.kernels_under_limits import Memory, with_workspaces
from iossim.search.scheduler import schedule

Kernels = dict[str, list[str]]
Fronts = dict[str, tuple[Configuration, ...]]


@cache
def planned() -> tuple[Plan, Kernels]:
    """The network of the thesis' example, and its convolutions by unit."""
    network = iossim.load("ios_sample")
    found = schedule(network, api.cost_model("simulator", "v100-sxm2"), "sequential")
    kernels = {
        unit.name: [
            network.graph.nodes[node].name for node in unit.nodes if isinstance(network.graph.nodes[node].op, Conv)
        ]
        for unit in network.units
    }
    return lower_schedule(found, network, in_place=True), kernels


def random_fronts(rng: random.Random, kernels: Kernels) -> Fronts:
    """A few configurations of each kernel, of up to as much as the activations have; one needs nothing."""
    found = {}
    for name in (kernel for own in kernels.values() for kernel in own):
        rows = [BenchmarkRow(4, f"a{n}", rng.uniform(1, 20), rng.randint(1, 3_000_000)) for n in range(4)]
        found[name] = front([*rows, BenchmarkRow(1, "none", 30.0, 0)], 4)
    return found


def best_us(fronts: Fronts, plan: Plan, kernels: Kernels, limit: int) -> float:
    """The fastest of all choices whose arena fits."""
    ways = sorted(product(*fronts.values()), key=lambda way: sum(one.time_us for one in way))
    for way in ways:
        chosen = dict(zip(fronts, way, strict=True))
        if plan_memory(with_workspaces(plan, kernels, chosen)).arena_bytes <= limit:
            return sum(one.time_us for one in way)
    raise AssertionError("some choice fits")


@pytest.mark.parametrize("seed", range(4))
def test_against_every_choice_whose_arena_fits(seed: int) -> None:
    rng = random.Random(seed)
    plan, kernels = planned()
    fronts = random_fronts(rng, kernels)
    limit = plan_memory(plan).arena_bytes + rng.randint(0, 2_000_000)
    found = Memory(plan, kernels, limit).divided(fronts)
    whole = plan_memory(with_workspaces(plan, kernels, found.chosen))
    check_happens_before(whole)
    assert whole.arena_bytes == found.arena_bytes <= limit
    time_us = sum(one.time_us for one in found.chosen.values())
    assert time_us == pytest.approx(best_us(fronts, plan, kernels, limit), rel=1e-12)
    assert found.lower_bound_us == pytest.approx(time_us, rel=1e-12)


def test_too_little_says_what_would_do() -> None:
    plan, kernels = planned()
    fronts = random_fronts(random.Random(0), kernels)
    with pytest.raises(OptionError, match=r"activations and workspaces need \d+ bytes; give") as refused:
        Memory(plan, kernels, 1000).divided(fronts)
    enough = int(str(refused.value).rpartition("give ")[2].partition("B")[0])
    assert Memory(plan, kernels, enough).divided(fronts).arena_bytes <= enough
