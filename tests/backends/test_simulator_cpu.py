"""The simulator on a CPU's threads, on what is in place, and what holds a stage up."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cpus import cpu
from graph_builders import builder_with
from hypothesis import given, settings
from hypothesis import strategies as st
from operators import parse_description
from random_networks import make_stage, random_network, random_schedule

import iossim
from evidence.validation.engines import compare_prices
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events import run_plan
from iossim.backends.simulator.events.program import KernelLibrary
from iossim.backends.simulator.events.run import stage_us
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.kernel_rows import kernel_table
from iossim.backends.simulator.kernel_times import ALONE, ARITHMETIC, DRAM, L2, time_kernels
from iossim.cost.facts import Limit, StageFacts
from iossim.execution.engine import Engine
from iossim.execution.in_place import in_place_buffers
from iossim.execution.lower import lower_schedule
from iossim.hardware.load import device
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.names import device_names
from iossim.hardware.override import overridden
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.ir.network import Network
from iossim.ir.ops.pool import MaxPool
from iossim.ir.ops.slice import Concat
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.models.random_graphs import seeded_network
from iossim.prediction.predict import predict
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.search.assemble import reprice
from iossim.search.scheduler import schedule


def on_cores(cores: int, **parameters: float) -> DeviceProfile:
    return with_values(cpu(sm_count=cores), {"interference": 0.0, **parameters})


def branches(count: int) -> Network:
    """``count`` equal convolutions of one input."""
    b, x = builder_with("branches", x=(1, 64, 28, 28))
    outputs = []
    with b.block("all"):
        for index in range(count):
            with b.unit(f"unit{index}", "Conv"):
                outputs.append(b.conv(x, 64, 3, padding=1))
    return b.network(outputs)


def prices(profile: DeviceProfile, count: int) -> tuple[float, float]:
    """A stage of as many convolutions side by side, by both simulators."""
    network = branches(count)
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    model = SimulatorCostModel(profile, Precision.FP32)
    (analytic,) = model.price_stages(StageBatch.concurrent(problem, np.array([problem.full], dtype=np.uint64)))
    return float(analytic), stage_us(problem, problem.full, network, KernelLibrary(profile))


@pytest.mark.parametrize(
    ("cores", "count", "rounds"), [(1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 3, 2), (2, 4, 2), (4, 3, 1), (4, 5, 2)]
)
def test_a_core_runs_one_thread_at_a_time(cores: int, count: int, rounds: int) -> None:
    profile = on_cores(cores)
    alone, _ = prices(profile, 1)
    gap = profile.parameters.kernel_gap_us
    analytic, events = prices(profile, count)
    # Whether the next call's overhead waits for a core too, the two see differently.
    assert analytic == pytest.approx(rounds * alone, abs=gap)
    assert events == pytest.approx(rounds * alone, abs=rounds * gap)


def test_threads_on_cores_of_their_own_disturb_each_other() -> None:
    alone, _ = prices(on_cores(2), 1)
    analytic, events = prices(on_cores(2, interference=0.25), 2)
    assert analytic == pytest.approx(1.25 * alone)
    assert events == pytest.approx(1.25 * alone, rel=0.05)


def test_both_simulators_agree_on_a_network() -> None:
    found = compare_prices(load("squeezenet"), on_cores(2, interference=0.1))
    assert found.total > 50
    assert found.percentile_95 < 0.03


def test_a_schedule_uses_the_cores() -> None:
    network = load("inception_v3")
    latency_us = [
        schedule(network, SimulatorCostModel(on_cores(cores), Precision.FP32), "ios-parallel").latency_us
        for cores in (1, 2, 4)
    ]
    assert latency_us[0] > 1.3 * latency_us[1] > 1.3 * latency_us[2]


def test_the_terms_of_a_product() -> None:
    """Two cores of 96 GFLOP/s; half of that, and 12 bytes a clock to the caches."""
    given = {"gemm_efficiency": 0.5, "l2_bytes_per_clock_per_sm": 12.0, "overlap_norm": 1.0, "kernel_gap_us": 2.0}
    profile = on_cores(2, beyond_core_cache_factor=0.5, **given)
    operator = parse_description("linear batch=1 m=16 n=256 k=512")
    (kernel,) = step_candidates(operator.step(), cpu())[0].kernels
    (times,) = time_kernels(kernel_table(profile.limits, [kernel]), KernelModel(profile).rates)
    assert times[ARITHMETIC] == pytest.approx(2 * 16 * 256 * 512 / 48e3)
    moved = 4 * (16 * 256 + 256 * 512 + 16 * 512)
    assert times[L2] == pytest.approx(moved / 36e3)
    assert times[DRAM] == 0
    assert times[ALONE] == pytest.approx(2.0 + times[ARITHMETIC] + times[L2])
    # Operands of one and a quarter times the core's own cache and more come at half the rate.
    small = with_values(
        cpu(core_cache_bytes=moved // 2), {"interference": 0.0, **given, "beyond_core_cache_factor": 0.5}
    )
    (slower,) = time_kernels(kernel_table(small.limits, [kernel]), KernelModel(small).rates)
    assert slower[L2] == pytest.approx(2 * moved / 36e3)


def test_copies_beyond_the_last_cache_go_through_memory() -> None:
    profile = on_cores(2, l2_resident_fraction=1.0)
    inside, beyond = (
        predict([parse_description(f"concat rows=1024 cols={cols}")], profile)[0].gpu_time_us for cols in (4096, 65536)
    )
    assert beyond > 16 * inside


def unit_prices(network: Network, spec: str, engine: str = "paper") -> dict[str, float]:
    """Each unit alone, microseconds."""
    prices = iossim.cost_model(spec, "v100-sxm2", network.precision, engine)
    found: dict[str, float] = {}
    for block in network.blocks:
        problem = ScheduleProblem.of_block(network, block)
        masks = np.array([1 << unit for unit in range(len(problem))], dtype=np.uint64)
        found |= dict(zip(problem.unit_names, prices.price_stages(StageBatch.concurrent(problem, masks)), strict=True))
    return found


def test_concats_in_place_cost_nothing_and_all_else_what_it_did() -> None:
    network = iossim.load("squeezenet")
    launched, in_place = unit_prices(network, "simulator"), unit_prices(network, "simulator:in-place")
    concats = {name for name in launched if name.endswith(".concat")}
    assert len(concats) == 8
    for name, price in launched.items():
        assert price > 0
        assert in_place[name] == (0.0 if name in concats else price)


def test_values_lie_where_the_engine_has_them_unless_another_place_is_asked_for() -> None:
    """A captured graph is what inference compilers and our backends make; the paper's engine launches its concats."""
    network = iossim.load("squeezenet")
    for engine, own, other in (("graph", "in-place", "copies"), ("paper", "copies", "in-place")):
        found = {spec: unit_prices(network, f"simulator{spec}", engine) for spec in ("", f":{own}", f":{other}")}
        assert found[""] == found[f":{own}"] != found[f":{other}"]
    moved = iossim.cost_model("simulator", "v100-sxm2", engine="graph").at(engine=Engine.PAPER)  # type: ignore[attr-defined]
    assert (moved.identity, moved.in_place) == (iossim.cost_model("simulator", "v100-sxm2").identity, False)


