"""Convolutions in micro-batches under limits on workspace, as functions of :mod:`iossim.related`."""

from __future__ import annotations

from pathlib import Path

from iossim.base.errors import OptionError, Progress, did_you_mean, ignore, public
from iossim.base.memory import limit_bytes
from iossim.cost.model import CostModel
from iossim.execution.engine import AUTO
from iossim.execution.lower import lower_schedule
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.microbatching.convolutions_in_micro_batches import benchmarks, read_table, with_interval
from iossim.microbatching.kernels_under_limits import Benchmarks, Memory, MicroBatching
from iossim.microbatching.network_kernels import FORWARD, KernelName, kernel_name
from iossim.search.scheduler import schedule
from iossim.tasks.requests import network_of, prices_of

__all__ = ["microbatch", "microbatch_table"]


@public
def microbatch(
    model: Network | str | Path,
    device: DeviceProfile | str | Path | None,
    *,
    engine: str = AUTO,
    cost_model: str | CostModel = "simulator",
    policy: str = "all",
    workspace: int | str | None = None,
    total_workspace: int | str | None = None,
    memory_limit: int | str | None = None,
    direction: str = "forward",
    progress: Progress = ignore,
) -> MicroBatching:
    """Divide the batch of a network's convolutions under one workspace limit each, or one for all (``64MiB``, or
    bytes).

    ``workspace`` is the limit of each, ``total_workspace`` that of all together; ``memory_limit`` bounds activations
    and workspaces in one arena, with units run sequentially. ``policy``: ``all`` sizes of micro-batches,
    ``power-of-two``, ``undivided``. ``direction``: ``forward``, or ``training`` to include the gradients. Raises
    OptionError for other values, and for prices without variants.
    """
    if direction not in ("forward", "training"):
        raise OptionError(f"`pass` {direction!r} is not known; {did_you_mean(direction, ('forward', 'training'))}")
    network = network_of(model)
    limits = limit_bytes(workspace, "workspace"), limit_bytes(total_workspace, "total_workspace")
    prices = prices_of(cost_model, device, network, engine)
    memory_bytes = limit_bytes(memory_limit, "memory_limit")
    known = benchmarks(network, prices, policy, direction == "training", progress)
    if memory_bytes is None:
        return with_interval(known.divided(*limits), known, network, prices, direction == "training")
    if direction == "training" or limits[1] is not None:
        other = "total_workspace" if limits[1] is not None else "pass training"
        raise OptionError(f"`memory_limit` is of a forward pass and all its workspaces; leave {other} out")
    plan = lower_schedule(schedule(network, prices, "sequential"), network, in_place=True)
    names = {unit.name: [kernel_name(node) for node in network.unit_nodes(unit)] for unit in network.units}
    kernels = {unit: [name for name in own if name and name in known.batches] for unit, own in names.items()}
    found = known.divided(limits[0], memory=Memory(plan, kernels, memory_bytes))
    return with_interval(found, known, network, prices, training=False)


@public
def microbatch_table(
    path: Path | str,
    *,
    batch: int | None = None,
    policy: str = "all",
    workspace: int | str | None = None,
    total_workspace: int | str | None = None,
) -> MicroBatching:
    """The same for a JSON table of benchmarks; ``batch`` defaults to the images of each kernel's largest row."""
    limits = limit_bytes(workspace, "workspace"), limit_bytes(total_workspace, "total_workspace")
    rows = {KernelName(kernel, FORWARD): own for kernel, own in read_table(Path(path)).items()}
    batches = {name: batch or max(row.batch for row in own) for name, own in rows.items()}
    return Benchmarks(batches, rows, policy).divided(*limits)
