"""Kernels side by side share what SMs and the device have; on a CPU they disturb each other besides."""

from __future__ import annotations

import json

import numpy as np
import pytest
from other_plans import plan_from_json
from small_devices import issue, small_cpu, small_device, work

import iossim
from iossim import api
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.multiprocessors import MultiprocessorClass
from iossim.backends.simulator.events.program import IssuedKernel, IssueKernel, KernelLibrary
from iossim.backends.simulator.events.run import stage_us
from iossim.backends.simulator.kernel_work import KernelWork
from iossim.execution.backends import create_backend
from iossim.execution.engine import Engine
from iossim.execution.measured_run import plan_for
from iossim.execution.plan_json import plan_to_json
from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.report.traces import perfetto_trace
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.tasks.explain import explain


def ends_us(profile: DeviceProfile, *kernels: KernelWork) -> list[float]:
    """When each kernel ends, all ready at once, each in a stream of its own."""
    spans = execute([issue(kernel, profile, stream) for stream, kernel in enumerate(kernels)], profile).spans
    return [span.end_us for span in sorted(spans, key=lambda span: span.stream)]


def test_blocks_of_one_kernel_do_not_disturb_each_other() -> None:
    cpu = small_cpu(2, interference=1.0)
    assert ends_us(
        cpu, work(blocks=2, issue_us=8.0, dram_us=9.0, least_us=10.0, registers_per_thread=0)
    ) == pytest.approx([10.0])


def test_what_l2_has_no_room_for_goes_to_dram() -> None:
    profile = small_device(4)
    room = profile.parameters.l2_resident_fraction * profile.datasheet.l2_bytes.value
    fits = work(least_us=10.0, dram_us=4.0, kept_us=6.0, footprint_bytes=0.7 * room)
    assert ends_us(profile, fits) == pytest.approx([10.0])
    # Two touch 1.4 times what L2 keeps: all of it is lost, and each asks for all of DRAM.
    assert ends_us(profile, fits, fits) == pytest.approx([20.0, 20.0])
    small = work(least_us=10.0, dram_us=4.0, kept_us=6.0, footprint_bytes=0.35 * room)
    assert ends_us(profile, small, small) == pytest.approx([10.0, 10.0])


def test_a_kernel_runs_on_the_sms_that_it_may_use_and_draws_what_these_reach() -> None:
    profile = small_device(4)
    half = work(blocks=8, issue_us=1.0, least_us=1.0, dram_us=3.0, reach=0.6)
    issued = [
        IssueKernel(IssuedKernel(BlockDemand.of(half, profile, 2), 0.0), stream, "", 0, sms)
        for stream, sms in enumerate([range(0, 2), range(2, 4)])
    ]
    seen: list[set[int]] = []

    def look(now: float, classes: list[MultiprocessorClass]) -> None:
        seen.append({sm for found in classes for sm in found.sms for run in found.residents if run.number == 1})

    # Alone 3 us of DRAM at 0.6 of its bandwidth; two ask for 1.2.
    assert execute(issued[1:], profile).latency_us == pytest.approx(5.0)
    assert execute(issued, profile, observer=look).latency_us == pytest.approx(6.0)
    assert set().union(*seen) == {2, 3}
    assert execute(issued, profile, grouped=False).latency_us == pytest.approx(6.0)


def test_neighbours_of_a_core_disturb_it_at_dram() -> None:
    user = work(least_us=10.0, dram_us=4.5, registers_per_thread=0)
    # 0.9 of DRAM counts as 1.125, and 0.45 by itself as 0.45.
    assert ends_us(small_cpu(2, 0.25), user, user) == pytest.approx([11.25, 11.25])
    assert ends_us(small_cpu(2, 0.25), user) == pytest.approx([10.0])
    # Half a kernel's time alone: the disturbance ends with the one that causes it.
    long = work(least_us=20.0, dram_us=9.0, registers_per_thread=0)
    assert ends_us(small_cpu(2, 0.25), user, long) == pytest.approx([11.25, 21.25])


