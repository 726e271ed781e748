"""Kernels as seen by the simulator, the candidates that an op may run as, and the occupancy of an SM by a kernel.

A kernel is a grid of equal thread blocks with the resources that each block holds, the total arithmetic (including
tile padding) and the bytes moved. The kernel model computes its time.

Occupancy follows NVIDIA's CUDA Occupancy Calculator: threads, block slots, and registers and shared memory in units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from iossim.hardware.compute_capability import WARP_THREADS, Architecture, MultiprocessorLimits
from iossim.ir.types import Precision


class WorkClass(StrEnum):
    """Dominant work of a kernel: the key of its efficiency."""

    GEMM = "gemm"  #: matrix product
    TENSOR = "tensor"  #: matrix product on tensor cores
    TENSOR_CONVOLUTION = "tensor_convolution"  #: convolution as matrix product, which gathers an operand
    ATTENTION = "attention"  #: both products of an attention on tensor cores, the softmax of their tiles between them
    #: cuDNN's: convolution as a matrix product that gathers its operand by precomputed offsets
    IMPLICIT_PRECOMP_GEMM = "implicit_precomp_gemm"
    IMPLICIT_GEMM = "implicit_gemm"  #: cuDNN's: the same, with each offset computed on demand
    WINOGRAD_FUSED = "winograd_fused"  #: Winograd convolution in one kernel
    WINOGRAD_GEMM = "winograd_gemm"  #: batched product between separate transforms (Winograd, FFT)
    DEPTHWISE = "depthwise"  #: a window over each channel, with weights, one output per thread
    GROUPED = "grouped"  #: implicit products of a few channels each: cuDNN's way of depthwise and grouped convolution
    WINDOW = "window"  #: pooling, and convolutions on FP32 lanes of NHWC: depthwise, and of few channels
    AVERAGE_WINDOW = "average_window"  #: cuDNN's pooling by the mean
    STREAM = "stream"  #: element-wise, copies: reads and writes in order
    PARTS = "parts"  #: sums of split products and of divided attention
    SUM = "sum"  #: one pass, after which threads sum what they read: reductions, matrices by a vector
    ROW = "row"  #: one block per row, in several passes: layer norm, long softmax
    NARROW_STREAM = "narrow_stream"  #: the same, each thread one half-precision element at a time
    TRANSFORM = "transform"  #: data to or from the Winograd or frequency domain
    FILTER_TRANSFORM = "filter_transform"  #: weights to the Winograd or frequency domain
    TILE_GENERATION = "tile_generation"  #: weights to the tiles of one-kernel Winograd
    LAYOUT = "layout"  #: a tensor from NCHW to NHWC or back
    INDEX = "index"  #: a table of offsets: a launch with negligible work
    CORE_PRODUCT = "core_product"  #: on a core: matrix product, and convolution by one
    CORE_BLOCKED = "core_blocked"  #: convolution in blocks of channels, into and out of which tensors are reordered
    CORE_BLOCKED_WINDOW = "core_blocked_window"  #: the same of windows over each channel: depthwise and pooling
    CORE_WINDOW = "core_window"  #: pooling in plain layout
    CORE_STREAM = "core_stream"  #: element-wise and copies


class Libraries(StrEnum):
    """Versions of the libraries that an engine calls, which determine the available kernels."""

    CUDNN_7 = "cudnn 7"  #: cuDNN 7.6, which the published engine calls
    CUDNN_8 = "cudnn 8"  #: cuDNN 8 and later, called for every op that it has
    CURRENT = "current"  #: frameworks' own kernels and libraries of today
    #: those of today, called by inference compilers: tensors keep the layout of tensor cores from one op to the next
    COMPILED = "compiled"
    #: the same where images lie channels first in TF32, and cuDNN changes the layout around kernels on tensor cores
    CHANNELS_FIRST = "channels first"


class Issue(StrEnum):
    """Launch mode of kernels, which determines the overhead between them."""

    CALLS = "calls"  #: one operator called repeatedly, as measured alone: host time is included
    STREAM = "stream"  #: a network, call after call; host time is modelled separately
    GRAPH = "graph"  #: nodes of a CUDA graph
    PROFILER = "profiler"  #: one at a time under a profiler that flushes the caches first (Nsight Compute)


#: Versions that call cuDNN for every op it has.
ALL_OF_CUDNN = frozenset({Libraries.CUDNN_7, Libraries.CUDNN_8})
OF_COMPILERS = frozenset({Libraries.COMPILED, Libraries.CHANNELS_FIRST})
OF_TODAY = frozenset({Libraries.CUDNN_8, Libraries.CURRENT, *OF_COMPILERS})
#: Multiply-adds per clock of the SM whose clocks kernels of :attr:`WorkClass.ROW` count.
ROW_LANES = 64
#: Versions of frameworks and compilers, which have their own kernels besides cuDNN's.
OF_FRAMEWORKS = frozenset({Libraries.CURRENT, *OF_COMPILERS})


class Panels(NamedTuple):
    """The operands of a matrix product as its blocks load them: a panel of rows and one of columns each.

    The grid is ``row_tiles`` by ``column_tiles`` blocks, rows fastest; ``row_bytes`` and ``column_bytes`` are the
    whole operands, read along an inner dimension of ``inner`` elements. ``strided_bytes`` are those of operands whose
    inner dimension is contiguous: a panel of such an operand is spread over all of it.
    """

    row_tiles: int
    column_tiles: int
    row_bytes: int
    column_bytes: int
    inner: int
    strided_bytes: int


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
    #: Activations and intermediate results read: from L2 if the previous kernel left them there.
    activation_bytes: int
    #: Weights read: from DRAM, as a whole network's weights pass through L2 between two uses.
    weight_bytes: int
    bytes_written: int
    #: Traffic between the SMs and L2: operands count once per load by a block.
    l2_bytes: int
    #: Arithmetic precision; on tensor cores if the device has them for it.
    precision: Precision = Precision.FP32
    #: Output tile of a block of a matrix product, such as ``128x64``.
    tile: str = ""
    #: Operand panels of a library's dense product; None for every other kernel.
    panels: Panels | None = None
    #: Steps of a block along the inner dimension in products on tensor cores; 0 otherwise.
    steps: int = 0
    #: Time of such a step relative to one whose operands have the kernel's preferred layout.
    slowdown: float = 1.0
    #: Activations that a block reads again: from L2 if the working set of the resident blocks fits there.
    reread_bytes: int = 0
    #: Minimum fraction of its time in which a block occupies its SM, so that other blocks wait: it covers loads,
    #: barriers and the code at the start and end of a block, which are not part of its arithmetic.
    contention: float = 0.0
    #: Exponentials between products on tensor cores, computed by the special-function units.
    exponentials: int = 0
    #: Work of the block that ends last, over the mean: it begins when the others end.
    longest: float = 1.0
    #: Blocks of a cluster: they start together, on SMs of one GPC.
    cluster: int = 1
    #: Whether operands come from DRAM, whose latency profiles were not fitted to: in a network, not called repeatedly.
    waits_for_dram: bool = False

    @property
    def block_needs(self) -> tuple[int, int, int]:
        """Threads of a block, registers of a thread, and bytes of shared memory of a block."""
        return self.threads_per_block, self.registers_per_thread, self.shared_bytes_per_block


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run an op: kernels one after another in one stream.

    ``is_library_call``: a cuDNN or cuBLAS call, which costs the host more than a bare launch. ``architectures``
    are those whose libraries have these kernels, ``libraries`` those that have them; None for all.
    """

    algorithm: str
    kernels: tuple[Kernel, ...]
    workspace_bytes: int = 0
    is_library_call: bool = True
    architectures: frozenset[Architecture] | None = None
    libraries: frozenset[Libraries] | None = None
    #: A library's heuristics select it only if it is faster than others by more than this.
    passed_over_us: float = 0.0

    def runs_on(self, architecture: str) -> bool:
        """True if the libraries for an architecture have the kernels."""
        return self.architectures is None or architecture in self.architectures

    def among(self, architectures: frozenset[Architecture]) -> Candidate:
        """The candidate for those of its architectures that are among these."""
        own = self.architectures
        return replace(self, architectures=architectures if own is None else own & architectures)

    def is_in(self, libraries: Libraries) -> bool:
        """True if libraries have the kernels."""
        return self.libraries is None or libraries in self.libraries


