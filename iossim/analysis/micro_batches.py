"""Micro-batches of a network's convolutions on a device that a model stands for, or of kernels that a table tells of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from iossim.cost.model import CostModel, PricesCandidates
from iossim.errors import OptionError
from iossim.ir.network import Network
from iossim.microbatching.configuration import BenchmarkRow, micro_batch_sizes
from iossim.microbatching.conv_kernel import ConvKernel
from iossim.microbatching.micro_batching import MicroBatching, micro_batch
from iossim.microbatching.network_kernels import FORWARD, KernelName, convolution_kernels
from iossim.microbatching.simulated import simulated_rows
from iossim.microbatching.table import read_table


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
) -> MicroBatching:
    """The convolutions of a network; raises OptionError where it has none, or where the cost model knows no algorithms.

    ``progress`` is told of the distinct kernels that are benchmarked, and how many there are.
    """
    if not isinstance(cost_model, PricesCandidates):
        raise OptionError(
            f"`cost_model` {cost_model.identity.name!r} does not time the algorithms of a convolution one by one; "
            "use the simulator, or give a table"
        )
    kernels = convolution_kernels(network, training)
    if not kernels:
        raise OptionError(f"{network.name!r} has no convolution whose batch could be divided; give another model")
    distinct = list(dict.fromkeys(kernels.values()))
    known: dict[ConvKernel, tuple[BenchmarkRow, ...]] = {}
    progress(0, len(distinct))
    for done, kernel in enumerate(distinct):
        known[kernel] = simulated_rows(kernel, micro_batch_sizes(policy, kernel.batch), cost_model)
        progress(done + 1, len(distinct))
    return micro_batch(
        {name: kernel.batch for name, kernel in kernels.items()},
        {name: known[kernel] for name, kernel in kernels.items()},
        policy,
        workspace_limit_bytes,
        total_workspace_limit_bytes,
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
    return micro_batch(batches, rows, policy, workspace_limit_bytes, total_workspace_limit_bytes)