def test_backends_keep_images_in_tf32_channels_first_and_all_else_as_compilers_do() -> None:
    """By stages and event by event. An H200 took 281 us in TF32."""
    us = dict[tuple[str, str], float]()
    for dtype, spec in product(("fp32", "tf32", "bf16"), ("in-place", "backend")):
        network = iossim.load("squeezenet", dtype=dtype)
        prices = iossim.cost_model(f"simulator:{spec}", "h200-sxm", dtype, "graph")
        assert isinstance(prices, SimulatorCostModel)
        found = iossim.optimize(network, "h200-sxm", cost_model=prices, scheduler="sequential")
        us[dtype, spec] = found.latency_us
        ran_us = prices.simulated_plan_us(network, lower_schedule(found, network, "graph", in_place=True))
        assert ran_us == pytest.approx(found.latency_us, rel=0.02)
        has_remark = any("tf32 lie channels last" in remark for remark in prices.remarks(network))
        assert has_remark == ((dtype, spec) == ("tf32", "in-place"))
    assert all(us[dtype, "in-place"] == us[dtype, "backend"] for dtype in ("fp32", "bf16"))
    assert us["tf32", "in-place"] < 0.7 * 281 < 0.85 * 281 < us["tf32", "backend"] < 281


def fire(dtype: Precision, *order: str) -> Network:
    """Two convolutions that merge, inside a concat in that order, with a pool before or behind them."""
    b, x = builder_with("fire", dtype, x=(1, 64, 28, 28))
    with b.block("only"):
        made = {"small": b.conv(x, 64, name="small"), "large": b.conv(x, 64, kernel=3, padding=1, name="large")}
        made["pool"] = b.add(MaxPool((3, 3), (1, 1), (1, 1, 1, 1)), x, name="pool")
        whole = b.add(Concat(), *(made[name] for name in order), name="whole")
    return b.network([whole])


