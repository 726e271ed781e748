"""Results of some cost models besides prices of stages: the facts of a stage, prices and bounds of streams, and bounds
of variants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from iossim.base.compiled import Floats
from iossim.cost.model import StageBounds
from iossim.schedule.problem import Masks


@dataclass(frozen=True, eq=False)
class StreamPrices:
    """End of each schedule's last kernel, and of the host's issuing; us, shape ``[schedules]``.

    ``ends_us``, ``[schedules, launches]``, is the end of each launch, 0 if it has no kernels.
    """

    latency_us: Floats
    issued_us: Floats
    ends_us: Floats


@dataclass(frozen=True, eq=False)
class LaunchWork:
    """Lower bounds of launches in any schedule: ``serial_us`` alone, ``host_us`` to issue, both of shape ``[n]``, and
    ``work_us``, ``[n, resources]``, on each resource that exists once, at full utilisation. In a microsecond of its
    time alone a launch needs at most ``share`` of a microsecond of the resource.
    """

    serial_us: Floats
    host_us: Floats
    work_us: Floats
    share: Floats


class Limit(StrEnum):
    """Limiting factor of a stage."""

    ARITHMETIC = "arithmetic"
    CUDA_CORES = "CUDA cores"  #: arithmetic outside tensor cores, in a precision that they have
    POWER = "power"  #: arithmetic at the rate that the board's power sustains
    L2 = "L2"  #: between SMs and L2; on a processor, a core and its caches
    DRAM = "DRAM"
    UNFILLED = "unfilled SMs"  #: too few blocks for all SMs, or a partial last wave
    LATENCY = "latency"  #: of a block's steps, one after another: too few warps on its SM hide it
    START = "kernel start"  #: from a kernel's turn to its first work, and its filling and draining
    HOST = "host"  #: the kernel is not issued yet
    QUEUE = "queue"  #: earlier kernels occupy the slots of the SMs; on a processor, all cores
    SHARING = "sharing"  #: slowdown of concurrent kernels over running alone


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One kernel of a stage. Times are microseconds from the stage's start; ``alone_us`` is its time alone.

    ``waves`` is its blocks over the device's capacity, ``occupancy`` resident warps over their maximum.
    ``limits_us`` divides ``alone_us``.
    """

    name: str
    unit: str
    stream: int
    start_us: float
    end_us: float
    alone_us: float
    blocks: int
    resident_blocks_per_sm: int
    waves: float
    occupancy: float
    limits_us: dict[Limit, float]


@dataclass(frozen=True, slots=True)
class StageFacts:
    """One stage on a simulated device.

    ``limits_us`` divides ``duration_us`` by limiting factor. ``chain_us`` is the longest group alone,
    ``host_us`` the host's time to issue all kernels. ``occupancy`` is the mean of active warps over the capacity
    of all SMs (on a processor: active cores); ``arithmetic`` and ``dram`` are fractions of the datasheet's peaks,
    counting only the network's own arithmetic, without overhead of kernels. ``sms`` is each group's number of reserved
    SMs, if any; ``multiprocessors`` is what the device's are called.
    """

    duration_us: float
    limits_us: dict[Limit, float]
    chain_us: float
    host_us: float
    occupancy: float
    arithmetic: float
    dram: float
    kernels: tuple[KernelFacts, ...]
    sms: tuple[int, ...] = ()
    multiprocessors: str = "SMs"

    @property
    def bound(self) -> Limit | None:
        """The main limiting factor; None for a stage without kernels."""
        return max(self.limits_us, key=lambda limit: self.limits_us[limit], default=None)


class VariantBounds(NamedTuple):
    """Bounds of a unit's variants, as if each were a separate unit, in the order of ``variants``.

    ``keys`` (uint64, shape ``[variants]``) are equal for variants with equal prices in every stage.
    """

    bounds: StageBounds
    keys: Masks


def least_of_variants(ways: Sequence[VariantBounds]) -> StageBounds:
    """Bounds that hold for any variants: for each unit the minimum over its variants, separately for each number."""
    own = [way.bounds for way in ways]
    serial_us = np.array([each.serial_us.min() for each in own])
    single_us = np.array([each.single_us.min() for each in own])
    work_us = np.stack([each.work_us.min(axis=0) for each in own])
    issue_us = [each.issue_us.min() for each in own if each.issue_us is not None]
    return StageBounds(serial_us, single_us, work_us, np.array(issue_us) if len(issue_us) == len(own) else None)
