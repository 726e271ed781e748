"""Networks in micro-batches, as a task makes them."""

from iossim import api
from iossim.ir.network import Network
from iossim.microbatching.micro_batches_transform import MicroBatched
from iossim.search.options import SearchOptions


def divided(
    network: Network, device: str, micro_batch: int | str = "auto", options: SearchOptions | None = None
) -> MicroBatched:
    (made,) = api.task(network, device, micro_batch=micro_batch, options=options).change().outcomes
    assert isinstance(made, MicroBatched)
    return made
