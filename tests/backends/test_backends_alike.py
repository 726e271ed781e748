"""Behaviour common to all backends that compute values: any plan gives NumPy's outputs, and a misfit is refused."""

from __future__ import annotations

import numpy as np
import pytest
from host_backend import HostBackend
from host_device import HostDriver
from hypothesis import given, settings
from hypothesis import strategies as st
from other_plans import boxed
from random_networks import random_inputs, random_network, random_schedule, sequential_schedule

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.base.errors import GraphError, ScheduleError
from iossim.execution.backend import Backend
from iossim.execution.backends import create_backend
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.ir.types import Precision
from iossim.testing.backends import BackendConformance

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
    with pytest.raises(GraphError, match=r"input 'x' is float32\[.*\]; give an array of fp32"):
        by.execute(network, plan, {"x": inputs["x"][..., :1]})
    with pytest.raises(ScheduleError, match="the plan is for another graph"):
        by.execute(other, plan, inputs)
