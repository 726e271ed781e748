"""Whatever runs: work is conserved, no SM is over its limits, kernels share what there is; and the engine agrees with a reference that simulates every block by itself."""

import json
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from other_plans import plan_from_json
from reference_engine import Reference
from small_devices import issue, programs, small_cpu, small_device, work

import iossim
from iossim import api
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.events.engine import execute
from iossim.backends.simulator.events.multiprocessors import MultiprocessorClass
from iossim.backends.simulator.events.program import Instruction, IssuedKernel, IssueKernel, KernelLibrary
from iossim.backends.simulator.events.run import stage_us
from iossim.backends.simulator.kernel_work import KernelWork
from iossim.execution.backend import create_backend
from iossim.execution.engine import Engine
from iossim.execution.execution import Execution
from iossim.execution.measured_run import plan_for
from iossim.execution.plan import plan_to_json
from iossim.hardware.compute_capability import MultiprocessorLimits
from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.report.traces import perfetto_trace
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.tasks.explain import explain

LIKE = st.sampled_from(["v100-sxm2", "t4", "a100-sxm-40gb", "k80"])


def works_of(instructions: list[Instruction]) -> list[KernelWork]:
    return [step.kernel.demand.work for step in instructions if isinstance(step, IssueKernel)]


def integral(execution: Execution, values: np.ndarray) -> float:
    return float(np.diff(execution.time_us) @ values)


def check_limits(contents: list[tuple[KernelWork, int]], limits: MultiprocessorLimits) -> int:
    """Raise where an SM with these kernels and counts of blocks is over a limit; returns its warps."""
    warps = sum(count * ceil(work.threads_per_block / 32) for work, count in contents)
    registers = sum(
        count
        * ceil(work.threads_per_block / 32)
        * ceil(work.registers_per_thread * 32 / limits.register_granularity)
        * limits.register_granularity
        for work, count in contents
    )
    shared = sum(
        count
        * ceil((work.shared_bytes_per_block + limits.reserved_shared_bytes_per_block) / limits.shared_granularity_bytes)
        * limits.shared_granularity_bytes
        for work, count in contents
    )
    assert warps <= limits.max_warps
    assert warps * 32 <= limits.max_threads
    assert sum(count for _, count in contents) <= limits.max_blocks
    assert registers <= limits.registers
    assert shared <= limits.shared_bytes
    return warps


@settings(max_examples=20)
@given(st.data(), st.integers(1, 12), LIKE)
def test_at_every_instant(data: st.DataObject, sms: int, like: str) -> None:
    profile = small_device(sms, like)
    instructions = data.draw(programs(profile, most_blocks=200))

    def look(now: float, classes: list[MultiprocessorClass]) -> None:
        # Every SM is in one class, and holds no more than it can.
        assert sorted(sm for found in classes for sm in found.sms) == list(range(sms))
        dram = power = l2 = 0.0
        most = 1 + 1e-9
        for found in classes:
            contents = [(run.demand.work, resident.count) for run, resident in found.residents.items()]
            assert check_limits(contents, profile.limits) == found.warps
            rates = [(run.demand.work, resident) for run, resident in found.residents.items()]
            assert sum(kernel.issue_us * held.count * held.rate for kernel, held in rates) <= most
            assert sum(kernel.l2_us * held.count * held.rate for kernel, held in rates) <= most
            for pipe in ("fp32", "fp64"):
                of_pipe = [(kernel, held) for kernel, held in rates if kernel.pipe == pipe]
                assert sum(kernel.pipe_us * held.count * held.rate for kernel, held in of_pipe) <= most
            assert all(held.rate * kernel.least_us <= 1 + 1e-9 for kernel, held in rates)
            assert all(held.rate > 0 for _, held in rates)
            dram += len(found.sms) * sum(held.dram_us * held.rate for _, held in rates)
            power += len(found.sms) * sum(held.device_us.power_us * held.rate for _, held in rates)
            l2 += len(found.sms) * sum(held.device_us.l2_us * held.rate for _, held in rates)
        assert max(dram, power, l2) <= most

    execute(instructions, profile, observer=look)


