"""A CPU on the simulator: threads side by side on cores of their own, behind each other where there are too few."""

from __future__ import annotations

import numpy as np
import pytest
from cpus import cpu

from evidence.validation.engines import compare_prices
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events.program import KernelLibrary
from iossim.backends.simulator.events.run import stage_us
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.kernel_rows import kernel_table
from iossim.backends.simulator.kernel_times import ALONE, ARITHMETIC, DRAM, L2, time_kernels
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.measurements.operator_kinds import parse_description
from iossim.models.load import load
from iossim.prediction.predict import predict
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.search.scheduler import schedule
from iossim.testing.cost_models import least_price_us


def on_cores(cores: int, **parameters: float) -> DeviceProfile:
    return with_values(cpu(sm_count=cores), {"interference": 0.0, **parameters})


def branches(count: int) -> Network:
    """``count`` equal convolutions of one input."""
    b = GraphBuilder("branches")
    x = b.input("x", (1, 64, 28, 28))
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


def test_bounds_hold() -> None:
    network = load("squeezenet")
    model = SimulatorCostModel(on_cores(2, interference=0.2), Precision.FP32)
    generator = np.random.default_rng(0)
    for problem in {p.key: p for p in (ScheduleProblem.of_block(network, b) for b in network.blocks)}.values():
        bounds = model.bounds(problem)
        masks = np.unique(generator.integers(1, problem.full + 1, 60)).astype(np.uint64)
        found = model.price_stages(StageBatch.concurrent(problem, masks))
        for mask, price in zip(masks.tolist(), found.tolist(), strict=True):
            assert price >= least_price_us(bounds, problem.groups(mask))


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
