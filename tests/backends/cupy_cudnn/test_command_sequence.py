"""The device's commands, their order and streams; and outputs, which are judged by the run that counts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from host_backend import HostBackend
from host_device import Call, DropsEdges, HostDriver, HostGraph, HostMemory, HostStream
from hypothesis import example, given, settings
from hypothesis import strategies as st
from needed_waits import needed_waits
from precisions import stored_in
from random_networks import random_inputs, random_network, random_schedule, random_streams

from iossim.backends.cupy_cudnn import capture
from iossim.backends.cupy_cudnn.capture import capturable, forks_at_root, orders
from iossim.backends.cupy_cudnn.kernel_text import WAIT
from iossim.backends.cupy_cudnn.prepared_plan import PreparedPlan, Run
from iossim.backends.cupy_cudnn.weights import Weights
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.backend import BackendError, Timing
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.measured_run import largest_difference
from iossim.execution.memory import check_happens_before, plan_memory, with_memory
from iossim.execution.plan import MAIN, Command, Plan, Queue, Queued, Record, Synchronize, Wait, segments
from iossim.ir.network import Network
from iossim.ir.types import Precision

Step = tuple[str, int, int]


class Heard:
    """A plan made ready on the recording device, which has heard nothing yet of running it."""

    def __init__(self, network: Network, plan: Plan, engine: Engine) -> None:
        backend = HostBackend(engine=engine)
        self.driver, self.library, self.lane = backend.driver, backend.library, backend.lane
        self.prepared = PreparedPlan(self.lane, backend.chooser, network, Weights(network.graph, self.driver), plan)
        self.driver.calls.clear()
        self.library.workspaces.clear()

    @property
    def main(self) -> object:
        return self.lane(MAIN).stream

    def wanted(self, commands: Iterable[Command]) -> list[Step]:
        """What the device should hear: work counts once where it is followed by more on the same stream."""
        steps: list[Step] = []
        records: dict[int, int] = {}
        for command in commands:
            match command:
                case Record():
                    records[command.event] = len(records)
                    steps.append(("record", self.stream(command.queue), records[command.event]))
                case Wait():
                    steps.append(("wait", self.stream(command.queue), records[command.event]))
                case Synchronize():
                    steps.append(("synchronize", -1, -1))
                case _:
                    steps.append(("work", self.stream(command.queue), -1))
        return merged(steps)

    def stream(self, queue: Queue) -> int:
        number: int = self.lane(queue).stream.ptr
        return number


def heard(calls: Sequence[Call]) -> list[Step]:
    steps: list[Step] = []
    records: dict[object, int] = {}
    for call in calls:
        if call.verb == "record":
            records[call.about] = len(records)
        number = records[call.about] if call.verb in ("record", "wait") else -1
        verb = "work" if call.verb in ("launch", "convolution") else call.verb
        steps.append((verb, call.stream, number))
    return merged(steps)


def merged(steps: Sequence[Step]) -> list[Step]:
    found: list[Step] = []
    for step in steps:
        if step[0] != "work" or found[-1:] != [step]:
            found.append(step)
    return found


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_the_paper_engine_does_what_the_plan_says(seed: int) -> None:
    network = random_network(seed, movers=True)
    plan = lower_schedule(random_schedule(network, seed), network, Engine.PAPER, in_place=True)
    device = Heard(network, plan, Engine.PAPER)
    run = Run(device.driver, device.prepared)
    device.driver.calls.clear()
    run.run()
    assert heard(device.driver.calls) == device.wanted(plan.commands)


@example(seed=67)
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_the_graph_engine_captures_what_the_plan_says_once_and_launches_it(seed: int) -> None:
    network = random_network(seed, movers=True)
    plan = lower_schedule(random_schedule(network, seed), network, Engine.GRAPH, in_place=True)
    device = Heard(network, plan, Engine.GRAPH)
    run = Run(device.driver, device.prepared, device.main)
    verbs = [call.verb for call in device.driver.calls]
    begin, end = verbs.index("begin_capture"), verbs.index("end_capture")
    (segment,) = segments(plan)
    # Stages are captured as they are first; seldom (seed 67) a stream also records its own work first.
    assert verbs.count("begin_capture") == len(orders(segment)) * (1 + forks_at_root(segment))
    assert heard(device.driver.calls[begin + 1 : end]) == device.wanted(plan.commands[:-1])
    assert all(call.captured for call in device.driver.calls[begin + 1 : end] if call.verb in ("launch", "convolution"))
    device.driver.calls.clear()
    run.run()
    assert [call.verb for call in device.driver.calls] == ["launch_graph", "synchronize"]


def run_early(seed: int, kernel: Callable[[HostDriver, str, str], tuple[str, str]]) -> float:
    """The largest difference of outputs where kernels start before those ahead of them have ended."""
    network, driver = random_network(seed, movers=True), HostDriver(seed, overlaps=True)
    driver.kernel = partial(kernel, driver)  # type: ignore[method-assign]
    plan = lower_schedule(random_schedule(network, seed), network, Engine.GRAPH, in_place=True)
    inputs = random_inputs(network)
    return largest_difference(
        HostBackend(driver=driver).execute(network, plan, inputs), evaluate_graph(network.graph, inputs)
    ).relative


def test_kernels_that_start_early_wait_for_those_ahead_of_them() -> None:
    """Every kernel's text does; without that, outputs would be wrong."""
    assert max(run_early(seed, HostDriver.kernel) for seed in range(4)) < 1e-5
    with pytest.raises(AssertionError):
        assert max(run_early(seed, _without_wait) for seed in range(4)) < 1e-5