@settings(max_examples=20)
@given(st.data(), st.integers(1, 12), LIKE)
def test_work_is_conserved(data: st.DataObject, sms: int, like: str) -> None:
    profile = small_device(sms, like)
    instructions = data.draw(programs(profile, most_blocks=200))
    works = works_of(instructions)
    execution = execute(instructions, profile)
    assert len(execution.spans) == len(works)
    for values, asked_us in (
        (execution.issue, sum(kernel.blocks * kernel.issue_us for kernel in works) / sms),
        (execution.l2, sum(kernel.blocks * kernel.l2_us for kernel in works) / sms),
        (execution.power, sum(kernel.power_us for kernel in works)),
    ):
        assert integral(execution, values) == pytest.approx(asked_us, rel=1e-6, abs=1e-6)
    # DRAM carries what L2 loses, too.
    dram_us, kept_us = (sum(getattr(kernel, name) for kernel in works) for name in ("dram_us", "kept_us"))
    assert dram_us - 1e-5 <= integral(execution, execution.dram) <= dram_us + kept_us + 1e-5


@settings(max_examples=20)
@given(st.data(), st.integers(1, 12))
def test_states_of_the_device(data: st.DataObject, sms: int) -> None:
    profile = small_device(sms)
    execution = execute(data.draw(programs(profile, most_blocks=200)), profile)
    states = len(execution.active_warps)
    assert execution.time_us.shape == (states + 1,)
    assert execution.time_us[0] == 0.0
    assert execution.time_us[-1] == execution.latency_us == max(span.end_us for span in execution.spans)
    assert (np.diff(execution.time_us) > 0).all()
    assert (execution.sms_by_warps.sum(axis=1) == sms).all()
    # Something is resident exactly while a kernel runs.
    middles = (execution.time_us[:-1] + execution.time_us[1:]) / 2
    running = [any(span.start_us < middle < span.end_us for span in execution.spans) for middle in middles]
    assert (execution.active_warps > 0).tolist() == running
    assert ((execution.occupied_sms > 0) == (execution.active_warps > 0)).all()


def test_what_a_known_run_uses() -> None:
    # Two blocks on two SMs for 10 us, each half of an SM's issue and a quarter of its L2; DRAM for 4 of 10 us.
    profile: DeviceProfile = small_device(2)
    kernel = work(blocks=2, threads_per_block=256, issue_us=5.0, least_us=10.0, l2_us=2.5, dram_us=4.0, gap_us=5.0)
    execution = execute([issue(kernel, profile, host_us=5.0)], profile)
    assert execution.time_us.tolist() == [0.0, 10.0, 20.0]
    assert execution.active_warps.tolist() == [0, 16]
    assert execution.issue.tolist() == [0.0, 0.5]
    assert execution.l2.tolist() == [0.0, 0.25]
    assert execution.dram.tolist() == [0.0, pytest.approx(0.4)]
    assert (execution.mean_active_warps, execution.mean_issue) == (8.0, 0.25)
    assert execution.sms_by_warps[:, [0, 8]].tolist() == [[2, 0], [0, 2]]


def test_nothing_to_run() -> None:
    execution = execute([], small_device(2))
    assert (execution.latency_us, execution.spans, execution.mean_active_warps) == (0.0, (), 0.0)
    assert execution.time_us.tolist() == [0.0]


def check_like_reference(instructions: list[Instruction], profile: DeviceProfile) -> None:
    reference = Reference(profile, instructions)
    reference.run()
    expected = sorted(zip(reference.starts, reference.ends, strict=True))
    found = sorted((span.start_us, span.end_us) for span in execute(instructions, profile).spans)
    # Sums in another order: more digits than these say nothing.
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-6, atol=1e-5)


def check_alike(one: Execution, other: Execution) -> None:
    assert one.latency_us == pytest.approx(other.latency_us, rel=1e-7)
    for left, right in zip(one.spans, other.spans, strict=True):
        assert (left.name, left.stream) == (right.name, right.stream)
        assert (left.start_us, left.end_us) == pytest.approx((right.start_us, right.end_us), rel=1e-7, abs=1e-6)
    assert one.mean_active_warps == pytest.approx(other.mean_active_warps, rel=1e-6)


