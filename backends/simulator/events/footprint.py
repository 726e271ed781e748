"""Footprint of a resident block on an SM, and the number of blocks that still fit.

Registers are counted so that unlike kernels can share an SM: a warp takes ``1 / W`` of the register file, ``W`` being
how many warps with its registers the file holds, allocation granularities included. All shares are whole numbers of
one common unit, so a kernel alone has exactly the blocks of :func:`iossim.hardware.lowering.kernel.resident_blocks`,
and each block placed leaves room for exactly one less.
"""

from __future__ import annotations

from functools import cache
from math import lcm
from typing import NamedTuple

from iossim.hardware.compute_capability import WARP_THREADS, MultiprocessorLimits
from iossim.hardware.lowering.kernel import allocated_shared_bytes, ceil_div, resident_blocks, warps_by_registers


class Footprint(NamedTuple):
    """Resources of an SM: one block's, or free ones. ``registers`` are parts of the file's common unit."""

    warps: int
    slots: int
    registers: int
    shared_bytes: int

    def minus(self, other: Footprint, count: int) -> Footprint:
        """The remainder after ``count`` times ``other``; a negative count gives back."""
        return Footprint(
            self.warps - count * other.warps,
            self.slots - count * other.slots,
            self.registers - count * other.registers,
            self.shared_bytes - count * other.shared_bytes,
        )

    def room(self, block: Footprint) -> int:
        """Number of such blocks that fit into the free resources."""
        free_warps, room, free_registers, free_shared_bytes = self
        warps, _, registers, shared_bytes = block
        # The engine asks this most of all: comparisons are cheaper than calls of min.
        if free_warps < room * warps:
            room = free_warps // warps
        if free_registers < room * registers:
            room = free_registers // registers
        if free_shared_bytes < room * shared_bytes:
            room = free_shared_bytes // shared_bytes
        return room


@cache
def empty_multiprocessor(limits: MultiprocessorLimits) -> Footprint:
    """All that an SM has."""
    return Footprint(limits.resident_warps, limits.max_blocks, _register_units(limits), limits.shared_bytes)


@cache
def block_footprint(
    limits: MultiprocessorLimits, threads_per_block: int, registers_per_thread: int, shared_bytes_per_block: int
) -> Footprint | None:
    """Footprint of one block; None if not even one fits."""
    if not resident_blocks(limits, threads_per_block, registers_per_thread, shared_bytes_per_block):
        return None
    warps = ceil_div(threads_per_block, WARP_THREADS)
    registers = _registers(limits, warps, registers_per_thread)
    return Footprint(warps, 1, registers, allocated_shared_bytes(limits, shared_bytes_per_block))


def _registers(limits: MultiprocessorLimits, warps: int, registers_per_thread: int) -> int:
    if registers_per_thread == 0:
        return 0
    fit = warps_by_registers(limits, registers_per_thread)
    halves = limits.registers // limits.registers_per_block
    if halves == 1:
        return warps * (_register_units(limits) // fit)
    # A block lies in one part of the file: the warps that are left over in each part hold no block.
    return _register_units(limits) // (fit // warps * halves)


@cache
def _register_units(limits: MultiprocessorLimits) -> int:
    """The register file in a unit that any number of warps, and of blocks, that fit can be expressed in."""
    fits = {warps_by_registers(limits, count) for count in range(1, limits.max_registers_per_thread + 1)}
    halves = limits.registers // limits.registers_per_block
    blocks = {fit // warps * halves for fit in fits for warps in range(1, fit + 1)} if halves > 1 else set()
    return lcm(*fits, *blocks)
