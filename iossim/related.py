"""Related techniques on the same graphs: dataflow on edge devices, and micro-batches under workspace limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iossim.api import limit_bytes, network_of, prices_of
from iossim.base.errors import OptionError, did_you_mean, public
from iossim.cost.model import CostModel
from iossim.execution.engine import AUTO
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.search.scheduler import Progress, StartProgress, ignore

if TYPE_CHECKING:  # each function loads what it needs
    from iossim.edge.distributed import Distributed
    from iossim.edge.planned import Dataflow
    from iossim.hardware.edge import EdgeDevice
    from iossim.transforms.microbatching.kernels_under_limits import MicroBatching


@public
def dataflow(
    model: Network | str | Path,
    device: EdgeDevice | str | Path,
    *,
    policy: str = "priority",
    parts: bool = False,
    progress: StartProgress = lambda label: ignore,
) -> Dataflow:
    """A network on an edge device: its operators whole, split over the units, and linked besides, with their times.

    ``policy``: ``priority`` (the paper's) or ``exhaustive``. ``parts``: branches may also run concurrently on parts of
    the units if that is faster. Raises DeviceError if an operator cannot be made to fit.
    """
    from iossim.edge.planned import dataflow as plan_dataflow
    from iossim.hardware.edge import edge_device

    board = edge_device(device)
    return plan_dataflow(network_of(model), board, policy, parts, progress)


@public
def distribute(
    model: Network | str | Path,
    device: EdgeDevice | str | Path,
    devices: int,
    *,
    link: str | None = None,
    sync: str = "ring",
    mix: str = "mix",
    policy: str = "priority",
) -> Distributed:
    """A network over several equal edge devices (d-Xenos): how operators are divided, what is sent, and the time.

    ``link``: one of the device's (its first). ``sync``: ``ring`` or ``server``. ``mix``: ``mix``, or ``outC``,
    ``inH`` or ``inW`` for every operator that can be divided so. Raises DeviceError without such a link.
    """
    from iossim.edge.distributed import distributed
    from iossim.hardware.edge import edge_device

    board = edge_device(device)
    return distributed(network_of(model), board, devices, link, sync, mix, policy)


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
    from iossim.transforms.microbatching.convolutions_in_micro_batches import of_network

    if direction not in ("forward", "training"):
        raise OptionError(f"`pass` {direction!r} is not known; {did_you_mean(direction, ('forward', 'training'))}")
    network = network_of(model)
    limits = limit_bytes(workspace, "workspace"), limit_bytes(total_workspace, "total_workspace")
    prices = prices_of(cost_model, device, network, engine)
    memory = limit_bytes(memory_limit, "memory_limit")
    return of_network(network, prices, policy, *limits, direction == "training", progress, memory)


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
    from iossim.transforms.microbatching.convolutions_in_micro_batches import of_table

    limits = limit_bytes(workspace, "workspace"), limit_bytes(total_workspace, "total_workspace")
    return of_table(Path(path), batch, policy, *limits)
