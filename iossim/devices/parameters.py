"""Parameters of the simulator's kernel model and of the engine.

A device file may set any of them; what it leaves out comes from its architecture's defaults, so that a file with
datasheet facts alone is enough. Datasheet facts are what the vendor prints; parameters are what had to be chosen.
"""

from __future__ import annotations

from pydantic import Field

from iossim.devices.compute_capability import Architecture
from iossim.values import Value


class ModelParameters(Value):
    """How far real kernels stay below the datasheet's peaks.

    Efficiencies are fractions of a peak, at most 1: unbounded fits find a second, wrong optimum. What each parameter does
    stands in ``backends/simulator/kernel_times.py``; those of the sharing of the device in ``stage_model.py``.

    Of a processor fewer have a meaning (``calibration.parameter_space`` has the list): ``gemm_efficiency`` is that of
    products of tensors as they lie, ``implicit_gemm_efficiency`` and ``depthwise_efficiency`` those of convolutions and
    windows in blocks of channels, ``vector_efficiency`` that of pooling; ``l2_bytes_per_clock_per_sm`` is what a core moves
    from and to its caches, ``transform_efficiency`` the part of it at which tensors are reordered; ``kernel_gap_us`` is what
    a call costs besides its work.
    """

    #: Arithmetic of library matrix products with large tiles, over the fp32 peak.
    gemm_efficiency: float = Field(gt=0, le=1)
    #: Arithmetic of implicit-GEMM convolution with large tiles.
    implicit_gemm_efficiency: float = Field(gt=0, le=1)
    #: Arithmetic of implicit-GEMM convolution without a table of offsets, whose small tiles reuse each value less.
    direct_efficiency: float = Field(gt=0, le=1)
    #: The products of the transformed tiles in one-kernel Winograd convolution.
    winograd_fused_efficiency: float = Field(gt=0, le=1)
    #: The batched matrix product of Winograd and FFT convolution with separate transforms.
    winograd_gemm_efficiency: float = Field(gt=0, le=1)
    #: Factors on these for products with other tiles than 128x128 and 128x64.
    tile_128x32_factor: float = Field(gt=0, le=1)
    tile_32x128_factor: float = Field(gt=0, le=1)
    tile_64x64_factor: float = Field(gt=0, le=1)
    tile_64x32_factor: float = Field(gt=0, le=1)
    tile_32x32_factor: float = Field(gt=0, le=1)
    #: Issue of depthwise convolution, counted in taps (``lowering.convolution.depthwise``); of a processor its arithmetic.
    depthwise_efficiency: float = Field(gt=0, le=1)
    #: Arithmetic of element-wise kernels, pooling and transforms.
    vector_efficiency: float = Field(gt=0, le=1)
    #: Matrix products at reduced precision, over that precision's peak.
    reduced_precision_efficiency: float = Field(gt=0, le=1)
    #: Resident warps per SM that hide the latency of arithmetic.
    latency_hiding_warps: float = Field(gt=0)
    #: Filling and draining the pipelines of a wave of blocks, in kernels that work on tiles in shared memory.
    block_prologue_clocks: float = Field(ge=0)
    #: The same of library matrix products.
    gemm_prologue_clocks: float = Field(ge=0)
    #: How much of the rounding up to whole blocks an SM is seen: 1 if blocks ran in lockstep.
    wave_quantisation: float = Field(ge=0, le=1)
    #: How well arithmetic, L2 and DRAM overlap: the exponent of a p-norm, 1 not at all.
    overlap_norm: float = Field(ge=1)
    #: The same of library matrix products.
    gemm_overlap_norm: float = Field(ge=1)
    #: DRAM bandwidth reached by kernels that work on tiles.
    dram_efficiency: float = Field(gt=0, le=1)
    #: DRAM bandwidth reached by element-wise kernels and copies.
    stream_efficiency: float = Field(gt=0, le=1)
    #: DRAM bandwidth reached by transforms of data to and from the Winograd and frequency domains.
    transform_efficiency: float = Field(gt=0, le=1)
    #: DRAM bandwidth reached by transforms of weights.
    filter_transform_efficiency: float = Field(gt=0, le=1)
    #: DRAM bandwidth reached by the generation of tiles for one-kernel Winograd.
    tile_generation_efficiency: float = Field(gt=0, le=1)
    #: DRAM and L2 bandwidth reached by pooling and depthwise windows, relative to streaming.
    window_memory_factor: float = Field(gt=0, le=1)
    #: Bytes that one SM moves from or to L2 in a clock.
    l2_bytes_per_clock_per_sm: float = Field(gt=0)
    #: The part of L2 in which an activation is still found when the next kernel reads it.
    l2_resident_fraction: float = Field(ge=0, le=1)
    #: Operands of a matrix product as large as this many L2 caches are half lost between two waves of blocks.
    reuse_l2_fraction: float = Field(gt=0)
    #: Inner elements over which half of the blocks of a wave have drifted apart, and no longer share loads.
    drift_inner: float = Field(gt=0)
    #: How much slower operands beyond the reach of address translation are read: per e-fold beyond it.
    translation_penalty: float = Field(ge=0)
    #: Bytes that address translation reaches at full speed.
    translation_reach_bytes: float = Field(gt=0)
    #: From the end of one kernel to the start of the next in its stream, and the ramp at both ends.
    kernel_gap_us: float = Field(ge=0)
    #: Filling and draining of a transform, however little it moves.
    transform_ramp_us: float = Field(ge=0)
    #: The same of kernels that stream or pool.
    stream_ramp_us: float = Field(ge=0)
    #: Sustained arithmetic per watt of board power, in GFLOP/s: low-power boards lower their clocks under load.
    sustained_gflops_per_watt: float = Field(gt=0)
    #: The same of library matrix products, which draw more power.
    gemm_sustained_gflops_per_watt: float = Field(gt=0)
    #: Between a processor's core and what lies beyond its own cache: bandwidth over that within. 1 on GPUs.
    beyond_core_cache_factor: float = Field(gt=0, le=1)
    #: What kernels that run side by side ask for beyond what they ask for alone (interference in caches and at DRAM).
    crowding: float = Field(ge=0)


