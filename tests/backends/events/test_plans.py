"""Whole plans: streams, host, events, synchronisations, both engines."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import make_stage, one_block, random_network, random_schedule, sequential_schedule
from small_devices import issue, small_device, work, works

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events import run_plan, run_schedule
from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.program import (
    AwaitDevice,
    Instruction,
    IssueKernel,
    IssueRecord,
    IssueWait,
    KernelLibrary,
    instructions,
)
from iossim.backends.simulator.kernel_work import KernelWork
from iossim.base.errors import OptionError, ScheduleError
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.hardware.load import device
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.nary import Add
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.search.scheduler import schedule

V100 = device("v100-sxm2")
ENGINES = ("paper", "graph")


@settings(max_examples=20)
@given(
    st.lists(st.tuples(works(most_blocks=100), st.sampled_from([0.0, 2.5, 40.0])), min_size=1, max_size=8),
    st.integers(1, 8),
)
def test_one_stream_is_the_sum_of_its_kernels_and_gaps_and_waits_for_its_host(
    issued: list[tuple[KernelWork, float]], sms: int
) -> None:
    profile = small_device(sms)
    program = [issue(kernel, profile, host_us=host_us) for kernel, host_us in issued]
    clock = end = 0.0
    for step in program:
        clock += step.kernel.host_us
        end = max(end, clock) + step.kernel.demand.alone_us
    assert execute(program, profile).latency_us == pytest.approx(end, rel=1e-9)


def test_events_and_synchronisations() -> None:
    profile = small_device(4)
    kernel = work(least_us=10.0, gap_us=1.0)
    left, right = 0, 1
    program: list[Instruction] = [
        issue(kernel, profile, 0),
        IssueRecord(0, left, host_us=0.0, stream_us=2.0),
        IssueWait(0, right, host_us=0.0, stream_us=3.0),
        issue(kernel, profile, 1),
        issue(kernel, profile, 0),
        AwaitDevice(20.0),
        issue(kernel, profile, 1),
    ]
    execution = execute(program, profile)
    # The record holds up its own stream too; 11 + 2 is when the event fires.
    assert [(span.stream, span.start_us) for span in execution.spans] == [(0, 1.0), (0, 14.0), (1, 17.0), (1, 48.0)]
    assert execution.latency_us == 58.0


def test_a_wait_may_be_issued_before_its_event_fires_or_after() -> None:
    profile = small_device(1)
    kernel = work(least_us=10.0)
    for host_us in (0.0, 30.0):
        program: list[Instruction] = [
            issue(kernel, profile, 0),
            IssueRecord(7, 0, 0.0, 0.0),
            IssueWait(7, 1, host_us, 0.0),
            issue(kernel, profile, 1),
        ]
        assert execute(program, profile).spans[1].start_us == max(10.0, host_us)


def four_units() -> Network:
    """a -> b and a -> c, then d reads b and c."""
    b = GraphBuilder("diamond")
    x = b.input("x", (1, 8, 8, 8))
    with b.block("block"):
        a = b.conv(x, 8, name="a")
        left, right = b.conv(a, 8, name="b"), b.conv(a, 8, name="c")
        d = b.add(Add(), left, right, name="d")
    return b.network([d])


def test_forks_and_joins_of_a_graph_are_where_streams_part_and_meet() -> None:
    network = four_units()
    found = one_block(network, make_stage([["a"]]), make_stage([["b"], ["c"]]), make_stage([["d"]]))
    costs = V100.engine
    plan = lower_schedule(found, network, Engine.GRAPH)
    program = instructions(plan, network, KernelLibrary(V100, Engine.GRAPH))
    records = [step.stream_us for step in program if isinstance(step, IssueRecord)]
    waits = [step.stream_us for step in program if isinstance(step, IssueWait)]
    assert records == [costs.fork_us, 0.0]
    assert waits == [0.0, costs.join_us]
    assert all(step.kernel.host_us == 0.0 for step in program if isinstance(step, IssueKernel))


@pytest.mark.parametrize(("name", "apart_us"), [("h100-sxm", 0.19), ("v100-sxm2", 0.0)])
def test_branches_behind_a_fork_start_one_after_another_on_hopper(name: str, apart_us: float) -> None:
    """As the recorded ones do, and as stages and plans are priced: by the same figure of the same table."""
    b = GraphBuilder("branches")
    with b.block("only"):
        x = b.conv(b.input("x", (1, 8, 8, 8)), 8, name="before")
        branches = [b.conv(x, 8, name=f"branch_{index}") for index in range(4)]
    network = b.network(branches)
    model = SimulatorCostModel(device(name), network.precision, Engine.GRAPH)
    found = schedule(network, model, "greedy")
    plan = lower_schedule(found, network, Engine.GRAPH)
    ran = run_plan(plan, network, model.profile, Engine.GRAPH)
    for spans in (model.timeline(network, found), model.plan_spans(network, plan), ran.spans):
        starts = sorted(span.start_us for span in spans if span.unit != "before")
        assert np.diff(starts) == pytest.approx(apart_us)


def test_the_paper_engine_pays_for_synchronisations_and_issue() -> None:
    network = four_units()
    found = one_block(network, make_stage([["a"]]), make_stage([["b"], ["c"]]), make_stage([["d"]]))
    plan = lower_schedule(found, network)
    program = instructions(plan, network, KernelLibrary(V100))
    # Around the stage of two groups, and at the end.
    assert [type(step).__name__ for step in program].count("AwaitDevice") == 3
    kernels = [step.kernel for step in program if isinstance(step, IssueKernel)]
    assert {kernel.host_us for kernel in kernels} <= {
        V100.engine.library_call_us,
        V100.engine.library_kernel_us,
        V100.engine.bare_launch_us,
    }
    spans = run_schedule(network, found, V100).spans
    ends = [max(span.end_us for span in spans if span.stage == stage) for stage in range(3)]
    starts = [min(span.start_us for span in spans if span.stage == stage) for stage in range(3)]
    for end, start in zip(ends, starts[1:], strict=False):
        assert start >= end + V100.engine.synchronise_us


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(12))
def test_random_schedules_of_random_networks(seed: int, engine: str) -> None:
    network = random_network(seed)
    found = random_schedule(network, seed)
    execution = run_schedule(network, found, V100, engine=engine)
    stages = found.stages
    for stage, after in pairwise(range(len(stages))):
        # Stages do not overlap: a synchronise, a join or a shared stream stands between them.
        if spans_after := [span.start_us for span in execution.spans if span.stage == after]:
            assert max((s.end_us for s in execution.spans if s.stage == stage), default=0.0) <= min(spans_after)
    for span in execution.spans:
        names = span.unit.split("+")
        assert set(names) <= set(stages[span.stage].units)
        group = next(i for i, members in enumerate(stages[span.stage].groups) if names[0] in members)
        assert span.stream == group
    again = run_schedule(network, found, V100, engine=engine)
    assert again.spans == execution.spans
    for name in ("time_us", "active_warps", "sms_by_warps", "issue", "l2", "dram", "power"):
        assert np.array_equal(getattr(again, name), getattr(execution, name))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["ios_sample", "squeezenet", "inception_v3"])
def test_a_sequential_network_is_its_kernels_behind_its_host(name: str, engine: str) -> None:
    network = load(name)
    found = schedule(network, SimulatorCostModel(V100, Precision.FP32, Engine(engine)), "sequential")
    library = KernelLibrary(V100, Engine(engine))
    kernels = [kernel for unit in range(len(network.units)) for kernel in library.unit(network, unit)]
    clock = end = 0.0
    for kernel in kernels:
        clock += kernel.host_us
        end = max(end, clock) + kernel.demand.alone_us
    execution = run_schedule(network, found, V100, engine=engine)
    assert execution.latency_us == pytest.approx(end, rel=1e-9)
    # The analytic prices do not let the host run ahead from one stage to the next.
    assert execution.latency_us <= found.latency_us * 1.02 + clock - sum(kernel.host_us for kernel in kernels[1:])


def test_plans_that_are_refused() -> None:
    network, other = four_units(), load("ios_sample")
    plan = lower_schedule(sequential_schedule(network), network)
    with pytest.raises(ScheduleError, match="another graph than 'ios_sample'"):
        run_plan(plan, other, V100)
    with pytest.raises(OptionError, match="unknown engine"):
        run_plan(plan, network, V100, "papers")