def _without_wait(driver: HostDriver, source: str, name: str) -> tuple[str, str]:
    return HostDriver.kernel(driver, source.replace(WAIT, ""), name)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), merge=st.booleans())
def test_a_launch_works_in_workspaces_of_its_queue_alone(seed: int, merge: bool) -> None:
    """In those that the plan has for it, which its memory planner keeps apart from what runs beside it."""
    network = random_network(seed, units=8)
    backend = HostBackend()
    plan = backend.lowered(network, random_schedule(network, seed, merge), backend.choices(network))
    device = Heard(network, plan, Engine.GRAPH)
    prepared = device.prepared
    Run(device.driver, prepared, device.main)
    assert prepared.plan.offsets is not None
    own: dict[int, list[tuple[int, int]]] = {}
    for launch in prepared.plan.launches:
        if launch.workspace is not None:
            begin = prepared.arena.address + prepared.plan.offsets[launch.workspace]
            own.setdefault(device.stream(launch.queue), []).append(
                (begin, begin + prepared.plan.buffers[launch.workspace].bytes)
            )
    for queue, extra in prepared._extra.items():
        own.setdefault(device.stream(queue), []).append((extra.address, extra.address + extra.size_bytes))
    # What reads a part of a merged convolution may lie otherwise than its choice took it to: it gets memory of its own.
    assert merge or not prepared._extra, "the plan gives every launch the workspace that its choice needs"
    for stream, address, size_bytes in device.library.workspaces:
        assert any(begin <= address and address + size_bytes <= end for begin, end in own[stream])


def test_a_plan_of_the_graph_engine_is_captured_as_it_is() -> None:
    for seed in range(20):
        network = random_network(seed, movers=True)
        for schedule in (random_schedule(network, seed), random_streams(network, seed)):
            plan = lower_schedule(schedule, network, Engine.GRAPH, in_place=True)
            (segment,) = segments(plan)
            assert capturable(segment) == segment


def late_joins(commands: Sequence[Queued]) -> int:
    """How much work waits for other streams' work that is recorded before what its own stream did last."""
    late = number = 0
    last: dict[Queue, int] = {}
    pending: dict[Queue, set[int]] = {}
    events: dict[int, set[int]] = {}
    for command in commands:
        queue = command.queue
        match command:
            case Record():
                events[command.event] = {last[queue]} if queue in last else set()
            case Wait():
                pending.setdefault(queue, set()).update(events[command.event])
            case _:
                late += min(pending.pop(queue, ()), default=number) < last.get(queue, -1)
                last[queue], number = number, number + 1
    return late


