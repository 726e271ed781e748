"""Plans that run side by side, of the four networks and of two hundred random graphs: proven, executed, mutilated.

Executed means: in an arena of just the planned size, all that holds no value being NaN, on NumPy in a random interleaving
and, where ONNX Runtime is installed, on threads.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import pytest
from plan_races import Races
from random_networks import random_inputs, random_network, random_schedule

from iossim.backends.numpy_reference.execute import evaluate_graph, execute
from iossim.base.errors import ScheduleError
from iossim.cost.random import RandomCostModel
from iossim.execution.backend import Backend
from iossim.execution.backends import create_backend
from iossim.execution.engine import Engine
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.execution.measured_run import largest_error
from iossim.execution.memory import memory_lower_bound_bytes, plan_memory
from iossim.execution.plan import Plan
from iossim.ir.constants import SeededConstant
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.schedule import Schedule
from iossim.search.scheduler import schedule

ENGINES = (Engine.PAPER, Engine.GRAPH)


#: Sides of the images that each network computes on: its units and plans are those of its own images, its arithmetic a tenth.
SIDES = {"squeezenet": 224, "inception_v3": 139, "randwire": 64, "nasnet_a": 64}


def threads(engine: Engine) -> Backend | None:
    """The backend that runs on threads, if it can run here."""
    return create_backend("onnxruntime_cpu", Precision.FP32, engine) if find_spec("onnxruntime") else None


def rejected(plan: Plan) -> bool:
    try:
        check_happens_before(plan)
    except ScheduleError:
        return True
    return False


def prove(network: Network, chosen: Schedule, inputs: dict[str, Array], expected: dict[str, Array], seed: int) -> int:
    """Check, run and mutilate the plans of a schedule under both engines; returns how many mutations are races."""
    caught = 0
    for engine in ENGINES:
        lowered = lower_schedule(chosen, network, engine, in_place=True)
        plan = plan_memory(lowered)
        check_happens_before(plan)
        assert memory_lower_bound_bytes(plan) <= plan.arena_bytes <= plan.storage_bytes
        assert largest_error(execute(plan, network, inputs, seed), expected) <= 1e-4
        if (backend := threads(engine)) is not None:
            assert largest_error(backend.execute(network, plan, inputs), expected) <= 1e-4
        for mutilated, is_race in Races(lowered).mutations():
            assert rejected(mutilated) == is_race
            caught += is_race
    return caught


def sequential_outputs(network: Network, inputs: dict[str, Array]) -> dict[str, Array]:
    plan = lower_schedule(schedule(network, RandomCostModel(), "sequential"), network)
    return execute(plan, network, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("model", SIDES)
def test_the_four_networks(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SeededConstant, "load", cache(SeededConstant.load)
    )  # noise is drawn once, not by each execution
    (image,) = load(model).graph.inputs
    network = load(model, shapes={image: (1, 3, SIDES[model], SIDES[model])})
    inputs = random_inputs(network)
    expected = sequential_outputs(network, inputs)
    caught = 0
    for merge in (True, False):
        chosen = random_schedule(network, 1, merge)
        assert any(stage.concurrent for stage in chosen.stages)
        caught += prove(network, chosen, inputs, expected, seed=2)
    assert caught > 10


@pytest.mark.slow
def test_two_hundred_random_graphs() -> None:
    caught = 0
    for seed in range(200):
        network = random_network(seed, movers=seed % 2 == 0)
        inputs = random_inputs(network)
        expected = evaluate_graph(network.graph, inputs)
        outputs = {name: array for name, array in expected.items() if name not in network.graph.constants}
        caught += prove(network, random_schedule(network, seed), inputs, outputs, seed)
    assert caught > 500
