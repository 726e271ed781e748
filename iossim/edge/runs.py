"""A plan of dataflow, run: on one edge device's memories, or divided among devices or processes, its outputs beside the reference's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isinf
from typing import Any

from iossim.backends.numpy_reference.execute import evaluate_graph
from iossim.edge.distributed import Distributed
from iossim.edge.plan import EdgePlan
from iossim.edge.simulator import distributed, execute
from iossim.execution.made_inputs import made_arrays
from iossim.execution.measured_run import largest_error
from iossim.ir.network import Network
from iossim.ir.op import Array

#: Of the largest value of an output: what sums in another order may differ by.
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class DataflowRun:
    """``error``: the largest difference of any device's outputs from the reference's, over the largest value; infinite where only
    one of them is not finite. ``sent_bytes`` by each process, where there are any."""

    model: str
    device: str
    devices: int
    in_processes: bool
    error: float
    planned_bytes: int
    sent_bytes: tuple[int, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the outputs are equal, and as much was sent as planned."""
        return self.error <= TOLERANCE and (not self.in_processes or sum(self.sent_bytes) == self.planned_bytes)

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "device": self.device,
            "devices": self.devices,
            "in_processes": self.in_processes,
            "holds": self.holds,
            "error": None if isinf(self.error) else self.error,
            "planned_bytes": self.planned_bytes,
            "sent_bytes": list(self.sent_bytes),
        }


def run_plan(plan: EdgePlan, seed: int = 0) -> DataflowRun:
    """One device's plan by NumPy, byte by byte in the memories that it names, on made inputs."""
    inputs = _inputs(plan.network, seed)
    error = largest_error(execute.run(plan, inputs), evaluate_graph(plan.network.graph, inputs))
    return DataflowRun(_model(plan.network), plan.device.name, 1, False, error, 0)


def run_distributed(found: Distributed, in_processes: bool, seed: int = 0) -> DataflowRun:
    """A divided network on made inputs: by NumPy, each device with arrays of its own, or each in a process of its own.

    Raises BackendError where processes are wanted and PyTorch is missing, and where one fails.
    """
    distribution = found.distribution
    inputs = _inputs(distribution.network, seed)
    outputs: list[dict[str, Array]]
    if in_processes:
        from iossim.edge.processes import processes

        done = processes.run(distribution, inputs)
        outputs, sent = done.outputs, tuple(done.sent_bytes)
    else:
        outputs, sent = distributed.run(distribution, inputs), ()
    expected: Mapping[str, Array] = evaluate_graph(distribution.network.graph, inputs)
    error = max(largest_error(each, expected) for each in outputs)
    return DataflowRun(
        _model(distribution.network),
        found.device.name,
        distribution.devices,
        in_processes,
        error,
        distribution.sent_bytes,
        sent,
    )


def _model(network: Network) -> str:
    return network.source.model or network.name


def _inputs(network: Network, seed: int) -> dict[str, Array]:
    return made_arrays(network.graph.inputs, network.graph.types, seed)
