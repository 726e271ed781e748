"""Whatever the plan, the CPU computes what NumPy does, in any arena and on any number of threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from random_networks import merged_stages, random_inputs, random_network, random_schedule, sequential_schedule
from seeded_weights import LIGHT_MODELS, write_seeded

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.backends.onnxruntime_cpu import backend as cpu
from iossim.backends.onnxruntime_cpu.program import ALGORITHMS, Sessions, bind, make_arena
from iossim.execution.backend import Choice, Choices
from iossim.execution.lower import lower_schedule, lower_stage
from iossim.execution.memory import with_memory
from iossim.execution.plan import Plan
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.unary import Relu
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import Strategy


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
    b = GraphBuilder("wide")
    x = b.input("x", (1, 2, 5, 5))
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
    b = GraphBuilder("equal")
    x = b.input("x", (1, 2, 5, 5))
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
