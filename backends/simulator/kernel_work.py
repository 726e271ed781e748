"""A kernel as work that its blocks ask of the device, as the event-driven engine runs it.

The kernel model prices a kernel alone, on an idle device. The event-driven engine asks what one block needs, whatever
else is resident. A block that runs with ``n - 1`` others of its kernel on its SM takes ``max(least_us, n * issue_us,
n * l2_us)``, longer where DRAM is the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iossim.backends.simulator.device_rates import bandwidth_part
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.kernel_rows import kernel_table
from iossim.backends.simulator.kernel_times import (
    ALONE,
    ARITHMETIC,
    DRAM,
    FOOTPRINT,
    ISSUE,
    KEPT,
    L2,
    POWER,
    grid_blocks,
    time_kernels,
)
from iossim.hardware.lowering.kernel import Kernel, ceil_div, resident_blocks


@dataclass(frozen=True, slots=True)
class KernelWork:
    """One launch of a kernel: a grid of equal blocks, and what they ask for. Times are microseconds."""

    name: str
    blocks: int
    threads_per_block: int
    registers_per_thread: int
    shared_bytes_per_block: int
    #: Issue of one block: its time when it has a whole SM's achievable issue capacity.
    issue_us: float
    #: The least that one block takes by latency, however empty its SM is; at least ``issue_us``.
    least_us: float
    #: L2 traffic of one block, over its SM's port alone.
    l2_us: float
    #: DRAM traffic of the whole kernel at full bandwidth.
    dram_us: float
    #: From the end of the kernel before it in its stream, or from its own issue, to its first block.
    gap_us: float
    #: Arithmetic of the whole kernel at the rate that the board's power sustains; 0 at reduced precision.
    power_us: float = 0.0
    #: The arithmetic pipe of an SM that its blocks use besides issue ("fp32", "fp64", ...), and a block's time on it.
    pipe: str = ""
    pipe_us: float = 0.0
    #: L2 traffic of the whole kernel at the bandwidth of the whole L2.
    l2_device_us: float = 0.0
    #: Bytes that the kernel touches, and the DRAM time of those that L2 keeps: added where others leave them no room.
    footprint_bytes: float = 0.0
    kept_us: float = 0.0
    #: The part of the bandwidth of DRAM and of L2 that the SMs on which it runs can draw.
    reach: float = 1.0
    #: Blocks of a cluster.
    cluster: int = 1


def kernel_work(model: KernelModel, kernel: Kernel) -> KernelWork:
    """The work of a kernel, such that it takes alone what the kernel model says, on the model's SMs.

    Issue and L2 work are those of the model, spread over the blocks. What is left of the model's duration is latency:
    the least time of a block, chosen so that the waves of an idle device end when the model says.
    """
    table = kernel_table(model.profile.limits, (kernel,))
    (times,) = time_kernels(table, model.rates)
    # Power is a limit of the device, not of an SM: the blocks are as without it, the kernel has it.
    unlimited_rates = np.full_like(model.rates.sustained_flops_per_us, np.inf)
    (unlimited,) = time_kernels(table, model.rates._replace(sustained_flops_per_us=unlimited_rates))
    alone_us, arithmetic_us, l2_us, dram_us, full_us = (
        float(unlimited[column]) for column in (ALONE, ARITHMETIC, L2, DRAM, ISSUE)
    )
    sms = int(model.rates.sms)
    blocks = int(grid_blocks(table[0], model.rates))
    part = sms / model.profile.sm_count
    # The DRAM time of a part of the SMs is that of the whole, which its neighbours ask, too.
    reach = bandwidth_part(part, model.profile.parameters.sm_bandwidth_reach) if part < 1.0 else 1.0
    power_us = float(times[POWER])
    if times[ARITHMETIC] > unlimited[ARITHMETIC]:
        power_us = float(times[ALONE]) - model.rates.gap_us
    resident = resident_blocks(model.profile.limits, *kernel.block_needs)
    gap_us = model.rates.gap_us
    if resident == 0:
        issue_us = least_us = float("inf")
    else:
        # ``full_us`` is the longer of both on all SMs evenly; the shorter one keeps its proportion.
        spread = blocks / sms
        longer_us = max(arithmetic_us, l2_us)
        share = full_us / spread
        issue_us = share if arithmetic_us >= l2_us else share * arithmetic_us / longer_us
        l2_us = share if l2_us > arithmetic_us else (share * l2_us / longer_us if longer_us else 0.0)
        busiest = ceil_div(blocks, sms)
        least_us = least_block_us(alone_us - gap_us, busiest, resident, max(issue_us, l2_us))
        # Waves that the model does not see in full would take longer here than there.
        found_us = waves_us(busiest, resident, least_us, share)
        if found_us > alone_us - gap_us > 0.0:
            slower = (alone_us - gap_us) / found_us
            issue_us, l2_us, least_us = issue_us * slower, l2_us * slower, least_us * slower
        least_us = max(least_us, issue_us)
    return KernelWork(
        kernel.name,
        blocks,
        *kernel.block_needs,
        *(issue_us, least_us, l2_us, dram_us * reach, gap_us, power_us),
        footprint_bytes=float(times[FOOTPRINT]),
        kept_us=float(times[KEPT]) * reach,
        reach=reach,
        cluster=kernel.cluster,
    )


def waves_us(busiest: int, resident: int, least_us: float, share_us: float) -> float:
    """Time of the waves of an SM's blocks, of which ``count`` at a time take ``count * share_us``, or ``least_us``."""
    waves, rest = divmod(busiest, resident)
    return waves * max(least_us, resident * share_us) + (max(least_us, rest * share_us) if rest else 0.0)


def least_block_us(total_us: float, busiest: int, resident: int, share_us: float) -> float:
    """The least time of a block with which waves of ``resident`` blocks of ``share_us`` each take ``total_us``."""
    waves, rest = divmod(busiest, resident)
    least_us = total_us / (waves + (rest > 0))
    if least_us < resident * share_us and rest:
        # Full waves are held up by their work, only the last one by latency.
        least_us = total_us - waves * resident * share_us
    return max(0.0, least_us)
