"""A kernel's blocks on one device: how fast they go by themselves, and how its demand of the whole device is spread.

``n`` resident blocks of a kernel that has an SM to itself take the longest of ``least_us``, ``n * issue_us``, ``n *
pipe_us`` and ``n * l2_us``.

DRAM, board power and the whole of L2 are the device's, not an SM's. A kernel alone runs in waves of as many blocks as
the device holds, and what it asks of these is spread evenly over the time that its waves take: the blocks of the last
wave, which may be few and as slow as any, have a larger part of it. So a kernel alone takes exactly the longest of
its waves and its times on these three; with equal parts a last wave of few blocks would leave DRAM idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from iossim.backends.simulator.events.footprint import Footprint, block_footprint
from iossim.backends.simulator.kernel_work import KernelWork
from iossim.base.errors import ScheduleError
from iossim.hardware.lowering.kernel import ceil_div, resident_blocks
from iossim.hardware.profile import DeviceProfile

#: The shortest that a block may take: a kernel that asks for nothing still ends after it starts.
_LEAST_US = 1e-3


class DeviceTime(NamedTuple):
    """Time of the device that a block asks for: of DRAM, of arithmetic at sustained power, of the whole L2.

    ``kept_us`` is the DRAM time of what L2 keeps for it while all fit; ``part`` is the block's part of the kernel's
    time alone.
    """

    dram_us: float
    power_us: float
    l2_us: float
    kept_us: float
    part: float


@dataclass(frozen=True, eq=False, slots=True)
class BlockDemand:
    """The blocks of one kernel on one device, or on ``sms`` SMs of it: those that its clusters fill.

    ``block_us[n]`` is what each of ``n`` resident blocks takes on an SM of its own, shape ``[resident + 1]``. The
    first ``early_blocks`` blocks ask ``early_us`` of the device each, the ``last_blocks`` after them ``last_us``.
    """

    work: KernelWork
    footprint: Footprint
    block_us: tuple[float, ...]
    early_blocks: int
    early_us: DeviceTime
    last_blocks: int
    last_us: DeviceTime
    waves_us: float
    sms: int
    #: The most blocks that an SM is given beside other kernels: its even share, or as many as do not slow each other.
    most_beside_others: int

    @staticmethod
    def of(work: KernelWork, profile: DeviceProfile, sms: int | None = None) -> BlockDemand:
        """Raises ScheduleError where not even one block fits an SM."""
        limits = profile.limits
        needs = work.threads_per_block, work.registers_per_thread, work.shared_bytes_per_block
        footprint = block_footprint(limits, *needs)
        if footprint is None:
            raise ScheduleError(
                f"kernel {work.name!r}: a block of {needs[0]} threads, {needs[1]} registers a thread and {needs[2]} "
                f"bytes of shared memory does not fit an SM of {profile.name!r}; choose another device"
            )
        sms = min(sms or profile.sm_count, profile.sms_for_clusters(work.cluster))
        resident = resident_blocks(limits, *needs)
        block_us = (0.0, *(_together_us(work, count) for count in range(1, resident + 1)))
        waves = ceil_div(ceil_div(work.blocks, sms), resident)
        early = (waves - 1) * resident * sms
        last = work.blocks - early
        early_us = (waves - 1) * block_us[resident]
        last_us = block_us[ceil_div(last, sms)]
        waves_us = early_us + last_us
        early_part = _part(work, early_us / waves_us / early if early else 0.0)
        unhindered = max(count for count, us in enumerate(block_us) if us <= block_us[1])
        most_beside = max(ceil_div(work.blocks, sms), unhindered)
        blocks = early, early_part, last, _part(work, last_us / waves_us / last)
        return BlockDemand(work, footprint, block_us, *blocks, waves_us, sms, most_beside)

    @property
    def leaves_sms(self) -> bool:
        """True where it has fewer blocks than the device has SMs."""
        return self.work.blocks < self.sms

    def busy(self, count: int) -> float:
        """Part of an SM that ``count`` blocks keep busy if they have it to themselves."""
        work = self.work
        return count * max(work.issue_us, work.pipe_us, work.l2_us) / self.block_us[count]

    @property
    def alone_us(self) -> float:
        """The kernel on an idle device, gap included: the longest of its waves, DRAM, power and L2."""
        work = self.work
        shared_us = work.dram_us / work.reach, work.power_us, work.l2_device_us / work.reach
        return work.gap_us + max(self.waves_us, *shared_us)


def _part(work: KernelWork, part: float) -> DeviceTime:
    return DeviceTime(work.dram_us * part, work.power_us * part, work.l2_device_us * part, work.kept_us * part, part)


def _together_us(work: KernelWork, count: int) -> float:
    return max(_LEAST_US, work.least_us, count * work.issue_us, count * work.pipe_us, count * work.l2_us)
