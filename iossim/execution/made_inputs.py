"""Inputs of plans: given ones are checked, others are made from a seed, equal for every backend."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from iossim.base.errors import GraphError, PlanError, ScheduleError
from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import TensorType


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
