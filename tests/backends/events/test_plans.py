"""Where blocks go, kernels alone as the kernel model prices them, and whole plans: streams, host, events, both engines."""

import csv
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from graph_builders import builder_with
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_networks import make_stage, one_block, random_network, random_schedule, sequential_schedule
from small_devices import issue, small_device, with_facts, work, works

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events import run_plan, run_schedule
from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.footprint import block_footprint, empty_multiprocessor
from iossim.backends.simulator.events.multiprocessors import MultiprocessorClass, scheduling_order
from iossim.backends.simulator.events.program import (
    AwaitDevice,
    Instruction,
    IssueKernel,
    IssueRecord,
    IssueWait,
    KernelLibrary,
    instructions,
)
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.kernel_work import KernelWork, kernel_work
from iossim.base.errors import OptionError, ScheduleError
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.hardware.compute_capability import LIMITS, MultiprocessorLimits
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Candidate, Kernel, resident_blocks
from iossim.hardware.lowering.unit import lower_unit
from iossim.hardware.profile import DeviceProfile, Fact
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
    b, x = builder_with("diamond", x=(1, 8, 8, 8))
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


@pytest.mark.parametrize(
    ("name", "apart_us", "windows"),
    [("h100-sxm", 0.19, [1] * 4), ("h100-sxm", 0.19 + 1.0, [1, 3]), ("v100-sxm2", 0.0, [1] * 4)],
)
def test_branches_behind_a_fork_start_one_after_another_on_hopper(
    name: str, apart_us: float, windows: list[int]
) -> None:
    """As the recorded ones do, and as stages and plans are priced: by the same figure of the same table."""
    b = GraphBuilder("branches", Precision.FP16)
    with b.block("only"):
        x = b.conv(b.input("x", (1, 64, 14, 14)), 64, name="before")
        branches = [b.conv(x, 32, window, padding=window // 2, name=f"branch_{i}") for i, window in enumerate(windows)]
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


def with_clusters(clusters: list[int]) -> DeviceProfile:
    profile = with_facts(device("rtx-4090"), sm_count=sum(clusters))
    sheet = profile.datasheet.model_copy(update={"sms_per_gpc": Fact[list[int]](value=clusters, source="datasheet")})
    return profile.model_copy(update={"datasheet": sheet})


#: A device with the clusters of an RTX 5090, by the numbers of their SMs.
RTX_5090 = with_clusters([22] * 7 + [16])


def occupied(kernels: list[int], profile: DeviceProfile) -> list[int]:
    """The SMs on which kernels of so many blocks, one after another and side by side, have blocks: of the last."""
    seen: list[set[int]] = []

    def look(now: float, classes: list[MultiprocessorClass]) -> None:
        last = f"kernel {len(kernels) - 1}"
        seen.append({sm for c in classes for sm in c.sms if any(r.demand.work.name == last for r in c.residents)})

    issued = [
        issue(work(f"kernel {stream}", blocks=blocks, threads_per_block=128, least_us=100.0), profile, stream, 1.0)
        for stream, blocks in enumerate(kernels)
    ]
    execute(issued, profile, observer=look)
    return sorted(max(seen, key=len))


def test_clusters_take_turns() -> None:
    profile = with_clusters([6, 2, 4])
    order = scheduling_order(profile)
    assert sorted(range(12), key=order.__getitem__) == [0, 1, 2, 3, 8, 9, 4, 5, 6, 7, 10, 11]
    assert occupied([5], profile) == [0, 1, 2, 3, 8]
    # Where nobody says what the clusters are, by number.
    assert scheduling_order(small_device(4)) == (0, 1, 2, 3)


def test_blocks_go_where_an_rtx_5090_put_them(shared: Path) -> None:
    with (shared / "data/concurrency/rtx5090_block_placement.csv").open() as file:
        rows = list(csv.DictReader(file))
    by_kernel: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: int(row["block_order_in_file"])):
        by_kernel.setdefault(row["kernel"], []).append(int(row["sm_id"]))
    order = scheduling_order(RTX_5090)
    predicted = sorted(range(170), key=order.__getitem__)
    found = [sum(a == b for a, b in zip(predicted, sms, strict=True)) for sms in by_kernel.values()]
    by_number = [sum(a == b for a, b in zip(range(170), sms, strict=True)) for sms in by_kernel.values()]
    # By number 6 of 170 are right, by chance 1.
    assert (found, by_number) == ([170, 170], [6, 6])
    for sms in by_kernel.values():
        for blocks in (1, 13, 57, 58, 101):
            assert occupied([blocks], RTX_5090) == sorted(sms[:blocks])
            # So does the second kernel, where the first has a block on each SM.
            assert occupied([170, blocks], RTX_5090) == sorted(sms[:blocks])


def test_clusters_lie_within_a_gpc() -> None:
    """Two kernels of 24 blocks that need whole SMs, on 48: in clusters of eight a GPC of 18 has room for two."""

    def us(cluster: int, gpcs: list[int]) -> float:
        profile = with_clusters(gpcs)
        kernel = replace(work("kernel", blocks=24, threads_per_block=1024, least_us=100.0), cluster=cluster)
        return execute([issue(kernel, profile, stream, 0.0) for stream in range(2)], profile).latency_us

    assert us(1, [18, 18, 12]) == pytest.approx(100.0, rel=0.05)
    assert us(8, [18, 18, 12]) == pytest.approx(200.0, rel=0.05)
    # GPCs that hold no such cluster are taken for unknown.
    assert us(8, [6] * 8) == us(1, [6] * 8)
    assert with_clusters([6] * 8).sms_for_clusters(8) == 48


limits_of_any = st.sampled_from(sorted(LIMITS)).map(LIMITS.__getitem__)
needs = st.tuples(st.integers(1, 1024), st.integers(0, 255), st.integers(0, 100_000))
Needs = tuple[int, int, int]


@given(limits_of_any, needs)
def test_a_kernel_alone_has_the_blocks_of_the_occupancy_calculator(limits: MultiprocessorLimits, block: Needs) -> None:
    footprint = block_footprint(limits, *block)
    resident = resident_blocks(limits, *block)
    assert (footprint is None) == (resident == 0)
    if footprint is not None:
        assert empty_multiprocessor(limits).room(footprint) == resident


@given(limits_of_any, st.lists(needs, min_size=1, max_size=12))
def test_each_block_takes_room_for_one(limits: MultiprocessorLimits, blocks: list[Needs]) -> None:
    """That blocks never exceed a limit together is seen at every instant in ``test_invariants``."""
    free = empty_multiprocessor(limits)
    for block in blocks:
        footprint = block_footprint(limits, *block)
        if footprint is not None and free.room(footprint):
            left = free.minus(footprint, 1)
            assert left.room(footprint) == free.room(footprint) - 1
            assert left.minus(footprint, -1) == free
            free = left


def network_kernels() -> list[Kernel]:
    """Kernels of convolutions, pooling and concats, small and large; every candidate, not only the fastest."""
    kernels: dict[Kernel, None] = {}
    for name, batch in (("squeezenet", 1), ("inception_v3", 8)):
        network = load(name, batch=batch)
        for unit in network.units[::3]:
            for candidates in lower_unit(network, unit, V100):
                for candidate in candidates:
                    assert isinstance(candidate, Candidate)
                    kernels.update(dict.fromkeys(candidate.kernels))
    return list(kernels)


KERNELS = network_kernels()


def alone_us(work: KernelWork, profile: DeviceProfile) -> float:
    return execute([issue(work, profile)], profile).latency_us


@settings(max_examples=20)
@given(works(most_blocks=2_000), st.integers(1, 12))
def test_alone_it_takes_the_longest_of_its_waves_dram_and_power(work: KernelWork, sms: int) -> None:
    profile = small_device(sms)
    demand = BlockDemand.of(work, profile)
    assert alone_us(work, profile) == pytest.approx(demand.alone_us, rel=1e-9)
    dealt_us = [
        demand.early_blocks * early_us + demand.last_blocks * last_us
        for early_us, last_us in zip(demand.early_us, demand.last_us, strict=True)
    ]
    assert dealt_us == pytest.approx([work.dram_us, work.power_us, work.l2_device_us, work.kept_us, 1.0], rel=1e-9)
    assert demand.early_blocks + demand.last_blocks == work.blocks


@settings(max_examples=30)
@given(
    works(most_blocks=2_000),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from(["issue_us", "l2_us", "dram_us", "power_us"]),
    st.floats(1, 4),
)
def test_more_sms_and_more_of_a_resource_never_slow_a_kernel(
    work: KernelWork, sms: int, more: int, name: str, factor: float
) -> None:
    faster, profile = replace(work, **{name: getattr(work, name) / factor}), small_device(sms)
    faster_us = alone_us(faster, profile)
    assert faster_us <= alone_us(work, profile) * (1 + 1e-9)
    assert alone_us(faster, small_device(sms + more)) <= faster_us * (1 + 1e-9)


@pytest.mark.parametrize("name", ["v100-sxm2", "t4", "a100-sxm-40gb", "p100-pcie-16gb"])
def test_as_the_kernel_model_prices_it(name: str) -> None:
    profile = device(name)
    model = KernelModel(profile)
    differences = []
    for kernel in KERNELS:
        priced_us = model.price(kernel).alone_us
        found_us = alone_us(kernel_work(model, kernel), profile)
        differences.append(abs(found_us / priced_us - 1))
    assert sorted(differences)[len(differences) // 2] < 0.01
    assert max(differences) < 0.2


@settings(max_examples=20)
@given(st.sampled_from(KERNELS), st.integers(1, 6))
def test_full_waves_are_as_the_kernel_model_prices_them(kernel: Kernel, waves: int) -> None:
    resident = resident_blocks(
        V100.limits, kernel.threads_per_block, kernel.registers_per_thread, kernel.shared_bytes_per_block
    )
    blocks = waves * resident * V100.sm_count
    # As much for each block as before, and L2 and DRAM out of the way: they overlap differently in the two.
    flops = kernel.flops * blocks // kernel.blocks
    full = replace(kernel, blocks=blocks, flops=flops, l2_bytes=0, weight_bytes=0, activation_bytes=0, bytes_written=0)
    assume(flops)
    model = KernelModel(V100)
    assert alone_us(kernel_work(model, full), V100) == pytest.approx(model.price(full).alone_us, rel=1e-9)


def test_a_block_that_fits_no_sm() -> None:
    kernel = KernelWork("huge", 1, 1024, 255, 0, 1.0, 1.0, 0.0, 0.0, 0.0)
    with pytest.raises(ScheduleError, match=r"huge.*1024 threads, 255 registers.*v100-sxm2"):
        BlockDemand.of(kernel, V100)
