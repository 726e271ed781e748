"""What holds a stage up: the parts of its time add up, and each is found where it is made to dominate."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import make_stage

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.cost.facts import Limit, StageFacts
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.hardware.names import device_names
from iossim.hardware.override import overridden
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.models.random_graphs import seeded_network
from iossim.search.scheduler import schedule


def facts_of(network: Network, name: str, scheduler: str = "ios-both", **changes: float) -> list[StageFacts]:
    """The facts of all stages of a network's schedule; their parts add up to the stages' prices."""
    model = SimulatorCostModel(overridden(device(name), changes), network.precision)
    found = []
    for stage in schedule(network, model, scheduler).stages:
        facts = model.stage_facts(network, stage)
        assert facts.duration_us == pytest.approx(stage.latency_us, rel=1e-9)
        assert sum(facts.limits_us.values()) == pytest.approx(facts.duration_us, rel=1e-6)
        assert all(us > 0 for us in facts.limits_us.values())
        for share in (facts.occupancy, facts.arithmetic, facts.dram):
            assert 0 <= share <= 1
        for kernel in facts.kernels:
            assert sum(kernel.limits_us.values()) == pytest.approx(kernel.alone_us, rel=1e-9)
            assert kernel.end_us <= facts.duration_us * (1 + 1e-9)
        found.append(facts)
    return found


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 999), st.sampled_from(["sequential", "greedy", "ios-both"]))
def test_the_parts_of_every_stage_add_up(seed: int, scheduler: str) -> None:
    facts_of(seeded_network(seed), "v100-sxm2", scheduler)


@pytest.mark.parametrize("name", [name for name in device_names() if name != "cpu"])
def test_every_device_that_ships(name: str) -> None:
    (first, *_) = facts_of(load("ios_sample"), name)
    assert first.bound is not None


def test_a_slow_host_holds_up_all() -> None:
    for facts in facts_of(load("ios_sample"), "v100-sxm2", library_call_us=5000, bare_launch_us=5000):
        assert facts.bound is Limit.HOST
        assert facts.limits_us[Limit.HOST] > 0.9 * facts.duration_us
        assert facts.host_us <= facts.duration_us * (1 + 1e-9)


def test_a_slow_memory_holds_up_all_that_reads_weights() -> None:
    first, *_ = facts_of(load("ios_sample"), "v100-sxm2", "sequential", dram_gbps=1)
    assert first.bound is Limit.DRAM
    assert first.dram > 0.8


def test_arithmetic_holds_up_a_large_batch_and_empty_sms_a_small_one() -> None:
    small = facts_of(load("ios_sample"), "v100-sxm2", "sequential")[0]
    large = facts_of(load("ios_sample", batch=64), "v100-sxm2", "sequential")[0]
    assert small.bound is Limit.UNFILLED
    assert large.bound in (Limit.ARITHMETIC, Limit.POWER)
    assert large.arithmetic > small.arithmetic
    assert large.occupancy > small.occupancy
    heaviest = [max(facts.kernels, key=lambda kernel: kernel.alone_us) for facts in (small, large)]
    assert heaviest[0].waves < 1 < heaviest[1].waves


def test_a_graph_leaves_nothing_for_the_host() -> None:
    network = load("ios_sample")
    model = SimulatorCostModel(device("v100-sxm2"), Precision.FP32, Engine.GRAPH)
    facts = model.stage_facts(network, make_stage([[unit.name for unit in network.units]]))
    assert facts.host_us == 0
    assert Limit.HOST not in facts.limits_us


def test_side_by_side_kernels_are_in_each_others_way() -> None:
    network = load("ios_sample", batch=64)
    model = SimulatorCostModel(device("v100-sxm2"), Precision.FP32)
    side_by_side = [[unit.name] for number, unit in enumerate(network.units) if not network.predecessors[number]]
    facts = model.stage_facts(network, make_stage(side_by_side))
    assert len({kernel.stream for kernel in facts.kernels}) == 3
    # Each fills the device: the last waits for the others' slots, and shares what their last waves leave.
    waited_us = facts.limits_us[Limit.QUEUE] + facts.limits_us[Limit.SHARING]
    assert waited_us > max(us for limit, us in facts.limits_us.items() if limit not in (Limit.QUEUE, Limit.SHARING))
    alone = model.stage_facts(network, make_stage(side_by_side[:1]))
    assert Limit.SHARING not in alone.limits_us
    assert facts.chain_us >= alone.chain_us
