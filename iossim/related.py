"""Related techniques on the same graphs: micro-batches under workspace limits, and the functions of guests' modules
``NAME_api`` (``dataflow`` and ``distribute``, on edge devices).
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iossim.api import limit_bytes, network_of, prices_of
from iossim.base.errors import OptionError, did_you_mean, public
from iossim.base.registry import guest_modules
from iossim.cost.model import CostModel
from iossim.execution.engine import AUTO
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.search.scheduler import Progress, ignore

if TYPE_CHECKING:  # each function loads what it needs
    from iossim.transforms.microbatching.kernels_under_limits import MicroBatching


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


def __getattr__(name: str) -> Any:
    for module in guest_modules("api").values():
        if name in (found := import_module(module)).__all__:
            return getattr(found, name)
    raise AttributeError(f"module 'iossim.related' has no attribute {name!r}")