def test_streams_are_captured_with_their_own_work_first_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an order that is free of races, and computes the same."""
    late = own_first = 0
    for seed in range(20):
        network = random_network(seed, movers=True)
        plan = with_memory(lower_schedule(random_streams(network, seed), network, Engine.GRAPH, in_place=True))
        (segment,) = segments(plan)
        found = orders(segment)
        assert found[0] == segment
        check_happens_before(replace(plan, commands=(*found[-1], Synchronize())))
        late, own_first = late + late_joins(found[0]), own_first + late_joins(found[-1])
    assert 0 < own_first < late / 3
    network = random_network(10, movers=True)
    plan = lower_schedule(random_streams(network, 10), network, Engine.GRAPH, in_place=True)
    monkeypatch.setattr(capture, "orders", lambda commands: orders(commands)[1:])
    HostBackend().agree(network, plan)


@pytest.mark.parametrize(
    ("precision", "seeds", "races", "captures"), [(Precision.FP32, 20, 50, 20), (Precision.BF16, 6, 10, 0)]
)
def test_each_event_of_streams_is_needed(precision: Precision, seeds: int, races: int, captures: int) -> None:
    """By what reads and writes the same memory, which the bytes of the storage plan, or by what a capture asks for."""
    found = []
    for seed in range(seeds):
        network = stored_in(random_network(seed, movers=True), precision)
        backend = HostBackend(precision)
        plan = with_memory(backend.lowered(network, random_streams(network, seed)))
        assert {plan.buffers[name].type.dtype for name in (*plan.inputs, *plan.outputs)} == {precision.storage}
        found.append(needed_waits(network, plan, backend))
    assert sum(one.nothing for one in found) == 0
    assert sum(one.races for one in found) > races
    assert sum(one.captures for one in found) >= captures


def test_a_plan_without_forks_and_joins_gets_them_for_a_capture() -> None:
    captures = 0
    for seed in range(20):
        network = random_network(seed)
        plan = lower_schedule(random_schedule(network, seed), network, Engine.PAPER, in_place=True)
        device = Heard(network, plan, Engine.GRAPH)
        run = Run(device.driver, device.prepared, device.main)  # the device objects to work that does not join
        captures += len(run.graphs)
        assert len(run.graphs) == sum(bool(segment) for segment in segments(plan))
    assert captures > 20


def test_waits_for_what_the_host_has_waited_for_are_not_captured() -> None:
    side = 1
    first, second = [Record(0, MAIN)], [Wait(0, side), Record(1, side), Wait(1, MAIN)]
    assert capturable(first) == first
    assert Wait(0, side) not in capturable(second)


class LaunchesNothing(HostDriver):
    """Graphs are captured, and their launches lost."""

    def launch_graph(self, graph: HostGraph, stream: HostStream) -> None:
        super().launch_graph(HostGraph([]), stream)


def lowered(seed: int, engine: Engine) -> tuple[Network, Plan]:
    network = random_network(seed, units=6)
    return network, lower_schedule(random_schedule(network, seed), network, engine, in_place=True)


@pytest.mark.parametrize("broken", [LaunchesNothing, DropsEdges])
@pytest.mark.parametrize("seed", range(8))
def test_outputs_are_those_of_the_graph_and_judge_what_was_timed(seed: int, broken: type[HostDriver]) -> None:
    """Right answers of the calls that are made before the capture do not hide what the graph computes."""
    network, plan = lowered(seed, Engine.GRAPH)
    inputs, timing = random_inputs(network), Timing(rounds=2, warm_up=1, seed=seed)
    expected = evaluate_graph(network.graph, inputs)
    right, wrong = (HostBackend(driver=driver(seed)) for driver in (HostDriver, broken))
    assert largest_difference(right.execute(network, plan, inputs), expected).relative < 1e-4
    assert largest_difference(wrong.execute(network, plan, inputs), expected).relative > 0.1
    assert len(right.measure(network, [plan], timing)[0].times_us) == 2
    with pytest.raises(BackendError, match="computes other outputs than the same calls one by one"):
        wrong.measure(network, [plan], timing)


class GivesArenasBack(HostDriver):
    """A pool that hands back the first block of an arena's size, with what it holds."""

    def __init__(self, arena_bytes: int) -> None:
        super().__init__()
        self.arena = super().allocate(arena_bytes)

    def allocate(self, size_bytes: int) -> HostMemory:
        return self.arena if size_bytes == self.arena.size_bytes else super().allocate(size_bytes)


def test_a_dense_input_is_written_without_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    network, plan = lowered(0, Engine.PAPER)
    backend, read = HostBackend(engine=Engine.PAPER), []
    own = backend.driver.read
    monkeypatch.setattr(backend.driver, "read", lambda *given: (read.append(given), own(*given)))
    backend.execute(network, plan, random_inputs(network))
    assert len(read) == len(plan.outputs)


@pytest.mark.parametrize("engine", UNDIVIDED)
def test_right_answers_of_an_earlier_run_are_not_found_in_its_memory(engine: Engine) -> None:
    network, plan = lowered(0, engine)
    plan = plan_memory(plan)
    inputs = random_inputs(network)
    backend = HostBackend(engine=engine, driver=GivesArenasBack(plan.arena_bytes))
    assert (
        largest_difference(backend.execute(network, plan, inputs), evaluate_graph(network.graph, inputs)).relative
        < 1e-4
    )
    idle = replace(plan, commands=plan.commands[-1:])
    assert all(np.isnan(array).all() for array in backend.execute(network, idle, inputs).values())
