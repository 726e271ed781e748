"""What a cost model that computes its prices may know of a stage: its time, divided by what holds it up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Limit(StrEnum):
    """What holds a stage up."""

    ARITHMETIC = "arithmetic"
    POWER = "power"  #: arithmetic at the rate that the board's power sustains
    L2 = "L2"  #: between SMs and L2; on a processor, a core and its caches
    DRAM = "DRAM"
    UNFILLED = "unfilled SMs"  #: too few blocks for all SMs, a last wave that is not full, latency that is not hidden
    START = "kernel start"  #: from a kernel's turn to its first work, and its filling and draining
    HOST = "host"  #: the kernel is not issued yet
    QUEUE = "queue"  #: kernels that started before hold the slots of the SMs; of a processor, all cores
    SHARING = "sharing"  #: what kernels side by side take longer than alone


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One kernel of a stage. Times are microseconds from the stage's start; ``alone_us`` is what it takes by itself.

    ``waves`` is its blocks over those that the device holds at a time, ``occupancy`` its resident warps over the most that
    all SMs hold. ``limits_us`` divides ``alone_us``.
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

    ``limits_us`` divides ``duration_us`` by what holds the stage up. ``chain_us`` is the longest group by itself,
    ``host_us`` what the host needs to issue all kernels. ``occupancy`` is the mean of warps at work over the most that all SMs
    hold (of a processor: cores at work); ``arithmetic`` and ``dram`` are parts of the datasheet's peaks, the arithmetic
    that of the network itself, without what kernels do besides.
    """

    duration_us: float
    limits_us: dict[Limit, float]
    chain_us: float
    host_us: float
    occupancy: float
    arithmetic: float
    dram: float
    kernels: tuple[KernelFacts, ...]

    @property
    def bound(self) -> Limit | None:
        """What holds it up most; None for a stage without kernels."""
        return max(self.limits_us, key=lambda limit: self.limits_us[limit], default=None)