class EngineOverheads(Value):
    """Costs of the host and of what separates kernels, in microseconds."""

    #: Device time of a library call beyond its kernels and gaps, where one follows the other: the dispatch floor.
    dispatch_us: float = Field(ge=0)
    #: The same of each further kernel of a call.
    dispatch_kernel_us: float = Field(ge=0)
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
    gemm_efficiency=0.89,
    implicit_gemm_efficiency=0.96,
    direct_efficiency=0.4,
    winograd_fused_efficiency=0.85,
    winograd_gemm_efficiency=0.88,
    tile_128x32_factor=0.77,
    tile_32x128_factor=0.95,
    tile_64x64_factor=0.97,
    tile_64x32_factor=0.94,
    tile_32x32_factor=0.70,
    # What 17 depthwise convolutions of MobileNetV2 took on a V100 (PyTorch's kernel, Nsight Compute): within 10 per cent.
    depthwise_efficiency=0.15,
    vector_efficiency=0.5,
    reduced_precision_efficiency=0.6,
    latency_hiding_warps=5.1,
    block_prologue_clocks=5_800.0,
    gemm_prologue_clocks=3_000.0,
    wave_quantisation=0.87,
    overlap_norm=2.5,
    gemm_overlap_norm=3.8,
    dram_efficiency=1.0,
    stream_efficiency=0.95,
    transform_efficiency=0.64,
    filter_transform_efficiency=0.19,
    tile_generation_efficiency=0.72,
    window_memory_factor=0.5,
    l2_bytes_per_clock_per_sm=64.0,
    l2_resident_fraction=0.9,
    reuse_l2_fraction=1.0,
    drift_inner=2_000.0,
    translation_penalty=0.0,
    translation_reach_bytes=3e7,
    kernel_gap_us=2.0,
    transform_ramp_us=2.0,
    stream_ramp_us=1.0,
    sustained_gflops_per_watt=1000.0,
    gemm_sustained_gflops_per_watt=1000.0,
    beyond_core_cache_factor=1.0,
    crowding=0.208,
)

_PASCAL = _VOLTA.model_copy(update={"sustained_gflops_per_watt": 60.0, "gemm_sustained_gflops_per_watt": 60.0})
_TURING = _VOLTA.model_copy(update={"sustained_gflops_per_watt": 75.0, "gemm_sustained_gflops_per_watt": 60.0})
# An SM of 192 lanes and 4 schedulers keeps its lanes busy only with two instructions of a warp at a time.
_KEPLER = _PASCAL.model_copy(update={"gemm_efficiency": 0.5, "implicit_gemm_efficiency": 0.5})
_AMPERE = _VOLTA

# A core hides its own latency and starts without a ramp; what a unit costs besides its work is the gap.
_CPU = _VOLTA.model_copy(
    update={
        "gemm_efficiency": 0.8,
        "implicit_gemm_efficiency": 0.88,
        "depthwise_efficiency": 0.39,
        "vector_efficiency": 0.044,
        "latency_hiding_warps": 1.0,
        "block_prologue_clocks": 0.0,
        "gemm_prologue_clocks": 0.0,
        "wave_quantisation": 1.0,
        "overlap_norm": 1.95,
        "dram_efficiency": 0.9,
        "transform_efficiency": 0.215,
        "l2_bytes_per_clock_per_sm": 29.0,
        "beyond_core_cache_factor": 0.34,
        "kernel_gap_us": 2.9,
        "transform_ramp_us": 0.0,
        "stream_ramp_us": 0.0,
        "crowding": 0.02,
    }
)

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
    Architecture.CPU: _CPU,
}

#: Defaults of every GPU, for they belong to the host and the driver: launches and synchronisations as on the V100-SXM2, the
#: one device whose schedules tell them, rounded; with ``crowding`` they are what ``devices.borrowed`` lends, with the spread.
ENGINE_OVERHEADS = EngineOverheads(
    dispatch_us=6.0,
    dispatch_kernel_us=2.0,
    library_call_us=5.5,
    library_kernel_us=5.5,
    bare_launch_us=5.5,
    event_us=1.5,
    synchronise_us=10.7,
    graph_gap_factor=0.9,
    fork_us=1.5,
    join_us=1.5,
)

#: Defaults of every processor. The thread of a stream calls the library itself: a call is part of the work (the gap), and
#: nothing is issued ahead. What a synchronisation costs is handing work to the threads and waiting for them.
PROCESSOR_OVERHEADS = EngineOverheads(
    dispatch_us=0.0,
    dispatch_kernel_us=0.0,
    library_call_us=0.0,
    library_kernel_us=0.0,
    bare_launch_us=0.0,
    event_us=0.0,
    synchronise_us=10.0,
    graph_gap_factor=1.0,
    fork_us=10.0,
    join_us=10.0,
)


def engine_overheads(architecture: Architecture) -> EngineOverheads:
    """The default overheads of an architecture."""
    return PROCESSOR_OVERHEADS if architecture is Architecture.CPU else ENGINE_OVERHEADS
