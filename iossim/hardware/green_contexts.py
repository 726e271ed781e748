"""Partitioning of a GPU's SMs by green contexts, each with its own SMs.

Source: NVIDIA, CUDA Driver API 12.4, section "Green Contexts": the fewest SMs of a context, and the step, by
generation.
"""

from __future__ import annotations

from typing import NamedTuple

from iossim.base.errors import OptionError
from iossim.hardware.compute_capability import SINCE_HOPPER, Architecture
from iossim.hardware.profile import DeviceProfile


class Granularity(NamedTuple):
    """The minimum number of SMs of a context, and the step above it."""

    fewest: int
    step: int


_GRANULARITY: dict[str, Granularity] = {
    Architecture.PASCAL: Granularity(1, 1),
    Architecture.VOLTA: Granularity(2, 2),
    Architecture.TURING: Granularity(2, 2),
    Architecture.AMPERE: Granularity(4, 2),
    Architecture.ADA: Granularity(4, 2),
    **dict.fromkeys(sorted(SINCE_HOPPER), Granularity(8, 8)),
}


def granularity(profile: DeviceProfile) -> Granularity:
    """The partitioning granularity of a device; raises OptionError for one without green contexts."""
    found = _GRANULARITY.get(profile.architecture)
    if found is None:
        raise OptionError(
            f"`engine` partition: {profile.name!r} ({profile.architecture}) cannot divide its SMs, green contexts "
            "came with Pascal; give `engine` paper or graph"
        )
    return found


def part_sizes(profile: DeviceProfile) -> tuple[int, ...]:
    """Possible SM counts of a context beside another, ascending; raises OptionError if two do not fit."""
    fewest, step = granularity(profile)
    found = tuple(range(fewest, profile.sm_count - fewest + 1, step))
    if not found:
        raise OptionError(
            f"`engine` partition: {profile.name!r} has {profile.sm_count} SMs and a green context at least {fewest}; "
            "give `engine` paper or graph"
        )
    return found
