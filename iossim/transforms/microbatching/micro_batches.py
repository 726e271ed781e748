"""Micro-batches of a network's convolutions on a device that a model stands for, or of kernels that a table tells of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iossim.base.errors import OptionError
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.model import CostModel, PricesCandidates
from iossim.execution.lower import lower_schedule
from iossim.ir.network import Network
from iossim.search.scheduler import schedule
from iossim.transforms.microbatching.configuration import BenchmarkRow, micro_batch_sizes
from iossim.transforms.microbatching.conv_kernel import ConvKernel
from iossim.transforms.microbatching.measured import measured_rows
from iossim.transforms.microbatching.memory import divide_in_memory
from iossim.transforms.microbatching.micro_batching import MicroBatching, micro_batch
from iossim.transforms.microbatching.network_kernels import FORWARD, KernelName, convolution_kernels
from iossim.transforms.microbatching.simulated import simulated_rows
from iossim.transforms.microbatching.table import read_table


def ignore(done: int, total: int) -> None:
    """The progress of somebody who does not look."""


def of_network(
    network: Network,
    cost_model: CostModel,
    policy: str = "all",
    workspace_limit_bytes: int | None = None,
    total_workspace_limit_bytes: int | None = None,
    training: bool = False,
    progress: Callable[[int, int], None] = ignore,
    memory_limit_bytes: int | None = None,
) -> MicroBatching:
    """The convolutions of a network: :func:`benchmarks`, divided.

    ``memory_limit_bytes`` is of the arena of the network run unit by unit: activations, and the workspace of what runs.
    """
    known = benchmarks(network, cost_model, policy, training, progress)
    if memory_limit_bytes is None:
        return known.divided(workspace_limit_bytes, total_workspace_limit_bytes)
    if training or total_workspace_limit_bytes is not None:
        other = "total_workspace" if total_workspace_limit_bytes is not None else "pass training"
        raise OptionError(f"`memory_limit` is of a forward pass and all its workspaces; leave {other} out")
    plan = lower_schedule(schedule(network, cost_model, "sequential"), network, in_place=True)
    units = {
        unit.name: [str(KernelName(network.graph.nodes[node].name, FORWARD)) for node in unit.nodes]
        for unit in network.units
    }
    kernels = {unit: [name for name in names if name in map(str, known.batches)] for unit, names in units.items()}
    return micro_batch(
        known.batches,
        known.rows,
        policy,
        workspace_limit_bytes,
        memory_limit_bytes=memory_limit_bytes,
        in_memory=lambda fronts: divide_in_memory(fronts, plan, kernels, memory_limit_bytes),
    )


@dataclass(frozen=True)
class Benchmarks:
    """Kernels, their batches, and what is known of each at the sizes of a policy."""

    batches: Mapping[KernelName, int]
    rows: Mapping[KernelName, tuple[BenchmarkRow, ...]]
    policy: str

    def divided(self, workspace_limit_bytes: int | None, total_workspace_limit_bytes: int | None) -> MicroBatching:
        """The best under a limit of each kernel and one of all; raises OptionError where one is too small."""
        return micro_batch(self.batches, self.rows, self.policy, workspace_limit_bytes, total_workspace_limit_bytes)


def benchmarks(
    network: Network,
    cost_model: CostModel,
    policy: str = "all",
    training: bool = False,
    progress: Callable[[int, int], None] = ignore,
) -> Benchmarks:
    """Time the convolutions of a network; raises OptionError where it has none, or where the cost model knows no algorithms.

    ``progress`` is told of the distinct kernels that are benchmarked, and how many there are.
    """
    kernels = convolution_kernels(network, training)
    if not kernels:
        raise OptionError(f"{network.name!r} has no convolution whose batch could be divided; give another model")
    distinct = list(dict.fromkeys(kernels.values()))
    known: dict[ConvKernel, tuple[BenchmarkRow, ...]] = {}
    progress(0, len(distinct))
    for done, kernel in enumerate(distinct):
        known[kernel] = _rows(kernel, micro_batch_sizes(policy, kernel.batch), cost_model)
        progress(done + 1, len(distinct))
    return Benchmarks(
        {name: kernel.batch for name, kernel in kernels.items()},
        {name: known[kernel] for name, kernel in kernels.items()},
        policy,
    )


def _rows(kernel: ConvKernel, sizes: Sequence[int], cost_model: CostModel) -> tuple[BenchmarkRow, ...]:
    if isinstance(cost_model, PricesCandidates):
        return simulated_rows(kernel, sizes, cost_model)
    if isinstance(cost_model, MeasuredCostModel):
        return measured_rows(kernel, sizes, cost_model)
    raise OptionError(
        f"`cost_model` {cost_model.identity.name!r} does not time the algorithms of a convolution one by one; "
        "use the simulator, or give a table"
    )


def of_table(
    path: Path,
    batch: int | None = None,
    policy: str = "all",
    workspace_limit_bytes: int | None = None,
    total_workspace_limit_bytes: int | None = None,
) -> MicroBatching:
    """The kernels of a table, each of ``batch`` images, or of as many as its largest row."""
    rows = {KernelName(kernel, FORWARD): own for kernel, own in read_table(path).items()}
    batches = {name: batch or max(row.batch for row in own) for name, own in rows.items()}
    return Benchmarks(batches, rows, policy).divided(workspace_limit_bytes, total_workspace_limit_bytes)