@pytest.mark.parametrize("engine", ["paper", "graph"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("order", "copies"),
    [
        (("small", "large", "pool"), {"fp32": 0, "bf16": 1}),  # of channels that lie last a slice has gaps
        (("small", "pool", "large"), {"fp32": 2, "bf16": 2}),
    ],
)
def test_what_a_convolution_cannot_write_in_place_is_copied_behind_it(
    order: tuple[str, ...], copies: dict[str, int], dtype: str, engine: str
) -> None:
    """Alone and merged, by the prices of stages, of plans, and event by event."""
    network = fire(Precision(dtype), *order)
    prices = iossim.cost_model("simulator:in-place", "h100-sxm", dtype, engine)
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    units = {unit.name: index for index, unit in enumerate(network.units)}
    merged = prices.units.price_merged(network, [units["small"], units["large"]])  # type: ignore[attr-defined]
    kernels = {name: len(prices.units.price(problem)[at].names) for name, at in units.items()}  # type: ignore[attr-defined]
    alone = {"small": 1, "large": 1, "pool": 1, "whole": 0}
    gaps = {"small": 1, "large": 1} if dtype == "bf16" else {}
    assert kernels == {name: count + gaps.get(name, 0) for name, count in alone.items()}
    assert len(merged.names) == 1 + copies[dtype]
    found = iossim.optimize(network, "h100-sxm", cost_model=prices, scheduler="ios-merge")
    plans = [lower_schedule(found, network, engine, in_place=in_place) for in_place in (False, True)]
    ran = [run_plan(plan, network, device("h100-sxm"), engine, in_place=True).spans for plan in plans]
    assert len(ran[0]) == len(ran[1]) == len(prices.timeline(network, found))  # type: ignore[attr-defined]


def test_what_is_copied_is_priced_as_a_copy() -> None:
    """Two equal concats, one of values that are made, one of the network's input: equal units that are not equal work."""
    b, x = builder_with("two concats", x=(1, 64, 56, 56))
    with b.block("only"):
        left, right = b.conv(x, 64, name="left"), b.conv(x, 64, name="right")
        made, copied = b.add(Concat(), left, right, name="made"), b.add(Concat(), x, x, name="copied")
    network = b.network([made, copied])
    prices = unit_prices(network, "simulator:in-place")
    assert prices["made"] == 0.0
    assert prices["copied"] == unit_prices(network, "simulator")["copied"] > 0.0


@pytest.mark.parametrize("seed", range(8))
def test_a_schedule_is_priced_as_its_plan_in_place_runs(seed: int) -> None:
    """One stream: the prices add up to the event-driven engine's time, but for what the host's overlap hides."""
    network = random_network(seed, movers=True)
    profile = device("v100-sxm2")
    prices = SimulatorCostModel(profile, network.precision, in_place=True)
    chosen = random_schedule(network, seed, merge=False)
    moves = in_place_buffers(network).moves
    names = {span.unit for span in prices.timeline(network, reprice(chosen, network, prices))}
    plan = lower_schedule(chosen, network, in_place=True)
    assert names == {span.unit for span in run_plan(plan, network, profile).spans}
    free = {network.units[unit].name for unit, copies in moves.items() if not copies}
    assert not names & free


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


def test_few_blocks_on_hopper_wait_for_their_own_steps_and_first_layers_run_on_cuda_cores() -> None:
    network = load("squeezenet", dtype="bf16")
    model = SimulatorCostModel(device("h100-sxm"), Precision.BF16)
    first, window = (model.stage_facts(network, make_stage([[name]])) for name in ("conv1", "fire8.expand3x3"))
    assert first.bound is Limit.CUDA_CORES
    limits_us = window.limits_us
    (kernel,) = window.kernels
    assert kernel.blocks < 132
    assert kernel.resident_blocks_per_sm > 1
    assert limits_us[Limit.LATENCY] > limits_us[Limit.ARITHMETIC] > 0
    # Were its steps spread over all SMs and hidden behind others, it would compute as much, in this part of the time.
    assert window.arithmetic < limits_us[Limit.ARITHMETIC] / window.duration_us < kernel.blocks / 132
    assert sum(limits_us.values()) == pytest.approx(window.duration_us)


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
