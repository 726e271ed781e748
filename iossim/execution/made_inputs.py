"""Operands of a plan's run: the graphs of its launches, and inputs, given and checked, or made from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from iossim.base.errors import GraphError, PlanError, ScheduleError
from iossim.execution.plan import Launch, Plan
from iossim.ir.graph import Graph
from iossim.ir.merging import merged_graph
from iossim.ir.network import Network, subgraph
from iossim.ir.op import Array
from iossim.ir.types import TensorType
from iossim.schedule.batch import Strategy


def check_graph(plan: Plan, network: Network) -> None:
    """Raise ScheduleError, naming the network, if a plan is for another graph."""
    if plan.graph_hash != network.graph.hash:
        raise ScheduleError(f"the plan is for another graph than {network.name!r}; lower the schedule again")


def check_one_device(plan: Plan, backend: str) -> None:
    """Raise PlanError, naming the backend, if a plan uses devices other than the first."""
    if any(plan.devices):
        named = " and ".join(map(str, plan.devices))
        raise PlanError(
            f"the plan is of devices {named}, and backend {backend} runs device 0 alone; lower it for one device"
        )


def launch_graph(network: Network, launch: Launch) -> Graph:
    """A launch as a graph of its own: a unit's ops, or one stacked convolution and its activation."""
    units = [network.unit_index[name] for name in launch.units]
    if launch.strategy is Strategy.MERGE:
        return merged_graph(network, units)
    unit = network.units[units[0]]
    return subgraph(network.graph, network.unit_nodes(unit), unit.inputs, unit.outputs)


def check_inputs(inputs: Mapping[str, Array], types: Mapping[str, TensorType]) -> None:
    """Raise GraphError, naming the input, if one of ``types`` is missing, or has another shape or element type."""
    for name, expected in types.items():
        if name not in inputs:
            raise GraphError(f"no array for input {name!r}; give one of {expected}")
        array = inputs[name]
        if array.shape != expected.shape or array.dtype != expected.dtype.numpy:
            raise GraphError(
                f"input {name!r} is {array.dtype}[{'x'.join(map(str, array.shape))}]; give an array of {expected}"
            )


def made_inputs(plan: Plan, network: Network, seed: int = 0) -> dict[str, Array]:
    """An array for each of the plan's inputs."""
    return made_arrays(plan.inputs, network.graph.types, seed)


def made_arrays(names: Iterable[str], types: Mapping[str, TensorType], seed: int = 0) -> dict[str, Array]:
    """Normal numbers, or small integers for integer types, that depend only on ``seed`` and each name."""
    found: dict[str, Array] = {}
    for name in names:
        wanted = types[name]
        generator = np.random.default_rng([seed, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")])
        if wanted.dtype.is_floating:
            found[name] = generator.standard_normal(wanted.shape, dtype=np.float32).astype(wanted.dtype.numpy)
        else:
            found[name] = generator.integers(0, 2, wanted.shape).astype(wanted.dtype.numpy)
    return found
