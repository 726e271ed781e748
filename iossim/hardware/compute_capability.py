"""Capacity of a streaming multiprocessor, by compute capability."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from iossim.base.shipped_yaml import shipped
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
    Precision.FP8: SINCE_HOPPER | {Architecture.ADA, Architecture.BLACKWELL_RTX},
}
#: The first compute capability with instructions for a precision (CUDA C++ Programming Guide, "Arithmetic
#: Instructions"): tf32 and bf16 came with Ampere's tensor cores, fp8 with Ada's, 8-bit integers with ``__dp4a``.
FIRST_WITH = {Precision.TF32: (8, 0), Precision.BF16: (8, 0), Precision.INT8: (6, 1), Precision.FP8: (8, 9)}
#: Compute capabilities whose fp16 arithmetic is missing, or so slow (6.1: 2 results per clock and SM) that
#: libraries store numbers in fp16 and compute in fp32 (the same, "Throughput of Native Arithmetic Instructions").
FP16_IN_FP32 = frozenset({"3.5", "3.7", "5.0", "5.2", "6.1"})


def has_precision(capability: str, precision: Precision) -> bool:
    """True if GPUs of a compute capability run networks of a precision, maybe with fp16 in fp32; a CPU ("") does."""
    return not capability or tuple(map(int, capability.split("."))) >= FIRST_WITH.get(precision, (0, 0))


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

    @property
    def resident_warps(self) -> int:
        """Warps that one SM holds at most."""
        return min(self.max_warps, self.max_threads // WARP_THREADS)


#: Streaming multiprocessors by compute capability, as ``compute_capabilities.yaml`` has them.
CAPABILITIES: dict[str, dict[str, Any]] = shipped("iossim.hardware", "compute_capabilities.yaml")
LIMITS = {
    capability: MultiprocessorLimits(Architecture(row["limits"][0]), *row["limits"][1:])
    for capability, row in CAPABILITIES.items()
}
#: Facts of generations by architecture.
GENERATIONS: dict[str, dict[str, Any]] = shipped("iossim.hardware", "generations.yaml")
