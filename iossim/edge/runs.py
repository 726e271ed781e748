"""Execution of a dataflow plan: on one edge device, or divided among several, compared with the reference.

A divided network is computed by NumPy, every device with its own arrays. Elements that a device neither made nor
received are NaN, so that a missing message is visible in the outputs. Messages are copied, or sent between processes by
torch.distributed (gloo).
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import numpy as np

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.edge.collectives import Collective, apply
from iossim.edge.distributed import Distributed
from iossim.edge.distribution import DistributedStep, Distribution
from iossim.edge.operators import run_calls
from iossim.edge.plan import EdgePlan
from iossim.edge.simulator import execute
from iossim.execution.backend import BackendError
from iossim.execution.made_inputs import check_inputs, made_arrays
from iossim.execution.measured_run import largest_difference
from iossim.execution.plan import Box
from iossim.ir.op import Array
from iossim.ir.types import TensorType

#: Function that sends the messages of a collective between arrays of a value, one for each device that runs here.
Send = Callable[[Collective, Sequence[Array]], None]


def run_devices(
    found: Distribution, inputs: Mapping[str, Array], devices: Sequence[int], send: Send = apply
) -> list[dict[str, Array]]:
    """Outputs of the network on each of these devices, from arrays for its inputs; others run elsewhere."""
    graph = found.network.graph
    check_inputs(inputs, {name: graph.types[name] for name in graph.inputs})
    constants = {name: one.load() for name, one in graph.constants.items()}
    held = [constants | {name: array.copy() for name, array in inputs.items()} for _ in devices]
    for arrays in held:
        arrays.update((name, _unknown(graph.types[name])) for unit in found.network.units for name in unit.outputs)
    for step, exchanges in zip((*found.steps, None), found.exchanges, strict=True):
        for each in exchanges:
            send(each.collective, [arrays[each.value] for arrays in held])
        if step is not None:
            for device, arrays in zip(devices, held, strict=True):
                _compute(step, device, arrays)
    return [{name: arrays[name] for name in graph.outputs} for arrays in held]


def _unknown(kind: TensorType) -> Array:
    """An array of elements that nobody made or sent yet."""
    return np.full(kind.shape, np.nan if kind.dtype.is_floating else 0, kind.dtype.numpy)


def _compute(step: DistributedStep, device: int, arrays: Mapping[str, Array]) -> None:
    """Fill the boxes that the device computes of a step's outputs."""
    demand, known = step.operator.needed(step.boxes[device]), dict[tuple[str, Box], Array]()
    run_calls(demand.calls, lambda name, part, order: arrays[name][part.selection], known)
    for value, box in step.operator.boxes(demand.box).items():
        arrays[value][box.selection] = known[value, box]


def run_in_processes(
    found: Distribution, inputs: Mapping[str, Array]
) -> tuple[list[dict[str, Array]], tuple[int, ...]]:
    """Outputs of every process, one per device, and the bytes that each sent. Raises BackendError without PyTorch, or
    if a process fails.
    """
    try:
        from torch import multiprocessing
    except ImportError:
        raise BackendError("running over processes needs PyTorch; pip install 'iossim[distributed]'") from None
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "given").write_bytes(pickle.dumps((found, dict(inputs))))
        try:
            multiprocessing.spawn(_process, (found.devices, folder), found.devices)
        except multiprocessing.ProcessException as error:
            reason = str(error).strip().splitlines()[-1]
            raise BackendError(f"a process of {found.devices} failed: {reason}") from None
        results = [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(found.devices)]
    return [outputs for outputs, _ in results], tuple(sent for _, sent in results)