def ceil_div(count: int, size: int) -> int:
    """Number of pieces of ``size`` that cover ``count``."""
    return -(-count // size)


@cache
def resident_blocks(
    limits: MultiprocessorLimits, threads_per_block: int, registers_per_thread: int, shared_bytes_per_block: int
) -> int:
    """Blocks resident on one SM; 0 if not even one fits."""
    if threads_per_block > limits.max_threads_per_block or registers_per_thread > limits.max_registers_per_thread:
        return 0
    warps = ceil_div(threads_per_block, WARP_THREADS)
    by_warps = limits.resident_warps // warps
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
    """Fractions of an SM's warps, blocks, registers and shared memory that one block takes; zeros if none fits."""
    if not resident_blocks(limits, threads_per_block, registers_per_thread, shared_bytes_per_block):
        return 0.0, 0.0, 0.0, 0.0
    warps = ceil_div(threads_per_block, WARP_THREADS)
    files = limits.registers // limits.registers_per_block if registers_per_thread else 0
    return (
        warps / limits.resident_warps,
        1 / limits.max_blocks,
        warps / (files * warps_by_registers(limits, registers_per_thread)) if files else 0.0,
        allocated_shared_bytes(limits, shared_bytes_per_block) / limits.shared_bytes if limits.shared_bytes else 0.0,
    )


def warps_by_registers(limits: MultiprocessorLimits, registers_per_thread: int) -> int:
    """Warps with that many registers (1 or more) per thread that a register file of ``registers_per_block`` holds."""
    unit = limits.register_granularity
    per_warp = ceil_div(registers_per_thread * WARP_THREADS, unit) * unit
    return limits.registers_per_block // per_warp // limits.warp_granularity * limits.warp_granularity


def allocated_shared_bytes(limits: MultiprocessorLimits, shared_bytes_per_block: int) -> int:
    """Shared memory allocated to a block, including the system's reservation and rounding."""
    unit = limits.shared_granularity_bytes
    return ceil_div(shared_bytes_per_block + limits.reserved_shared_bytes_per_block, unit) * unit


def _by_registers(limits: MultiprocessorLimits, warps: int, registers_per_thread: int) -> int:
    if registers_per_thread == 0:
        return limits.max_blocks
    # The calculator fills a block's maximum of registers, then counts how often that fits into the register file.
    files = limits.registers // limits.registers_per_block
    return warps_by_registers(limits, registers_per_thread) // warps * files


def _by_shared_memory(limits: MultiprocessorLimits, shared_bytes_per_block: int) -> int:
    if shared_bytes_per_block > limits.shared_bytes_per_block:
        return 0
    needed = allocated_shared_bytes(limits, shared_bytes_per_block)
    return limits.shared_bytes // needed if needed else limits.max_blocks
