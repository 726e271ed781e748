"""Partitioning of a GPU's SMs by green contexts, each with its own SMs (``generations.yaml``)."""

from __future__ import annotations

from iossim.base.errors import OptionError
from iossim.hardware.compute_capability import GENERATIONS
from iossim.hardware.profile import DeviceProfile


def part_sizes(profile: DeviceProfile) -> tuple[int, ...]:
    """Possible SM counts of a context beside another, ascending; raises OptionError for a device without green
    contexts, or too small for two.
    """
    granularity = GENERATIONS.get(profile.architecture, {}).get("green_contexts")
    if granularity is None:
        raise OptionError(
            f"`engine` partition: {profile.name!r} ({profile.architecture}) cannot divide its SMs, green contexts "
            "came with Pascal; give `engine` paper or graph"
        )
    fewest, step = granularity
    found = tuple(range(fewest, profile.sm_count - fewest + 1, step))
    if not found:
        raise OptionError(
            f"`engine` partition: {profile.name!r} has {profile.sm_count} SMs and a green context at least {fewest}; "
            "give `engine` paper or graph"
        )
    return found
