"""What is asked of CUDA, heard by a double of ``torch.cuda``: streams, events, captures and replays; tensors are the CPU's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from random_networks import random_inputs, random_network, random_schedule

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.backend import Timing
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.layouts import ImageLayout
from iossim.execution.lower import lower_schedule
from iossim.execution.made_inputs import launch_graph
from iossim.execution.plan import Copy, Launch, Plan, Synchronize
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.pool import MaxPool
from iossim.ir.ops.unary import Cast

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")

import torch
from torch_cuda_double import Double, TorchWithDouble

from iossim.backends.torch_cuda import program, timing
from iossim.backends.torch_cuda.program import TorchProgram, launch_module
from iossim.backends.torch_cuda.tensors import to_array, to_tensor

pytestmark = pytest.mark.torch


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Double:
    double = Double()
    for module in (program, timing):
        monkeypatch.setattr(module, "torch", TorchWithDouble(double))
    return double


def bound(
    cuda: Double, seed: int, engine: Engine, network: Network | None = None
) -> tuple[TorchProgram, Plan, Mapping[str, Any]]:
    """A plan of a random schedule, its launches heard on the stream that is current."""
    network = network or random_network(seed)
    plan = lower_schedule(random_schedule(network, seed), network, engine, in_place=True)

    def module_of(launch: Launch) -> Any:
        module = launch_module(launch_graph(network, launch), "cpu")
        inner = module.forward

        def forward(*operands: torch.Tensor) -> None:
            cuda.calls.append(("launch", launch.units, cuda.streams[-1]))
            inner(*operands)

        module.forward = forward
        return module

    made = TorchProgram(plan, "cuda", module_of, ImageLayout(network.graph))
    inputs = random_inputs(network, seed)
    for name, array in inputs.items():
        made.tensors[name].copy_(to_tensor(array))
    return made, plan, evaluate_graph(network.graph, inputs)


def stream_of(plan: Plan) -> dict[Any, str]:
    return {queue: f"s{number}" for number, queue in enumerate(plan.queues)}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("engine", UNDIVIDED)
def test_commands_reach_their_streams_in_order(cuda: Double, engine: Engine, seed: int) -> None:
    made, plan, expected = bound(cuda, seed, engine)
    made.run()
    streams = stream_of(plan)
    launched = [(call[1], call[2]) for call in cuda.calls if call[0] == "launch"]
    assert launched == [(command.units, streams[command.queue]) for command in plan.launches]
    waits = [command for command in plan.commands if isinstance(command, Synchronize)]
    assert cuda.calls.count(("synchronise",)) == len(waits)
    recorded: set[int] = set()
    for call in cuda.calls:
        if call[0] == "record":
            recorded.add(call[1])
        assert call[0] != "wait" or call[1] in recorded
    for name, array in expected.items():
        np.testing.assert_allclose(to_array(made.tensors[name]), array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_a_capture_forks_all_streams_and_joins_them(cuda: Double, seed: int) -> None:
    made, plan, _ = bound(cuda, seed, Engine.GRAPH)
    made.capture()
    begin, end = cuda.calls.index(("begin capture",)), cuda.calls.index(("end capture",))
    inside = cuda.calls[begin + 1 : end]
    streams = list(stream_of(plan).values())
    count = len(streams)
    assert inside[:count] == [("join", "capture", stream) for stream in streams]
    assert inside[-count:] == [("join", stream, "capture") for stream in streams]
    work = [command for command in plan.commands if isinstance(command, Launch | Copy)]
    assert sum(call[0] == "launch" for call in inside) == sum(isinstance(command, Launch) for command in work)
    cuda.calls.clear()
    made.run()
    assert cuda.calls == [("replay",)]


def test_ops_on_the_host_are_not_captured_and_come_after_what_the_caller_issued(cuda: Double) -> None:
    b = GraphBuilder("host")
    pooled = b.add(MaxPool((2, 2), (2, 2), (0,) * 4), b.add(Cast("int8"), b.input("x", (1, 2, 4, 4))))
    network = b.network([b.add(Cast("fp32"), pooled)])
    (said,) = program.on_host(network)
    assert said.endswith("the device waits: max_pool is computed on floating-point numbers only, not on int8")
    made, _, expected = bound(cuda, 0, Engine.GRAPH, network)
    made.capture()
    assert not made.timed.replay
    cuda.calls.clear()
    made.run()
    assert cuda.calls[0] == cuda.calls[-1] == ("synchronise",)
    assert ("begin capture",) not in cuda.calls
    for name, array in expected.items():
        np.testing.assert_array_equal(to_array(made.tensors[name]), array)


def test_a_graph_is_timed_by_events_while_the_host_is_ahead(cuda: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_WARM_CLOCK_S", 0.001)
    monkeypatch.setattr("iossim.execution.lead.ATTEMPTS", 1)  # this host may be slow
    made, _, _ = bound(cuda, 0, Engine.GRAPH)
    made.capture()
    assert made.timed.replay
    cuda.calls.clear()
    (samples,) = timing.time_rounds([made.timed], Timing(rounds=2, warm_up=1), "cuda")
    assert samples.times_us == (250.0, 250.0)
    assert samples.conditions["clock"] == "cuda events"
    names = [call[0] for call in cuda.calls]
    timed = ["replay", "synchronise", "record", "sleep", "record", "replay", "record", "synchronise"] * 3
    assert names[-len(timed) :] == timed
    # Before that the device is brought to the clock at which it works.
    warm_up = names[: -len(timed)]
    assert warm_up == ["replay", "synchronise"] * (len(warm_up) // 2)
    assert warm_up


def test_what_the_host_issues_is_timed_by_its_clock(cuda: Double) -> None:
    made, _, _ = bound(cuda, 1, Engine.PAPER)
    assert not made.timed.replay
    (samples,) = timing.time_rounds([made.timed], Timing(rounds=2, warm_up=1), "cuda")
    assert samples.conditions["clock"] == "host"
    assert not any(call[0] in ("sleep", "replay", "begin capture") for call in cuda.calls)


def test_a_captured_baseline_ran_before_its_capture(cuda: Double) -> None:
    ran: list[str] = []
    run = timing.prepared("torch-cuda-graph", lambda x: ran.append(cuda.streams[-1]), [torch.zeros(1)], True)
    assert run.replay
    assert ran == ["legacy", "s0", "s0", "s0", "capture"]
    run.call()
    assert cuda.calls[-1] == ("replay",)
