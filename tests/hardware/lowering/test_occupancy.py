"""Occupancy against values of NVIDIA's occupancy calculator, worked out by its rules."""

from __future__ import annotations

import pytest

from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.lowering.kernel import occupancy, resident_blocks


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks"),
    [
        ("7.0", 256, 32, 0, 8),  # all 64 warps
        ("7.0", 256, 128, 0, 2),  # registers: 16 warps
        ("7.0", 256, 122, 16_640, 2),
        ("7.0", 32, 16, 0, 32),  # block slots
        ("7.0", 128, 32, 33 * 1024, 2),  # shared memory: 96 KiB
        ("7.0", 64, 122, 8_448, 8),
        ("7.0", 256, 32, 97 * 1024, 0),  # more than a block may have
        ("7.0", 2048, 32, 0, 0),  # more threads than a block may have
        ("6.0", 256, 37, 0, 6),  # 51 warps' registers, 50 by granularity 2
        ("6.1", 256, 37, 0, 6),  # 48 by granularity 4
        ("6.0", 32, 37, 0, 32),
        ("7.5", 256, 32, 0, 4),  # 32 warps
        ("7.5", 32, 16, 0, 16),
        ("8.0", 256, 32, 48 * 1024, 3),  # 49 KiB each of 164
        ("8.6", 256, 32, 0, 6),  # 48 warps
        ("9.0", 1024, 64, 0, 1),
        ("3.7", 256, 64, 0, 8),  # twice the registers
        ("3.7", 256, 128, 0, 4),
        ("3.5", 256, 128, 0, 2),
    ],
)
def test_resident_blocks(capability: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert resident_blocks(LIMITS[capability], threads, registers, shared) == blocks


def test_occupancy_is_of_all_warps() -> None:
    assert occupancy(LIMITS["7.0"], 256, 32, 0) == 1.0
    assert occupancy(LIMITS["7.0"], 256, 128, 0) == 0.25
    assert occupancy(LIMITS["6.0"], 256, 37, 0) == 0.75