def test_what_a_gpus_parameters_say_of_interference_is_not_used() -> None:
    kernel = work(least_us=10.0, dram_us=4.5)
    crowded = with_values(small_device(2), {"interference": 0.5})
    assert ends_us(crowded, kernel, kernel) == pytest.approx([10.0, 10.0])


V100 = device("v100-sxm2")


def test_stages_take_what_they_are_priced_at() -> None:
    """Kernels of groups meet at no SM; what L2 keeps, and when DRAM and power are asked for, the price does not follow."""
    network = load("squeezenet", batch=4)
    prices = SimulatorCostModel(V100, Precision.FP32, Engine.PARTITION)
    library, divided = KernelLibrary(V100, Engine.PARTITION), prices.divided(network)
    ratios = []
    for block in network.blocks[1:4]:
        problem = ScheduleProblem.of_block(network, block)
        masks = [mask for mask in range(1, problem.full + 1) if len(problem.groups(mask)) > 1]
        priced_us = prices.price_stages(StageBatch.concurrent(problem, np.array(masks, dtype=np.uint64)))
        run_us = [stage_us(problem, mask, network, library, divided) for mask in masks]
        ratios += (np.array(run_us) / priced_us).tolist()
    assert min(ratios) > 0.999
    assert np.median(ratios) < 1.02
    assert max(ratios) < 1.2


def divided_parts(parts: set[range | None]) -> list[range]:
    return sorted((part for part in parts if part is not None), key=lambda part: part.start)


def test_a_schedule_says_its_sms_in_plan_trace_and_explanation() -> None:
    network = load("squeezenet")
    best = api.optimize(network, V100, engine=Engine.PARTITION, scheduler="ios-parallel")
    wide = [number for number, stage in enumerate(best.stages) if stage.concurrent]
    assert wide
    execution = iossim.simulate_events(best, V100, network=network)
    assert execution.latency_us == pytest.approx(best.latency_us, rel=0.02)
    of_stage = {
        stage: {span.sms for span in execution.spans if span.stage == stage} for stage in range(len(best.stages))
    }
    for stage, parts in of_stage.items():
        if stage not in wide:
            assert parts == {None}
            continue
        assert len(parts) == len(best.stages[stage].groups)
        numbers = [sm for part in parts if part is not None for sm in part]
        assert len(numbers) == len(set(numbers)) <= 80
    trace = json.loads(perfetto_trace(network, best, execution.spans))
    told = {event["args"]["sms"] for event in trace["traceEvents"] if "sms" in event.get("args", {})}
    assert told == {
        f"{part.start}-{part.stop - 1}" for parts in of_stage.values() for part in parts if part is not None
    }
    prices = SimulatorCostModel(V100, Precision.FP32, Engine.PARTITION)
    for one in explain(best, network, prices, wide).stages:
        assert one.facts is not None
        assert one.facts.sms == tuple(len(part) for part in divided_parts(of_stage[one.number]))
        assert sum(one.facts.limits_us.values()) == pytest.approx(one.facts.duration_us)


def test_the_backend_runs_the_same_division() -> None:
    network = load("squeezenet")
    best = api.optimize(network, V100, engine=Engine.PARTITION, scheduler="ios-parallel")
    backend = create_backend("simulator", engine=Engine.PARTITION, options={"device": "v100-sxm2"})
    plan = plan_for(best, network, backend)
    assert any(launch.sms is not None for launch in plan.launches)
    assert plan_from_json(plan_to_json(plan)).commands == plan.commands
    undivided = plan_for(best, network, create_backend("numpy_reference", engine=Engine.PARTITION))
    assert all(launch.sms is None for launch in undivided.launches)


def test_a_division_overlaps_nowhere() -> None:
    network = load("squeezenet")
    divided = SimulatorCostModel(V100, Precision.FP32, Engine.PARTITION).divided(network)
    problem = ScheduleProblem.of_block(network, network.blocks[2])
    groups = [[problem.units[1]], [problem.units[2]]]
    one, other = divided(groups, {})
    assert set(one).isdisjoint(other)
