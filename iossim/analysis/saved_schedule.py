"""The network of a saved schedule, loaded as the schedule says."""

from __future__ import annotations

from iossim.ir.network import Network
from iossim.models.load import load_source
from iossim.schedule.fit import fit
from iossim.schedule.schedule import Schedule


def network_of(saved: Schedule, model: str | None = None) -> Network:
    """The network that a schedule was made for, which it fits; ``model`` is where it is now, if its file has moved.

    Raises ScheduleError where the schedule does not fit it, and what loading raises.
    """
    network = load_source(saved.source.to_source(model))
    fit(saved, network)
    return network
