"""Whatever the plan, the CPU computes what NumPy does; what fails in any thread is told to the host, nothing waits for ever, and no thread is left behind."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graph_builders import builder_with
from random_networks import merged_stages, random_inputs, random_network, random_schedule, sequential_schedule
from seeded_weights import LIGHT_MODELS, write_seeded

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.backends.onnxruntime_cpu import backend as cpu
from iossim.backends.onnxruntime_cpu.program import (
    ALGORITHMS,
    Segment,
    SessionProgram,
    Sessions,
    Step,
    bind,
    make_arena,
)
from iossim.backends.onnxruntime_cpu.worker_pool import WorkerPool
from iossim.base.errors import GraphError, ScheduleError
from iossim.execution.backend import BackendError, Choice, Choices
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule, lower_stage
from iossim.execution.memory import with_memory
from iossim.execution.plan import Launch, Plan, Record, Synchronize, Wait
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.unary import Relu
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import Strategy

CORES = tuple(sorted(os.sched_getaffinity(0)))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    cores, before = os.sched_getaffinity(0), threading.active_count()
    yield
    assert threading.active_count() == before
    assert os.sched_getaffinity(0) == cores


def program(
    *segments: list[list[Step]], locks: list[threading.Lock] | None = None, labels: dict[Step, str] | None = None
) -> SessionProgram:
    """Of the steps of each lane, segment by segment."""
    streams = max(len(segment) for segment in segments)
    made = tuple(
        Segment(tuple(own), tuple((lane + 1, tuple(steps)) for lane, steps in enumerate(others)))
        for own, *others in segments
    )
    return SessionProgram(made, streams, {}, {}, tuple(locks or ()), labels or {}, 0)


def taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def failing(error: BaseException) -> Step:
    def step() -> None:
        raise error

    return step


def noting(into: list[str], text: str) -> Step:
    return lambda: into.append(text)


def test_each_stream_has_a_thread_and_a_core_of_its_own() -> None:
    seen: list[tuple[int, int, frozenset[int]]] = []

    def note(lane: int) -> Step:
        return lambda: seen.append((lane, threading.get_ident(), frozenset(os.sched_getaffinity(0))))

    steps = program([[note(lane)] for lane in range(3)], [[note(lane)] for lane in range(3)])
    with WorkerPool(3, CORES) as pool:
        pool.run(steps)
        pool.run(steps)
    assert len(seen) == 12
    by_lane = {lane: {entry[1:] for entry in seen if entry[0] == lane} for lane in range(3)}
    assert by_lane[0] == {(threading.get_ident(), frozenset({CORES[0]}))}
    for lane in range(3):
        ((_, cores),) = by_lane[lane]
        assert cores == {CORES[lane % len(CORES)]}
    assert len({thread for lane in range(3) for thread, _ in by_lane[lane]}) == 3


def test_segments_are_kept_apart() -> None:
    log: list[str] = []
    segments = [[[noting(log, f"{number}")] * 5 for _ in range(3)] for number in range(20)]
    with WorkerPool(3, CORES) as pool:
        pool.run(program(*segments))
    assert log == sorted(log, key=int)
    assert len(log) == 300


@pytest.mark.parametrize("lane", [0, 1, 2])
def test_an_error_in_any_stream_wakes_those_that_wait_for_it(lane: int) -> None:
    log: list[str] = []
    waiting = [taken() for _ in range(3)]
    lanes: list[list[Step]] = [[waiting[stream].acquire, noting(log, "went on")] for stream in range(3)]
    step = failing(RuntimeError("no such kernel\nat line 7"))
    lanes[lane][0] = step
    run = program(lanes, locks=waiting, labels={step: "conv7 on queue 1"})
    with pytest.raises(BackendError, match=r"^conv7 on queue 1 failed: no such kernel$"), WorkerPool(3, CORES) as pool:
        pool.run(run)
    assert log == []


def test_errors_of_iossim_keep_their_text() -> None:
    with pytest.raises(GraphError, match=r"^this one$"), WorkerPool(2, CORES) as pool:
        pool.run(program([[], [failing(GraphError("this one"))]]))


def test_one_of_several_errors_is_told() -> None:
    with pytest.raises(GraphError, match=r"^(first|second)$"), WorkerPool(3, CORES) as pool:
        pool.run(program([[], [failing(GraphError("first"))], [failing(GraphError("second"))]]))


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("where", ["in its own stream", "waiting for an event", "waiting for a stream"])
def test_an_interrupt_leaves_no_thread(where: str) -> None:
    """Ctrl-C while other streams are at work, or wait for what never comes."""
    never, event = taken(), taken()
    own: list[Step]
    others: list[Step]
    if where == "in its own stream":
        own, others = [interrupt, lambda: None], [event.acquire]
    elif where == "waiting for an event":
        own, others = [never.acquire], [interrupt, event.acquire]
    else:
        own, others = [], [interrupt, event.acquire]
    with pytest.raises(KeyboardInterrupt), WorkerPool(2, CORES) as pool:
        pool.run(program([own, others], locks=[never, event]))


def test_an_interrupt_between_two_runs() -> None:
    def run_and_interrupt() -> None:
        with WorkerPool(4, CORES) as pool:
            pool.run(program([[], [lambda: None]]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_and_interrupt()


def two_convolutions() -> tuple[Network, Plan]:
    b, x = builder_with("two", x=(1, 2, 5, 5))
    with b.block("block"):
        names = [b.conv(x, 2, name=name) for name in ("left", "right")]
    network = b.network(names)
    return network, lower_stage(network, [[0], [1]], Strategy.CONCURRENT, "graph")


def test_an_op_that_fails_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's error names the launch; the backend works again afterwards."""
    network, plan = two_convolutions()
    by = cpu.OnnxRuntimeCpu(Engine.GRAPH, 1)
    inputs = random_inputs(network)
    right = [launch for launch in plan.launches if launch.units == ("right",)]
    original: Callable[..., object] = Sessions.session

    class Broken:
        def __init__(self, session: object) -> None:
            self._session = session

        def __getattr__(self, name: str) -> object:
            return getattr(self._session, name)

        def run_with_iobinding(self, binding: object) -> None:
            raise RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION")

    def session(self: Sessions, of: Network, launch: Launch) -> object:
        made = original(self, of, launch)
        return Broken(made) if launch in right else made

    monkeypatch.setattr(Sessions, "session", session)
    for _ in range(3):
        with pytest.raises(BackendError, match=r"^right on queue 1 failed: \[ONNXRuntimeError\] : 6"):
            by.execute(network, plan, inputs)
    monkeypatch.undo()
    assert set(by.execute(network, plan, inputs)) == {"left", "right"}


