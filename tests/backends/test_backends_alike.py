"""Whatever the schedule, wherever values lie and however queues interleave, a plan gives NumPy's outputs on all backends that compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from checked_execution import execute
from graph_builders import builder_with
from host_backend import HostBackend
from host_device import HostDriver
from hypothesis import given, settings
from hypothesis import strategies as st
from other_plans import boxed
from random_networks import make_stage, one_block, random_inputs, random_network, random_schedule, sequential_schedule

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.base.errors import GraphError, ScheduleError
from iossim.execution.backend import Backend, Choice, create_backend
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import check_happens_before, plan_memory
from iossim.ir.constants import ArrayConstant
from iossim.ir.graph import Graph, Node
from iossim.ir.merging import merge_keys
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Split
from iossim.ir.ops.unary import Relu
from iossim.ir.types import Precision, TensorType
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Schedule
from iossim.testing.conformance import BackendConformance

REQUIRED = {"onnxruntime_cpu": "onnxruntime", "torch_cuda": "torch"}
NAMES = ["numpy_reference", "onnxruntime_cpu", pytest.param("torch_cuda", marks=pytest.mark.torch), "cupy_cudnn"]


def backend(name: str, engine: Engine = Engine.PAPER, seed: int = 0) -> Backend:
    """A backend on the CPU, that of cuDNN on the host's device."""
    if name == "cupy_cudnn":
        return HostBackend(engine=engine, driver=HostDriver(seed), plans=1)
    if name in REQUIRED:
        pytest.importorskip(REQUIRED[name])
    return create_backend(name, Precision.FP32, engine, {"device": "cpu"} if name == "torch_cuda" else {})


class TestContract(BackendConformance):
    """NumPy's is in ``tests/test_conformance.py``."""

    seeds = (1, 2)

    @pytest.fixture(autouse=True, params=NAMES[1:])
    def _name(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param

    def backend(self, engine: str) -> Backend:
        return backend(self.name, Engine(engine))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    engine=st.sampled_from(UNDIVIDED),
    in_place=st.booleans(),
    in_boxes=st.booleans(),
    in_arena=st.booleans(),
)
def test_any_schedule_wherever_values_lie(
    name: str, seed: int, engine: Engine, in_place: bool, in_boxes: bool, in_arena: bool
) -> None:
    """As they are, in place, and in boxes along any axis; each in memory of its own, or all in an arena."""
    network = random_network(seed, movers=True)
    plan = lower_schedule(random_schedule(network, seed), network, engine, in_place=in_place or in_boxes)
    plan = boxed(plan, seed) if in_boxes else plan
    plan = plan_memory(plan) if in_arena else plan
    check_happens_before(plan)
    inputs = random_inputs(network)
    expected = evaluate_graph(network.graph, inputs)
    for value, array in backend(name, engine, seed).execute(network, plan, inputs).items():
        limit = 1e-4 * max(1.0, np.abs(expected[value]).max())
        np.testing.assert_allclose(array, expected[value], rtol=1e-4, atol=limit)


@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_fit_is_refused(name: str) -> None:
    network, other = random_network(1), random_network(2)
    plan = lower_schedule(sequential_schedule(network), network, in_place=True)
    by, inputs = backend(name), random_inputs(network)
    with pytest.raises(GraphError, match="no array for input 'x'; give one of fp32"):
        by.execute(network, plan, {})
    with pytest.raises(GraphError, match=r"input 'x' is float64\[.*\]; give an array of fp32"):
        by.execute(network, plan, {"x": inputs["x"].astype(np.float64)})
    with pytest.raises(GraphError, match=r"input 'x' is float32\[1x3x7x1\]; give an array of fp32"):
        by.execute(network, plan, {"x": inputs["x"][..., :1]})
    with pytest.raises(ScheduleError, match="the plan is for another graph"):
        by.execute(other, plan, inputs)


SEEDS = st.integers(0, 2**20)


def assert_equal_outputs(network: Network, schedule: Schedule, engine: str = "paper", seed: int | None = None) -> None:
    inputs = random_inputs(network)
    plan = lower_schedule(schedule, network, engine)
    check_happens_before(plan)
    expected = evaluate_graph(network.graph, inputs)
    outputs = execute(plan, network, inputs, seed)
    assert list(outputs) == [name for name in network.graph.outputs if name not in network.graph.constants]
    for name, array in outputs.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)