def _process(rank: int, devices: int, folder: Path) -> None:
    """One process: it stores its outputs and the bytes that it sent in a file of its number."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder / 'meet'}", rank=rank, world_size=devices)
    found, inputs = pickle.loads((folder / "given").read_bytes())
    sent: list[int] = []
    (outputs,) = run_devices(
        found, inputs, [rank], lambda collective, held: sent.append(_exchange(distributed, collective, rank, *held))
    )
    (folder / str(rank)).write_bytes(pickle.dumps((outputs, sum(sent))))
    distributed.barrier()
    distributed.destroy_process_group()
    sys.stdout.flush()


def _exchange(distributed: ModuleType, collective: Collective, rank: int, held: Array) -> int:
    """Send and receive a process's messages, round by round; returns the bytes that it sent."""
    import torch

    total = 0
    for messages in collective.rounds:
        waiting, arriving = [], []
        for tag, each in enumerate(messages):
            if each.source == rank:
                sending = each.packed(held)
                total += sending.nbytes
                waiting.append(distributed.isend(torch.from_numpy(sending.view(np.uint8)), each.target, tag=tag))
            elif each.target == rank:
                coming = np.empty(each.elements, held.dtype)
                waiting.append(distributed.irecv(torch.from_numpy(coming.view(np.uint8)), each.source, tag=tag))
                arriving.append((each, coming))
        for one in waiting:
            one.wait()
        for each, coming in arriving:
            each.unpack(coming, held)
    return total


#: Tolerance of sums in another order, relative to the largest value of an output.
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class DataflowRun:
    """Result of a run. ``error`` is the largest difference of any device's outputs from the reference's, over the
    largest value; infinite if only one of them is not finite. ``sent_bytes`` are by process, if there are any.
    """

    model: str
    device: str
    devices: int
    in_processes: bool
    error: float
    planned_bytes: int
    sent_bytes: tuple[int, ...] = ()

    @property
    def holds(self) -> bool:
        """True if the outputs are equal, and as many bytes were sent as planned."""
        return self.error <= TOLERANCE and (not self.in_processes or sum(self.sent_bytes) == self.planned_bytes)

    def to_json(self) -> dict[str, object]:
        names = "model", "device", "devices", "in_processes", "holds", "error", "planned_bytes", "sent_bytes"
        found = {name: getattr(self, name) for name in names}
        return found | {"error": None if isinf(self.error) else self.error, "sent_bytes": list(self.sent_bytes)}

    def words(self) -> str:
        """The comparison of outputs, and what was sent."""
        where = f"{self.devices} {'processes' if self.in_processes else self.device}"
        differ = "are not finite, and the network's are"
        if not isinf(self.error):
            differ = f"differ from the network's by {self.error:.1e} of the largest value"
        words = f"{self.model} on {where}: outputs {differ}"
        if self.in_processes:
            each = ", ".join(f"{sent:,}" for sent in self.sent_bytes)
            words += f"; {sum(self.sent_bytes):,} bytes were sent ({each}), {self.planned_bytes:,} were planned"
        elif self.devices > 1:
            words += f"; {self.planned_bytes:,} bytes were sent"
        return words + "."


def run(found: EdgePlan | Distributed, in_processes: bool = False, seed: int = 0) -> DataflowRun:
    """Run on generated inputs, by NumPy: a plan byte by byte in the memories that it names, or a divided network, each
    device with its own arrays, or each in its own process. Raises BackendError if processes are requested without
    PyTorch, or one fails.
    """
    planned, sent = found if isinstance(found, EdgePlan) else found.distribution, tuple[int, ...]()
    network, devices, planned_bytes = planned.network, 1, 0
    inputs = made_arrays(network.graph.inputs, network.graph.types, seed)
    if isinstance(planned, EdgePlan):
        outputs = [execute.run(planned, inputs)]
    else:
        devices, planned_bytes = planned.devices, planned.sent_bytes
        if in_processes:
            outputs, sent = run_in_processes(planned, inputs)
        else:
            outputs = run_devices(planned, inputs, range(devices))
    expected: Mapping[str, Array] = evaluate_graph(network.graph, inputs)
    error = max(largest_difference(each, expected).relative for each in outputs)
    model = network.source.model or network.name
    return DataflowRun(model, found.device.name, devices, in_processes, error, planned_bytes, sent)