def test_events_pass_through_a_stream_that_launches_nothing() -> None:
    """Of two launches in streams 1 and 2, ordered by events through stream 0, the second reads what the first wrote."""
    b, x = builder_with("chain", x=(1, 2, 5, 5))
    with b.block("block"):
        y = b.conv(x, 2, name="first")
        z = b.conv(y, 2, name="second")
    network = b.network([z])
    alone = lower_stage(network, [[0, 1]], Strategy.CONCURRENT)
    first, second = (
        Launch(launch.units, launch.strategy, launch.reads, launch.writes, stream)
        for stream, launch in enumerate(alone.launches, start=1)
    )
    commands = (first, Record(0, 1), Wait(0, 0), Record(1, 0), Wait(1, 2), second, Synchronize())
    plan = Plan(alone.graph_hash, alone.buffers, alone.inputs, alone.outputs, commands)
    by = cpu.OnnxRuntimeCpu(Engine.GRAPH, 1)
    inputs = random_inputs(network)
    (expected,) = by.execute(network, alone, inputs).values()
    for _ in range(20):
        (output,) = by.execute(network, plan, inputs).values()
        assert (output == expected).all()


def test_a_wait_for_what_is_never_recorded() -> None:
    network, plan = two_convolutions()
    planned = with_memory(plan)
    unordered = replace(planned, commands=(Wait(99, 0), *plan.commands))
    with pytest.raises(ScheduleError, match="waits for event 99, which is recorded nowhere before"):
        bind(unordered, network, Sessions(1), make_arena(planned.arena_bytes))


def backend(engine: str = "paper", threads: int = 1) -> cpu.OnnxRuntimeCpu:
    made = cpu.create(Precision.FP32, engine, {"threads": str(threads)})
    assert isinstance(made, cpu.OnnxRuntimeCpu)
    return made


def poisoned(size_bytes: int) -> Array:
    """An arena that is not a number wherever nothing has been written."""
    arena = make_arena(size_bytes)
    arena.fill(0xFF)
    assert np.isnan(arena[:4].view(np.float32)).all()
    return arena


