"""A divided device, block by block: groups keep to their SMs, and take what the partition engine's prices say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from plan_reading import plan_from_json

import iossim
from iossim import api
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events.program import KernelLibrary
from iossim.backends.simulator.events.run import stage_us
from iossim.execution.backends import create_backend
from iossim.execution.engine import Engine
from iossim.execution.measured_run import plan_for
from iossim.execution.plan_json import plan_to_json
from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.report.traces import perfetto_trace
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.tasks.explain import explain

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
