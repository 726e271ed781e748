"""A kernel as work that its blocks ask of the device: what the event-driven engine runs.

The kernel model prices a kernel alone, on an idle device. The event-driven engine needs less and more: what one block
asks for, whatever else is resident. A block that runs with ``n - 1`` others of its kernel on its SM takes
``max(least_us, n * issue_us, n * l2_us)``, longer where DRAM is the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from iossim.backends.simulator.kernel_model import _MATRIX_CLASSES, _TILED_CLASSES, _WINDOW_CLASSES, KernelModel
from iossim.devices.compute_capability import WARP_THREADS
from iossim.lowering.kernel import Kernel, ceil_div
from iossim.lowering.occupancy import resident_blocks


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
    #: Arithmetic of the whole kernel at the rate that the board's power sustains; 0 where power is no limit.
    power_us: float = 0.0


def kernel_work(model: KernelModel, kernel: Kernel) -> KernelWork:
    """The work of a kernel, such that ``n`` resident blocks take what a wave of ``n`` takes in the kernel model.

    A wave of ``n`` blocks takes ``max(n, hiding) * block_us + prologue_us`` there; a full wave takes exactly that here,
    and a partial one at most a part of the prologue less.
    """
    resident = resident_blocks(
        model._limits, kernel.threads_per_block, kernel.registers_per_thread, kernel.shared_bytes_per_block
    )
    block_us = kernel.flops / kernel.blocks / model._flops_per_us_per_sm[kernel.work_class, kernel.precision]
    prologue_us = model._prologue_us if kernel.work_class in _TILED_CLASSES else 0.0
    hiding = model._hiding_warps * WARP_THREADS / kernel.threads_per_block
    issue_us = block_us + prologue_us / max(1, resident)
    least_us = max(hiding * block_us + prologue_us, issue_us)
    if resident and (kernel.precision not in model._is_reduced or kernel.work_class not in _MATRIX_CLASSES):
        # What the board's power sustains holds for the whole kernel: it slows all blocks alike.
        waves, rest = divmod(ceil_div(kernel.blocks, model._sms), resident)
        waves_us = waves * max(least_us, resident * issue_us) + (max(least_us, rest * issue_us) if rest else 0.0)
        slower = max(1.0, kernel.flops / model._sustained_flops_per_us / waves_us) if waves_us else 1.0
        issue_us, least_us = issue_us * slower, least_us * slower
    memory_factor = model._window_factor if kernel.work_class in _WINDOW_CLASSES else 1.0
    return KernelWork(
        kernel.name,
        kernel.blocks,
        kernel.threads_per_block,
        kernel.registers_per_thread,
        kernel.shared_bytes_per_block,
        issue_us,
        least_us,
        kernel.l2_bytes / kernel.blocks / (model._l2_bytes_per_us_per_sm * memory_factor),
        model.dram_bytes(kernel) / (model._dram_bytes_per_us * memory_factor),
        model._gap_us,
    )
