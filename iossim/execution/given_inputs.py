"""Plans and inputs that a user gives: held to the network, and to what a graph or a plan takes, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

from iossim.base.errors import GraphError, PlanError, ScheduleError
from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.types import TensorType


def check_graph(plan: Plan, network: Network) -> None:
    """Raises ScheduleError, naming the network, where a plan is for another graph."""
    if plan.graph_hash != network.graph.hash:
        raise ScheduleError(f"the plan is for another graph than {network.name!r}; lower the schedule again")


def check_one_device(plan: Plan, backend: str) -> None:
    """Raises PlanError, naming the backend, which runs plans of one device, where a plan is of several, or not of the first."""
    if any(plan.devices):
        named = " and ".join(map(str, plan.devices))
        raise PlanError(
            f"the plan is of devices {named}, and backend {backend} runs device 0 alone; lower it for one device"
        )


def check_inputs(inputs: Mapping[str, Array], types: Mapping[str, TensorType]) -> None:
    """Raises GraphError, naming the input, where ``inputs`` lack one of ``types`` or have it of another shape or element type."""
    for name, expected in types.items():
        if name not in inputs:
            raise GraphError(f"no array for input {name!r}; give one of {expected}")
        array = inputs[name]
        if array.shape != expected.shape or array.dtype != expected.dtype.numpy:
            raise GraphError(
                f"input {name!r} is {array.dtype}[{'x'.join(map(str, array.shape))}]; give an array of {expected}"
            )
