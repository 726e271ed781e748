"""Runs a divided network over processes of this machine: NumPy computes, torch.distributed (gloo) sends what was planned."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from iossim.edge.collectives import Collective
from iossim.edge.distribution import Distribution
from iossim.edge.simulator.distributed import DeviceValues
from iossim.execution.backend import BackendError
from iossim.ir.op import Array


@dataclass(frozen=True)
class ProcessRun:
    """The outputs of every process, and the bytes that each sent."""

    outputs: list[dict[str, Array]]
    sent_bytes: list[int]


def run(found: Distribution, inputs: Mapping[str, Array]) -> ProcessRun:
    """Run a distribution over as many processes as it has devices.

    Raises BackendError without PyTorch, and where a process fails.
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
    return ProcessRun([outputs for outputs, _ in results], [sent for _, sent in results])


def _process(rank: int, devices: int, folder: Path) -> None:
    """One process: it leaves its outputs and the bytes that it sent in a file of its number."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder / 'meet'}", rank=rank, world_size=devices)
    found, inputs = pickle.loads((folder / "given").read_bytes())
    values, sent = DeviceValues(found.network, inputs), 0
    for step in found.steps:
        for each in step.exchanges:
            sent += _exchange(distributed, each.collective, rank, values.of(each.value))
        values.compute(step, rank)
    for each in found.gathers:
        sent += _exchange(distributed, each.collective, rank, values.of(each.value))
    outputs = {name: values.of(name) for name in found.network.graph.outputs}
    (folder / str(rank)).write_bytes(pickle.dumps((outputs, sent)))
    distributed.barrier()
    distributed.destroy_process_group()
    sys.stdout.flush()


def _exchange(distributed: Any, collective: Collective, rank: int, held: Array) -> int:
    """Send and receive a process's messages, round by round; the bytes that it sent."""
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