@pytest.fixture(autouse=True)
def _arena_of_nans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "make_arena", poisoned)


def assert_outputs(
    network: Network, plan: Plan, inputs: dict[str, Array], expected: dict[str, Array], by: cpu.OnnxRuntimeCpu
) -> None:
    outputs = by.execute(network, plan, inputs)
    assert tuple(outputs) == plan.outputs
    for name, array in outputs.items():
        assert array.dtype == expected[name].dtype
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-4 * max(1.0, scale))


def test_the_random_plans_are_of_all_sorts() -> None:
    """Plans of ``test_backends_alike`` have merges, several streams, views, copies, and staged operands."""
    merged = streams = views = copies = staged = 0
    sessions = Sessions(1)
    for seed in range(30):
        network = random_network(seed)
        schedule = random_schedule(network, seed)
        plan = with_memory(lower_schedule(schedule, network, "graph", in_place=True))
        program = bind(plan, network, sessions, make_arena(plan.arena_bytes))
        merged += merged_stages(schedule)
        streams += program.streams > 2
        views += sum(buffer.view_of is not None for buffer in plan.buffers.values())
        copies += len(plan.commands) - len(plan.launches) - 1 > 0
        if network.graph.types["x"].shape[0] == 1:
            assert program.staged == 0  # channels of one image lie side by side
        staged += program.staged
    assert min(merged, streams, views, copies, staged) >= 5


@pytest.mark.parametrize(
    ("model", "engine"), [("light_squeezenet", "graph"), ("light_inception_v1", "paper"), ("light_shufflenet", "graph")]
)
def test_a_network_under_a_random_schedule(model: str, engine: str, tmp_path: Path) -> None:
    network = load(write_seeded(LIGHT_MODELS / f"{model}.onnx", tmp_path / "seeded.onnx"))
    inputs = random_inputs(network)
    expected = evaluate_graph(network.graph, inputs)
    for in_place, algorithm, threads in ((False, ALGORITHMS[0], 1), (True, ALGORITHMS[1], 2)):
        choices: Choices = lambda *_, by=algorithm: Choice(by)  # noqa: E731
        plan = lower_schedule(random_schedule(network, seed=1), network, engine, in_place=in_place, choices=choices)
        assert_outputs(network, plan, inputs, expected, backend(engine, threads))


def test_no_thread_is_left_and_the_host_has_its_cores_back() -> None:
    network = random_network(7)
    plan = lower_schedule(random_schedule(network, 7), network, "graph")
    assert len(plan.queues) > 1
    cores, before = os.sched_getaffinity(0), threading.active_count()
    backend("graph").execute(network, plan, random_inputs(network))
    assert os.sched_getaffinity(0) == cores
    assert threading.active_count() == before


def test_more_streams_than_cores() -> None:
    b, x = builder_with("wide", x=(1, 2, 5, 5))
    with b.block("block"):
        names = [b.conv(x, 2, name=f"conv{index}") for index in range(11)]
    network = b.network(names)
    plan = lower_stage(network, [[index] for index in range(11)], Strategy.CONCURRENT)
    assert len(plan.queues) == 11
    inputs = random_inputs(network)
    assert_outputs(network, plan, inputs, evaluate_graph(network.graph, inputs), backend())


@pytest.mark.parametrize("most_bytes", [None, 0])
def test_sessions_are_shared_by_equal_work_with_equal_weights_unless_they_hold_too_much(
    most_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if most_bytes is not None:
        monkeypatch.setattr("iossim.backends.onnxruntime_cpu.program.KEPT_WEIGHT_BYTES", most_bytes)
    b, x = builder_with("equal", x=(1, 2, 5, 5))
    weights = [b.constant(name, (2, 2, 1, 1)) for name in ("first.weight", "second.weight")]
    for index, weight in enumerate((weights[0], weights[0], weights[1])):
        x = b.add(Conv(), x, weight, name=f"conv{index}")
        x = b.add(Relu(), x, name=f"relu{index}")
    network = b.network([x])
    by = backend()
    inputs = random_inputs(network)
    plan = lower_schedule(sequential_schedule(network), network)
    for run in range(2):
        assert_outputs(network, plan, inputs, evaluate_graph(network.graph, inputs), by)
        # Two of convolutions, one of all activations.
        assert by.sessions.made == 3 if most_bytes is None else by.sessions.made > 3 * run
