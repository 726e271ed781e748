"""A kernel as the simulator sees it, and the candidates that an op may run as.

A kernel is a grid of equal thread blocks with the resources that each block holds, the arithmetic that all blocks do
(tile padding included) and the bytes that they move. Its duration is the kernel model's affair, not the lowering's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from iossim.ir.types import Precision


class WorkClass(StrEnum):
    """What a kernel mostly does: the key of its efficiency."""

    GEMM = "gemm"  #: matrix product with large tiles
    IMPLICIT_GEMM = "implicit_gemm"  #: convolution as a matrix product that gathers its operand on the fly
    SMALL_TILE_GEMM = "small_tile_gemm"  #: matrix product with 32x32 tiles
    WINOGRAD_FUSED = "winograd_fused"  #: Winograd convolution in one kernel
    WINOGRAD_GEMM = "winograd_gemm"  #: batched product between separate transforms (Winograd, FFT)
    DEPTHWISE = "depthwise"  #: a window over each channel, with weights
    WINDOW = "window"  #: pooling
    STREAM = "stream"  #: element-wise, copy, transform, reduction: reads and writes in order


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel launch. Bytes are unique bytes of each operand, before any cache."""

    name: str
    work_class: WorkClass
    blocks: int
    threads_per_block: int
    registers_per_thread: int
    shared_bytes_per_block: int
    #: Arithmetic of all blocks together; a multiply-add is two.
    flops: int
    #: Activations and intermediate results read: in L2 if the kernel before left them there.
    activation_bytes: int
    #: Weights read: from DRAM, as a whole network's weights pass through L2 between two uses.
    weight_bytes: int
    bytes_written: int
    #: Traffic between the SMs and L2: operands count as often as blocks load them.
    l2_bytes: int
    #: Arithmetic precision; tensor cores do it where the device has them for it.
    precision: Precision = Precision.FP32


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run an op: kernels one after another in one stream.

    ``is_library_call`` tells a cuDNN or cuBLAS call, which costs the host more than a bare launch.
    """

    algorithm: str
    kernels: tuple[Kernel, ...]
    workspace_bytes: int = 0
    is_library_call: bool = True


def ceil_div(count: int, size: int) -> int:
    """How many pieces of ``size`` cover ``count``."""
    return -(-count // size)
