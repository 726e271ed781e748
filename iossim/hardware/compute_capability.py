"""Capacity of a streaming multiprocessor, by compute capability.

Source: NVIDIA, CUDA C++ Programming Guide, appendix "Compute Capabilities", table "Technical Specifications per
Compute Capability"; allocation granularities and warp schedulers from the CUDA Occupancy Calculator's table of
physical limits and the guide's section on each architecture.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from iossim.ir.types import Precision

WARP_THREADS = 32


class Architecture(StrEnum):
    """GPU generation: the key of the model parameters' defaults."""

    KEPLER = "kepler"
    MAXWELL = "maxwell"
    PASCAL = "pascal"
    VOLTA = "volta"
    TURING = "turing"
    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    #: Compute capability 12: warp-level tensor core instructions as on Ampere, and less shared memory.
    BLACKWELL_RTX = "blackwell-rtx"


SINCE_HOPPER = frozenset({Architecture.HOPPER, Architecture.BLACKWELL})
SINCE_AMPERE = frozenset({Architecture.AMPERE, Architecture.ADA, Architecture.BLACKWELL_RTX}) | SINCE_HOPPER
SINCE_TURING = SINCE_AMPERE | {Architecture.TURING}
#: Architectures whose tensor cores support a precision (CUDA C++ Programming Guide, "Element Types").
TENSOR_CORES: dict[Precision, frozenset[Architecture]] = {
    Precision.FP16: SINCE_TURING | {Architecture.VOLTA},
    Precision.BF16: SINCE_AMPERE,
    Precision.TF32: SINCE_AMPERE,
    Precision.INT8: SINCE_TURING,
}
#: The first compute capability with instructions for a precision (CUDA C++ Programming Guide, "Arithmetic
#: Instructions"): tf32 and bf16 came with Ampere's tensor cores, products of 8-bit integers with ``__dp4a``.
FIRST_WITH: dict[Precision, tuple[int, int]] = {Precision.TF32: (8, 0), Precision.BF16: (8, 0), Precision.INT8: (6, 1)}
#: Compute capabilities whose fp16 arithmetic is missing, or so slow (6.1: 2 results per clock and SM) that
#: libraries store numbers in fp16 and compute in fp32 (the same, "Throughput of Native Arithmetic Instructions").
FP16_IN_FP32 = frozenset({"3.5", "3.7", "5.0", "5.2", "6.1"})


def has_precision(capability: str, precision: Precision) -> bool:
    """Whether GPUs of a compute capability run networks of a precision, possibly computing fp16 in fp32."""
    major, _, minor = capability.partition(".")
    return (int(major), int(minor)) >= FIRST_WITH.get(precision, (0, 0))


@dataclass(frozen=True, slots=True)
class MultiprocessorLimits:
    """Limits of one streaming multiprocessor (SM), or of its counterpart on devices of another kind.

    ``architecture`` is an :class:`Architecture`, or the counterpart of another kind of device.
    """

    architecture: str
    max_threads: int
    max_blocks: int
    max_warps: int
    registers: int
    shared_bytes: int
    #: Largest shared memory of one block, including the opt-in above 48 KiB.
    shared_bytes_per_block: int
    warp_schedulers: int
    #: Granularity in which warps are counted for register allocation.
    warp_granularity: int = 4
    #: Granularity of a warp's register allocation.
    register_granularity: int = 256
    shared_granularity_bytes: int = 256
    #: Shared memory of every block that the system reserves.
    reserved_shared_bytes_per_block: int = 0
    max_threads_per_block: int = 1024
    max_registers_per_thread: int = 255
    registers_per_block: int = 65_536


_KIB = _K = 1024
#: Warp schedulers, granularities of warps, registers and shared memory, and reserved shared memory.
_SINCE_AMPERE = 4, 4, 256, 128, 1024

LIMITS: dict[str, MultiprocessorLimits] = {
    "3.5": MultiprocessorLimits(Architecture.KEPLER, 2048, 16, 64, 64 * _K, 48 * _KIB, 48 * _KIB, 4),
    "3.7": MultiprocessorLimits(Architecture.KEPLER, 2048, 16, 64, 128 * _K, 112 * _KIB, 48 * _KIB, 4),
    "5.0": MultiprocessorLimits(Architecture.MAXWELL, 2048, 32, 64, 64 * _K, 64 * _KIB, 48 * _KIB, 4),
    "5.2": MultiprocessorLimits(Architecture.MAXWELL, 2048, 32, 64, 64 * _K, 96 * _KIB, 48 * _KIB, 4),
    "6.0": MultiprocessorLimits(Architecture.PASCAL, 2048, 32, 64, 64 * _K, 64 * _KIB, 48 * _KIB, 2, 2),
    "6.1": MultiprocessorLimits(Architecture.PASCAL, 2048, 32, 64, 64 * _K, 96 * _KIB, 48 * _KIB, 4),
    "6.2": MultiprocessorLimits(Architecture.PASCAL, 2048, 32, 64, 64 * _K, 64 * _KIB, 48 * _KIB, 4),
    "7.0": MultiprocessorLimits(Architecture.VOLTA, 2048, 32, 64, 64 * _K, 96 * _KIB, 96 * _KIB, 4),
    "7.2": MultiprocessorLimits(Architecture.VOLTA, 2048, 32, 64, 64 * _K, 96 * _KIB, 96 * _KIB, 4),
    "7.5": MultiprocessorLimits(Architecture.TURING, 1024, 16, 32, 64 * _K, 64 * _KIB, 64 * _KIB, 4),
    "8.0": MultiprocessorLimits(Architecture.AMPERE, 2048, 32, 64, 64 * _K, 164 * _KIB, 163 * _KIB, *_SINCE_AMPERE),
    "8.6": MultiprocessorLimits(Architecture.AMPERE, 1536, 16, 48, 64 * _K, 100 * _KIB, 99 * _KIB, *_SINCE_AMPERE),
    "8.7": MultiprocessorLimits(Architecture.AMPERE, 1536, 16, 48, 64 * _K, 164 * _KIB, 163 * _KIB, *_SINCE_AMPERE),
    "8.9": MultiprocessorLimits(Architecture.ADA, 1536, 24, 48, 64 * _K, 100 * _KIB, 99 * _KIB, *_SINCE_AMPERE),
    "9.0": MultiprocessorLimits(Architecture.HOPPER, 2048, 32, 64, 64 * _K, 228 * _KIB, 227 * _KIB, *_SINCE_AMPERE),
    "10.0": MultiprocessorLimits(Architecture.BLACKWELL, 2048, 32, 64, 64 * _K, 228 * _KIB, 227 * _KIB, *_SINCE_AMPERE),
    "12.0": MultiprocessorLimits(
        Architecture.BLACKWELL_RTX, 1536, 24, 48, 64 * _K, 100 * _KIB, 99 * _KIB, *_SINCE_AMPERE
    ),
}
