"""Graphs and plans computed with NumPy: the definition of a graph's result, and the backend that checks all other ones.

A graph is evaluated op by op, in order, and a plan in the order of issue. A merged launch really runs the one stacked
convolution, and its consumers read slices of it. All runs in one thread whatever the plan's queues, so that the
backend's times show no concurrency.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter_ns

import numpy as np

from iossim.base.errors import OptionError, Progress, ignore
from iossim.execution.backend import Choices, Context, Samples, Timing, without_variants
from iossim.execution.engine import Engine
from iossim.execution.made_inputs import check_graph, check_inputs, launch_graph, made_inputs
from iossim.execution.memory import arrays_in, with_memory
from iossim.execution.plan import Copy, Launch, Plan
from iossim.ir.graph import Graph
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import Precision


def evaluate_graph(graph: Graph, inputs: Mapping[str, Array], progress: Progress = ignore) -> dict[str, Array]:
    """The arrays of the graph's outputs by name, from arrays for its inputs; ``progress`` counts ops.

    Weights are loaded when they are read and not kept; other values are dropped after their last consumer. Raises
    GraphError if ``inputs`` are not the graph's.
    """
    check_inputs(inputs, {name: graph.types[name] for name in graph.inputs})
    known: dict[str, Array] = {name: inputs[name] for name in graph.inputs}
    readers_left = Counter(name for node in graph.nodes for name in set(node.inputs))
    readers_left.update(graph.outputs)
    for done, node in enumerate(graph.nodes):
        progress(done, len(graph.nodes))
        arrays = [known[name] if name in known else graph.constants[name].load() for name in node.inputs]
        known.update(zip(node.outputs, node.op.evaluate(arrays), strict=True))
        readers_left.subtract(set(node.inputs))
        for name in (*node.inputs, *node.outputs):
            if not readers_left[name]:
                known.pop(name, None)
    return {name: known[name] if name in known else graph.constants[name].load() for name in graph.outputs}


def numpy_outputs(network: Network, inputs: Mapping[str, Array], progress: Progress = ignore) -> Mapping[str, Array]:
    """A network's outputs, as a :data:`~iossim.execution.measured_run.Reference`."""
    return evaluate_graph(network.graph, inputs, progress)


def execute(plan: Plan, network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of the plan's outputs by name, from arrays for its inputs; commands run in the order of issue.

    Raises GraphError if ``inputs`` are not the plan's, ScheduleError for a plan of another graph.
    """
    check_graph(plan, network)
    check_inputs(inputs, {name: network.graph.types[name] for name in plan.inputs})
    plan = with_memory(plan)
    arrays = arrays_in(plan, np.zeros(plan.arena_bytes, dtype=np.uint8))
    for name in plan.inputs:
        arrays[name][...] = inputs[name]
    for command in plan.commands:
        match command:
            case Copy():
                arrays[command.target][...] = arrays[command.source]
            case Launch():
                graph = launch_graph(network, command)  # a merged one is the stacked convolution
                read = [arrays[name] for name in command.reads]
                made = evaluate_graph(graph, dict(zip(graph.inputs, read, strict=True)))
                for name, output in zip(command.writes, graph.outputs, strict=True):
                    arrays[name][...] = made[output]
    return {name: arrays[name].copy() for name in plan.outputs}


#: All engines: the SMs of its units do not affect values.
ENGINES = tuple(Engine)


def missing() -> str:
    """Empty: NumPy is always available."""
    return ""


def create(precision: Precision, engine: Engine, options: Mapping[str, str]) -> NumpyBackend:
    """The backend; raises OptionError for any option, as there are none."""
    for name in options:
        raise OptionError(f"backend numpy_reference has no option {name!r}; leave it out")
    return NumpyBackend(precision, engine)


class NumpyBackend:
    """Runs plans with :func:`~iossim.backends.numpy_reference.backend.execute`."""

    def __init__(self, precision: Precision, engine: Engine) -> None:
        libraries = (("numpy", np.__version__),)
        self.context = Context("numpy_reference", "cpu", str(precision), str(engine), libraries=libraries)

    def choices(self, network: Network) -> Choices:
        return without_variants(self.context.backend)

    def execute(self, network: Network, plan: Plan, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return execute(plan, network, inputs)

    def measure(
        self, network: Network, plans: Sequence[Plan], timing: Timing, progress: Progress = ignore
    ) -> list[Samples]:
        """Host times; weights are loaded in each run, and no round is rejected."""
        planned = [with_memory(plan) for plan in plans]
        inputs = [made_inputs(plan, network, timing.seed) for plan in planned]
        generator = random.Random(timing.seed)
        times_us: list[list[float]] = [[] for _ in plans]
        total = timing.warm_up + timing.rounds
        for done in range(total):
            for index in generator.sample(range(len(plans)), len(plans)):
                began = perf_counter_ns()
                execute(planned[index], network, inputs[index])
                if done >= timing.warm_up:
                    times_us[index].append((perf_counter_ns() - began) / 1e3)
            progress(done + 1, total)
        return [Samples(tuple(found)) for found in times_us]
