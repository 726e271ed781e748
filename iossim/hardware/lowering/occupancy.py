"""Occupancy: how many blocks of a kernel one SM holds at a time.

The rules are those of NVIDIA's CUDA Occupancy Calculator: threads and block slots, registers allocated to warps in
units, shared memory allocated to blocks in units.
"""

from __future__ import annotations

from functools import cache

from iossim.hardware.compute_capability import WARP_THREADS, MultiprocessorLimits
from iossim.hardware.lowering.kernel import ceil_div


@cache
def resident_blocks(
    limits: MultiprocessorLimits, threads_per_block: int, registers_per_thread: int, shared_bytes_per_block: int
) -> int:
    """Blocks resident on one SM; 0 where not even one fits."""
    if threads_per_block > limits.max_threads_per_block or registers_per_thread > limits.max_registers_per_thread:
        return 0
    warps = ceil_div(threads_per_block, WARP_THREADS)
    by_warps = min(limits.max_warps, limits.max_threads // WARP_THREADS) // warps
    return min(
        by_warps,
        limits.max_blocks,
        _by_registers(limits, warps, registers_per_thread),
        _by_shared_memory(limits, shared_bytes_per_block),
    )


@cache
def block_slots(
    limits: MultiprocessorLimits, threads_per_block: int, registers_per_thread: int, shared_bytes_per_block: int
) -> tuple[float, float, float, float]:
    """The parts of an SM's warps, blocks, registers and shared memory that one block takes; zeros where none fits."""
    if not resident_blocks(limits, threads_per_block, registers_per_thread, shared_bytes_per_block):
        return 0.0, 0.0, 0.0, 0.0
    warps = ceil_div(threads_per_block, WARP_THREADS)
    files = limits.registers // limits.registers_per_block if registers_per_thread else 0
    return (
        warps / min(limits.max_warps, limits.max_threads // WARP_THREADS),
        1 / limits.max_blocks,
        warps / (files * warps_by_registers(limits, registers_per_thread)) if files else 0.0,
        allocated_shared_bytes(limits, shared_bytes_per_block) / limits.shared_bytes if limits.shared_bytes else 0.0,
    )


def occupancy(
    limits: MultiprocessorLimits, threads_per_block: int, registers_per_thread: int, shared_bytes_per_block: int
) -> float:
    """Resident warps over the most that an SM holds."""
    blocks = resident_blocks(limits, threads_per_block, registers_per_thread, shared_bytes_per_block)
    return blocks * ceil_div(threads_per_block, WARP_THREADS) / limits.max_warps


def warps_by_registers(limits: MultiprocessorLimits, registers_per_thread: int) -> int:
    """Warps with that many registers (1 or more) a thread that a register file of ``registers_per_block`` holds."""
    unit = limits.register_granularity
    per_warp = ceil_div(registers_per_thread * WARP_THREADS, unit) * unit
    return limits.registers_per_block // per_warp // limits.warp_granularity * limits.warp_granularity


def allocated_shared_bytes(limits: MultiprocessorLimits, shared_bytes_per_block: int) -> int:
    """Shared memory that a block takes, what the system takes and rounding up included."""
    unit = limits.shared_granularity_bytes
    return ceil_div(shared_bytes_per_block + limits.reserved_shared_bytes_per_block, unit) * unit


def _by_registers(limits: MultiprocessorLimits, warps: int, registers_per_thread: int) -> int:
    if registers_per_thread == 0:
        return limits.max_blocks
    # The calculator fills one block's most registers, then counts how often those are in the register file.
    return (
        warps_by_registers(limits, registers_per_thread) // warps * (limits.registers // limits.registers_per_block)
    )


def _by_shared_memory(limits: MultiprocessorLimits, shared_bytes_per_block: int) -> int:
    if shared_bytes_per_block > limits.shared_bytes_per_block:
        return 0
    needed = allocated_shared_bytes(limits, shared_bytes_per_block)
    return limits.shared_bytes // needed if needed else limits.max_blocks