@settings(max_examples=40)
@given(SEEDS, SEEDS, st.sampled_from(["paper", "graph"]), st.one_of(st.none(), SEEDS), st.booleans())
def test_any_schedule_computes_what_the_graph_does(
    network: int, schedule: int, engine: str, seed: int | None, in_place: bool
) -> None:
    """Concats and splits that move nothing, memory that is shared, workspaces: the same outputs, whatever the order."""
    drawn = random_network(network, movers=True)
    inputs = random_inputs(drawn)
    lowered = lower_schedule(random_schedule(drawn, schedule), drawn, engine, in_place=in_place, choices=workspaces)
    plan = plan_memory(lowered)
    check_happens_before(lowered)
    check_happens_before(plan)
    expected = evaluate_graph(drawn.graph, inputs)
    for name, array in execute(plan, drawn, inputs, seed).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)


def workspaces(units: tuple[str, ...], strategy: Strategy, variant: str) -> Choice:
    """Some launches need one, of some size."""
    return Choice(f"algorithm of {units[0]}", 300 * (len(units[0]) % 3))


def convolutions(*parts: tuple[tuple[int, int], Conv]) -> tuple[Network, list[str]]:
    """Convolutions of one 8x8 input in one block, each of 2 filters (or as many as it has groups)."""
    b, x = builder_with("parts", x=(2, 4, 8, 8))
    outputs, names = [], []
    with b.block("block"):
        for index, (kernel, op) in enumerate(parts):
            names.append(name := f"conv{index}")
            with b.unit(name, "Conv-Relu"):
                filters = max(2, op.groups)
                weight = b.constant(f"{name}.weight", (filters, 4 // op.groups, *kernel))
                y = b.add(op, x, weight, b.constant(f"{name}.bias", (filters,)), name=name)
                outputs.append(b.add(Relu(), y))
    return b.network(outputs), names


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(
            [((3, 3), Conv((1, 1), (1, 1, 1, 1), (1, 1), 4)), ((3, 3), Conv((1, 1), (1, 1, 1, 1)))], id="grouped"
        ),
        pytest.param(
            [((3, 3), Conv((1, 1), (2, 2, 2, 2), (2, 2))), ((2, 2), Conv((1, 1), (1, 1, 1, 1), (2, 2)))],
            id="paddings of another phase",
        ),
        pytest.param([((2, 2), Conv((2, 2))), ((1, 1), Conv((1, 1)))], id="strides"),
    ],
)
def test_what_one_convolution_cannot_compute_is_refused(parts: Sequence[tuple[tuple[int, int], Conv]]) -> None:
    network, names = convolutions(*parts)
    with pytest.raises(ScheduleError, match=r"block 'block', stage 0: units conv0, conv1 do not merge"):
        lower_schedule(one_block(network, make_stage([names], "merge")), network)


def test_units_read_before_their_activation_do_not_merge() -> None:
    b, x = builder_with("inner", x=(1, 2, 4, 4))
    names = []
    for name in ("conv0", "conv1"):
        with b.unit(name, "Conv-Relu"):
            names.append(b.conv(x, 2, name=name))
            b.add(Relu(), name)
    network = b.network(names)
    assert merge_keys(network, (0, 1)) == [None, None]


def test_an_input_that_is_an_output_and_a_weight_that_is_an_output() -> None:
    b, x = builder_with("odd", x=(1, 2, 3, 3))
    y = b.conv(x, 2, name="conv")
    network = b.network([x, "conv.bias", y])
    assert_equal_outputs(network, sequential_schedule(network))


X = np.array([[-1.0, 2.0, -3.0, 4.0]], dtype=np.float32)
GRAPH = Graph.create(
    {"x": TensorType((1, 4))},
    ["y", "b", "c"],
    [
        Node("split", Split(1, (2, 2)), ("x",), ("a", "b")),
        Node("relu", Relu(), ("a",), ("r",)),
        Node("add", Add(), ("r", "b", "c"), ("y",)),
    ],
    {"c": ArrayConstant(np.array([10.0, 20.0], dtype=np.float32))},
)


def test_outputs_are_given_by_name():
    told: list[tuple[int, int]] = []
    outputs = evaluate_graph(GRAPH, {"x": X}, lambda done, total: told.append((done, total)))
    assert told == [(done, len(GRAPH.nodes)) for done in range(len(GRAPH.nodes))]
    assert list(outputs) == ["y", "b", "c"]
    np.testing.assert_array_equal(outputs["y"], [[7, 26]])
    np.testing.assert_array_equal(outputs["b"], [[-3, 4]])
    np.testing.assert_array_equal(outputs["c"], [10, 20])