@settings(max_examples=20)
@given(st.data(), st.integers(1, 5), st.sampled_from(["v100-sxm2", "t4", "p100-pcie-16gb"]))
def test_like_the_reference(data: st.DataObject, sms: int, like: str) -> None:
    profile = small_device(sms, like)
    check_like_reference(data.draw(programs(profile, most_blocks=25)), profile)


@settings(max_examples=20)
@given(st.data(), st.integers(1, 16))
def test_grouping_changes_nothing(data: st.DataObject, sms: int) -> None:
    profile = small_device(sms)
    instructions = data.draw(programs(profile, most_blocks=400))
    check_alike(execute(instructions, profile), execute(instructions, profile, grouped=False))


def test_a_block_goes_where_most_room_is() -> None:
    # After the first kernel an SM is empty. Its room for the second, by slots, is one block more than the others';
    # once that is taken all are equal, and the fewest warps decide, then the number.
    profile = small_device(4)
    first = work("first", blocks=3, least_us=100.0, threads_per_block=512)
    second = work("second", blocks=3, least_us=10.0, issue_us=0.1)
    third = work("third", blocks=1, least_us=10.0, issue_us=0.1)
    seen: list[list[int]] = []
    execute(
        [issue(first, profile, 0), issue(second, profile, 1, host_us=1.0), issue(third, profile, 2, host_us=1.0)],
        profile,
        observer=lambda now, classes: seen.append(
            [found.warps for number in range(4) for found in classes if number in found.sms]
        ),
    )
    assert seen[:3] == [[16, 16, 16, 0], [17, 16, 16, 2], [17, 17, 16, 2]]


SMALL = {"blocks": 6, "threads_per_block": 256, "registers_per_thread": 64, "issue_us": 9.0, "least_us": 10.0}


@pytest.mark.parametrize(
    ("sms", "kernels", "ends_us"),
    [
        # Two blocks of the first leave threads of an SM for the small one; beside eight it waits for their last wave.
        (2, [{"blocks": 8, "least_us": 10.0, "threads_per_block": 768}, {"blocks": 2, "least_us": 3.0}], 13.0),
        (2, [{"blocks": 4, "least_us": 10.0, "threads_per_block": 768}, {"blocks": 2, "least_us": 3.0}], 3.0),
        # Two SMs end earlier, as they hold 15 of the 16 blocks that fit: room for four blocks of each small kernel at
        # once. Twelve blocks on twelve SMs of their own end no later than on the last SM of those that were full.
        (16, [{"blocks": 254, "threads_per_block": 128, "issue_us": 1.0, "least_us": 1.0}, SMALL, SMALL], 26.0),
        # Two SMs hold one block of the first kernel, the others two. Beside that and a small block is most room.
        (
            16,
            [{"blocks": 30, "threads_per_block": 256, "issue_us": 0.1, "least_us": 30.0}]
            + [{"blocks": 2, "threads_per_block": 128, "issue_us": 9.0, "least_us": 10.0}] * 8,
            12.0,
        ),
    ],
)
def test_later_kernels_get_room_beside_earlier_ones(sms: int, kernels: list[dict[str, float]], ends_us: float) -> None:
    profile = small_device(sms)
    issued = [issue(work(f"kernel {stream}", **own), profile, stream) for stream, own in enumerate(kernels)]
    assert max(span.end_us for span in execute(issued, profile).spans if span.stream) <= ends_us + 1e-6
    check_like_reference(list(issued), profile)


def ends_us(profile: DeviceProfile, *kernels: KernelWork) -> list[float]:
    """When each kernel ends, all ready at once, each in a stream of its own."""
    spans = execute([issue(kernel, profile, stream) for stream, kernel in enumerate(kernels)], profile).spans
    return [span.end_us for span in sorted(spans, key=lambda span: span.stream)]


def test_blocks_of_one_kernel_do_not_disturb_each_other() -> None:
    cpu = small_cpu(2, interference=1.0)
    assert ends_us(
        cpu, work(blocks=2, issue_us=8.0, dram_us=9.0, least_us=10.0, registers_per_thread=0)
    ) == pytest.approx([10.0])


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
