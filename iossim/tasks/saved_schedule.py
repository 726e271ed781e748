"""The network of a saved schedule, loaded and rewritten as the schedule says."""

from __future__ import annotations

from iossim.ir.network import Network
from iossim.models.load import load_source
from iossim.schedule.fit import fit
from iossim.schedule.schedule import Schedule
from iossim.transforms.microbatching.micro_batched import split_source as split_micro_batches
from iossim.transforms.microbatching.micro_batched import with_micro_batches
from iossim.transforms.rewriting.saved_rewriting import rewritten_again, split_source


def network_of(saved: Schedule, model: str | None = None) -> Network:
    """The network that a schedule was made for, which it fits; ``model`` is where it is now, if its file has moved.

    Raises ScheduleError where the schedule does not fit it, ReplayError where it cannot be rewritten so, and what loading raises.
    """
    network, rewriting = before_rewriting(saved, model)
    if rewriting is not None:
        network = rewritten_again(network, rewriting)
    network = with_micro_batches(network, split_micro_batches(saved.source.to_source(model))[1])
    fit(saved, network)
    return network


def before_rewriting(saved: Schedule, model: str | None = None) -> tuple[Network, str | None]:
    """The network that a schedule's was made of, as it was loaded, and the text that says how it is rewritten; None where it is not.

    Micro-batches are divided behind both.
    """
    source, rewriting = split_source(split_micro_batches(saved.source.to_source(model))[0])
    return load_source(source), rewriting
