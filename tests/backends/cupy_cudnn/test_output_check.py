"""Outputs are judged of the run that counts: a graph that does nothing, or in no order, is caught, and so is what was timed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from host_device import DropsEdges, HostDriver, HostGraph, HostMemory, HostStream
from host_library import HostLibrary
from random_networks import random_inputs, random_network, random_schedule

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.execution.backend import BackendError, Timing
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.measured_run import largest_error
from iossim.execution.memory import plan_memory
from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.ir.types import Precision

SEEDS = range(8)


class LaunchesNothing(HostDriver):
    """Graphs are captured, and their launches lost."""

    def launch_graph(self, graph: HostGraph, stream: HostStream) -> None:
        super().launch_graph(HostGraph([]), stream)


def lowered(seed: int, engine: Engine) -> tuple[Network, Plan]:
    network = random_network(seed, units=6)
    return network, lower_schedule(random_schedule(network, seed), network, engine, in_place=True)


def on(driver: HostDriver, engine: Engine) -> CupyCudnnBackend:
    return CupyCudnnBackend(Precision.FP32, engine, CudnnOptions(), driver, HostLibrary(driver))


@pytest.mark.parametrize("broken", [LaunchesNothing, DropsEdges])
@pytest.mark.parametrize("seed", SEEDS)
def test_outputs_are_those_of_the_graph(seed: int, broken: type[HostDriver]) -> None:
    """Right answers of the calls that are made before the capture do not hide what the graph computes."""
    network, plan = lowered(seed, Engine.GRAPH)
    inputs = random_inputs(network)
    expected = evaluate_graph(network.graph, inputs)
    assert largest_error(on(HostDriver(seed), Engine.GRAPH).execute(network, plan, inputs), expected) < 1e-4
    assert largest_error(on(broken(seed), Engine.GRAPH).execute(network, plan, inputs), expected) > 0.1


@pytest.mark.parametrize("broken", [LaunchesNothing, DropsEdges])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_timed_is_held_to_its_outputs(seed: int, broken: type[HostDriver]) -> None:
    network, plan = lowered(seed, Engine.GRAPH)
    timing = Timing(rounds=2, warm_up=1, seed=seed)
    assert len(on(HostDriver(seed), Engine.GRAPH).measure(network, [plan], timing)[0].times_us) == 2
    with pytest.raises(BackendError, match="computes other outputs than the same calls one by one"):
        on(broken(seed), Engine.GRAPH).measure(network, [plan], timing)


class GivesArenasBack(HostDriver):
    """A pool that hands back the first block of an arena's size, with what it holds."""

    def __init__(self, arena_bytes: int) -> None:
        super().__init__()
        self.arena = super().allocate(arena_bytes)

    def allocate(self, size_bytes: int) -> HostMemory:
        return self.arena if size_bytes == self.arena.size_bytes else super().allocate(size_bytes)


@pytest.mark.parametrize("engine", UNDIVIDED)
def test_right_answers_of_an_earlier_run_are_not_found_in_its_memory(engine: Engine) -> None:
    network, plan = lowered(0, engine)
    plan = plan_memory(plan)
    inputs = random_inputs(network)
    backend = on(GivesArenasBack(plan.arena_bytes), engine)
    assert largest_error(backend.execute(network, plan, inputs), evaluate_graph(network.graph, inputs)) < 1e-4
    idle = replace(plan, commands=plan.commands[-1:])
    assert all(np.isnan(array).all() for array in backend.execute(network, idle, inputs).values())
