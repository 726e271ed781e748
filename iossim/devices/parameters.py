"""Parameters of the simulator's kernel model and of the engine, with where their values come from.

A device file may set any of them; what it leaves out comes from its architecture's defaults, so that a file with
datasheet facts alone is enough. Datasheet facts are what the vendor prints; parameters are what had to be chosen.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from iossim.devices.compute_capability import Architecture
from iossim.validation import Value


class Provenance(Value):
    """Where parameter values come from: set by hand, or fitted to a data set."""

    kind: Literal["hand-set", "fitted"]
    note: str
    data_set: str | None = None
    date: str | None = None
    #: Mean absolute relative error on kernels that the fit did not see.
    held_out_error: float | None = None


class ModelParameters(Value):
    """How far real kernels stay below the datasheet's peaks.

    Efficiencies are fractions of a peak, at most 1: unbounded fits find a second, wrong optimum.
    """

    #: Arithmetic of library matrix products with large tiles, over the fp32 peak.
    gemm_efficiency: float = Field(gt=0, le=1)
    #: Arithmetic of implicit-GEMM convolution with large tiles.
    implicit_gemm_efficiency: float = Field(gt=0, le=1)
    #: The products of the transformed tiles in one-kernel Winograd convolution.
    winograd_fused_efficiency: float = Field(gt=0, le=1)
    #: The batched matrix product of Winograd and FFT convolution with separate transforms.
    winograd_gemm_efficiency: float = Field(gt=0, le=1)
    #: Factor on ``gemm_efficiency`` for 32x32 tiles, which reuse each loaded value less.
    small_tile_factor: float = Field(gt=0, le=1)
    #: Arithmetic of depthwise convolution.
    depthwise_efficiency: float = Field(gt=0, le=1)
    #: Arithmetic of element-wise kernels, pooling and transforms.
    vector_efficiency: float = Field(gt=0, le=1)
    #: Matrix products at reduced precision, over that precision's peak.
    reduced_precision_efficiency: float = Field(gt=0, le=1)
    #: Resident warps per SM that hide the latency of arithmetic.
    latency_hiding_warps: float = Field(gt=0)
    #: Filling and draining the pipelines of a wave of blocks, in kernels that work on tiles in shared memory.
    block_prologue_us: float = Field(ge=0)
    #: DRAM bandwidth reached by kernels that stream.
    dram_efficiency: float = Field(gt=0, le=1)
    #: DRAM and L2 bandwidth reached by pooling and depthwise windows, relative to streaming.
    window_memory_factor: float = Field(gt=0, le=1)
    #: Bytes that one SM moves from or to L2 in a clock.
    l2_bytes_per_clock_per_sm: float = Field(gt=0)
    #: The part of L2 in which an activation is still found when the next kernel reads it.
    l2_resident_fraction: float = Field(ge=0, le=1)
    #: From the end of one kernel to the start of the next in its stream, and the ramp at both ends.
    kernel_gap_us: float = Field(ge=0)
    #: Sustained arithmetic per watt of board power, in GFLOP/s: low-power boards lower their clocks under load.
    sustained_gflops_per_watt: float = Field(gt=0)
    #: What each further concurrent kernel costs once the device is full (cache and scheduler interference).
    crowding: float = Field(ge=0)


class EngineOverheads(Value):
    """Costs of the host and of what separates kernels, in microseconds."""

    #: Host time to issue a library call (descriptor checks, heuristics and first launch).
    library_call_us: float = Field(ge=0)
    #: Host time of each further kernel that a library call launches.
    library_kernel_us: float = Field(ge=0)
    #: Host time to launch a kernel of the engine's own.
    bare_launch_us: float = Field(ge=0)
    #: Recording an event, or making a stream wait for one.
    event_us: float = Field(ge=0)
    #: Device-wide synchronisation, with the bubble until the next kernel runs.
    synchronise_us: float = Field(ge=0)
    #: The gap between kernels of a CUDA graph, over that between kernels of a stream.
    graph_gap_factor: float = Field(ge=0, le=1)
    #: One node followed by several in a CUDA graph.
    fork_us: float = Field(ge=0)
    #: Several nodes followed by one in a CUDA graph.
    join_us: float = Field(ge=0)


_VOLTA = ModelParameters(
    gemm_efficiency=0.87,
    implicit_gemm_efficiency=0.8,
    winograd_fused_efficiency=0.55,
    winograd_gemm_efficiency=0.6,
    small_tile_factor=0.36,
    depthwise_efficiency=0.1,
    vector_efficiency=0.5,
    reduced_precision_efficiency=0.6,
    latency_hiding_warps=2.9,
    block_prologue_us=5.3,
    dram_efficiency=0.92,
    window_memory_factor=0.5,
    l2_bytes_per_clock_per_sm=17.5,
    l2_resident_fraction=0.57,
    kernel_gap_us=5.0,
    sustained_gflops_per_watt=1000.0,
    crowding=0.07,
)

_PASCAL = _VOLTA.model_copy(
    update={
        "gemm_efficiency": 0.67,
        "implicit_gemm_efficiency": 0.76,
        "winograd_fused_efficiency": 0.78,
        "latency_hiding_warps": 2.1,
        "block_prologue_us": 3.9,
        "dram_efficiency": 0.75,
        "l2_bytes_per_clock_per_sm": 11.8,
        "sustained_gflops_per_watt": 36.0,
    }
)
_TURING = _VOLTA.model_copy(
    update={
        "gemm_efficiency": 0.50,
        "implicit_gemm_efficiency": 0.60,
        "winograd_fused_efficiency": 0.44,
        "winograd_gemm_efficiency": 0.40,
        "latency_hiding_warps": 2.7,
        "block_prologue_us": 5.8,
        "dram_efficiency": 0.75,
        "sustained_gflops_per_watt": 55.0,
    }
)
# An SM of 192 lanes and 4 schedulers keeps its lanes busy only with two instructions of a warp at a time.
_KEPLER = _PASCAL.model_copy(update={"gemm_efficiency": 0.5, "implicit_gemm_efficiency": 0.5})
# Twice the L2 bandwidth of Volta for each SM (A100 whitepaper).
_AMPERE = _VOLTA.model_copy(update={"l2_bytes_per_clock_per_sm": 35.0})

#: Defaults by architecture. Volta, Turing and Pascal are set against measured kernels (Volta against networks too);
#: the others take the nearest of these.
ARCHITECTURE_PARAMETERS: dict[Architecture, ModelParameters] = {
    Architecture.KEPLER: _KEPLER,
    Architecture.MAXWELL: _PASCAL,
    Architecture.PASCAL: _PASCAL,
    Architecture.VOLTA: _VOLTA,
    Architecture.TURING: _TURING,
    Architecture.AMPERE: _AMPERE,
    Architecture.ADA: _AMPERE,
    Architecture.HOPPER: _AMPERE,
    Architecture.BLACKWELL: _AMPERE,
}

#: Defaults of every device: they belong to the host and the driver.
ENGINE_OVERHEADS = EngineOverheads(
    library_call_us=5.0,
    library_kernel_us=2.5,
    bare_launch_us=5.0,
    event_us=1.5,
    synchronise_us=10.0,
    graph_gap_factor=0.9,
    fork_us=1.5,
    join_us=1.5,
)

DEFAULT_PROVENANCE = Provenance(
    kind="hand-set",
    note=(
        "set by hand and small searches against measured fp32 kernels (Volta, Turing, Pascal) and against measured "
        "networks on V100-SXM2; other architectures take the nearest of these; depthwise, pooling and element-wise "
        "kernels are priors; not validated on held-out data"
    ),
)
