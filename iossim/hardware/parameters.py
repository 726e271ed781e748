"""The parameters of the simulator's kernel model and of the engine: bounds, defaults and meaning.

A device file may set any of them; the others come from its kind and architecture, so that a file with only
datasheet facts is sufficient. Datasheet facts are printed by the vendor; parameters had to be chosen or fitted.

A line has the allowed values of a parameter, the bounds of its fit to measured kernels of a GPU
(:class:`Fit`; none if they do not determine it), and the default: Volta's, from measured kernels and networks.

Lengths (bytes, clocks, inner elements) are fitted by their logarithm, the others directly
(:mod:`iossim.hardware.fits`).
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from iossim.base.values import Value


class Fit(NamedTuple):
    """The bounds of a fitted parameter, and whether its logarithm is fitted.

    Those ``of_tensor_cores`` are fitted only to rows of their precisions, with the others fixed.
    """

    lower: float
    upper: float
    is_logarithmic: bool = False
    of_tensor_cores: bool = False


Part = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Norm = Annotated[float, Field(ge=1)]

# Bounds are limits of plausibility, not expected results: a fit that ends at one is reported as not identified.
# Efficiencies and factors end at 1. Others have a reason next to them; those without are wider than any GPU.

#: From half of one DRAM read (about 400 clocks, which filling shared memory cannot avoid), if it is overlapped, to
#: some fifty sequential reads, more than any prologue and epilogue of a tile.
_PROLOGUE_CLOCKS = (200.0, 20_000.0)
#: A kernel that waits in its stream starts 1 to 1.5 us after the one before (Nsight Systems, several GPUs); including
#: the ramps at both ends, at most a new launch's time, about 10 us.
_GAP_US = (0.5, 10.0)
#: Launching an empty kernel takes the host 2 to 3 us, 6.5 with the slowest driver known to us; a library's kernels
#: take no longer.
_LAUNCH_US = (0.0, 7.0)
#: An engine's library call was observed to cost 9 us besides its kernels; twice that, rounded.
_CALL_US = (0.0, 20.0)


class ModelParameters(Value):
    """Parameters of real kernels relative to the datasheet's peaks.

    Efficiencies are fractions of a peak, at most 1: unbounded fits find a second, wrong optimum. The effect of each
    parameter is in ``backends/simulator/kernel_times.py``; of those for sharing the device in ``stage_model.py``.

    Only some apply to a CPU (``hardware/kinds/cpu.yaml`` lists them): ``gemm_efficiency`` is that of products of
    tensors in plain layout, ``implicit_gemm_efficiency`` and ``depthwise_efficiency`` those of convolutions and windows
    in blocks of channels, ``vector_efficiency`` that of pooling; ``l2_bytes_per_clock_per_sm`` is the traffic between a
    core and its caches, ``transform_efficiency`` the fraction of it for reordering tensors;
    ``kernel_gap_us`` the remaining cost of a call.
    """

    #: Arithmetic of library matrix products with large tiles, over the fp32 peak.
    gemm_efficiency: Annotated[Part, Fit(0.2, 1.0)] = 0.89
    #: Arithmetic of convolution by cuDNN's IMPLICIT_PRECOMP_GEMM, with large tiles.
    implicit_gemm_efficiency: Annotated[Part, Fit(0.2, 1.0)] = 0.96
    #: The same for its IMPLICIT_GEMM: without a table of offsets, and with small tiles that reuse each value less.
    direct_efficiency: Annotated[Part, Fit(0.05, 1.0)] = 0.4
    #: The products of the transformed tiles in one-kernel Winograd convolution.
    winograd_fused_efficiency: Annotated[Part, Fit(0.2, 1.0)] = 0.85
    #: The batched matrix product of Winograd and FFT convolution with separate transforms.
    winograd_gemm_efficiency: Annotated[Part, Fit(0.2, 1.0)] = 0.88
    #: Factors on these for products with tiles other than 128x128 and 128x64.
    tile_128x32_factor: Annotated[Part, Fit(0.3, 1.0)] = 0.77
    tile_32x128_factor: Annotated[Part, Fit(0.3, 1.0)] = 0.95
    tile_64x64_factor: Annotated[Part, Fit(0.3, 1.0)] = 0.97
    tile_64x32_factor: Annotated[Part, Fit(0.3, 1.0)] = 0.94
    tile_32x32_factor: Annotated[Part, Fit(0.2, 1.0)] = 0.70
    #: Issue of depthwise convolution and pooling, counted in taps (``lowering/gpu/convolution/grouped.py``), over the
    #: FP32 lanes of a Volta with as many warp schedulers; for a CPU its arithmetic. With the default 17 depthwise
    #: convolutions of MobileNetV2 on a V100 (PyTorch's kernel, Nsight Compute) are within 10%.
    depthwise_efficiency: Part = 0.15
    #: Arithmetic of element-wise kernels, pooling and transforms.
    vector_efficiency: Part = 0.5
    #: Matrix products at reduced precision without tensor cores, over that precision's peak.
    reduced_precision_efficiency: Part = 0.6
    #: Resident warps per SM that hide the latency of arithmetic.
    latency_hiding_warps: Annotated[Positive, Fit(0.5, 20.0)] = 5.1
    #: How many times as many it takes in tiled kernels on the lanes that wait for DRAM instead of L2, as in a network
    #: whose weights were not just used. Networks on a V100, whose library is older, show none of it.
    dram_latency_factor: Annotated[float, Field(ge=1)] = 1.0
    #: Filling and draining the pipelines of a wave of blocks, in kernels that work on tiles in shared memory.
    block_prologue_clocks: Annotated[NotNegative, Fit(*_PROLOGUE_CLOCKS, is_logarithmic=True)] = 5_800.0
    #: The same for library matrix products.
    gemm_prologue_clocks: Annotated[NotNegative, Fit(*_PROLOGUE_CLOCKS, is_logarithmic=True)] = 3_000.0
    #: Visible fraction of the rounding up to whole blocks per SM: 1 if blocks ran in lockstep.
    wave_quantisation: Annotated[Fraction, Fit(0.0, 1.0)] = 0.87
    #: Overlap of arithmetic, L2 and DRAM: the exponent of a p-norm; 1 means no overlap.
    overlap_norm: Annotated[Norm, Fit(1.0, 10.0)] = 2.5
    #: The same for library matrix products.
    gemm_overlap_norm: Annotated[Norm, Fit(1.0, 10.0)] = 3.8
    #: DRAM bandwidth reached by kernels that work on tiles.
    dram_efficiency: Annotated[Part, Fit(0.3, 1.0)] = 1.0
    #: DRAM bandwidth reached by element-wise kernels and copies.
    stream_efficiency: Annotated[Part, Fit(0.3, 1.0)] = 0.95
    #: DRAM bandwidth reached by transforms of data to and from the Winograd and frequency domains.
    transform_efficiency: Annotated[Part, Fit(0.2, 1.0)] = 0.64
    #: DRAM bandwidth reached by transforms of weights.
    filter_transform_efficiency: Annotated[Part, Fit(0.05, 1.0)] = 0.19
    #: DRAM bandwidth reached by the generation of tiles for one-kernel Winograd.
    tile_generation_efficiency: Annotated[Part, Fit(0.1, 1.0)] = 0.72
    #: Bytes between one SM and L2 per clock.
    l2_bytes_per_clock_per_sm: Annotated[Positive, Fit(8.0, 128.0, is_logarithmic=True)] = 64.0
    #: Bytes that the whole of L2 moves per clock, over the number of SMs: that of a V100 (2,048 in all), and about the
    #: observed one of an A100 and an H100 (7 TB/s of the latter).
    l2_shared_bytes_per_clock_per_sm: Positive = 26.0
    #: Fraction of L2 that keeps activations until the next kernel reads them: a kernel's data stays there if it
    #: fits, and is lost if it does not. About half for an A100, whose L2 has two halves.
    l2_resident_fraction: Annotated[Fraction, Fit(0.0, 1.0)] = 0.9
    #: Room in L2 that a written byte takes, over that of a read one.
    l2_written_factor: Annotated[float, Field(ge=1)] = 1.0
    #: Size of a matrix product's operands, in L2 capacities, at which half of them is lost between two waves of blocks.
    reuse_l2_fraction: Annotated[Positive, Fit(0.01, 30.0, is_logarithmic=True)] = 1.0
    #: Inner elements over which half of the blocks of a wave have drifted apart, and no longer share loads.
    drift_inner: Annotated[Positive, Fit(100.0, 100_000.0, is_logarithmic=True)] = 2_000.0
    #: Slowdown of reading operands beyond the reach of address translation, per e-fold beyond it.
    translation_penalty: Annotated[NotNegative, Fit(0.0, 3.0)] = 0.0
    #: Bytes that address translation reaches at full speed.
    translation_reach_bytes: Annotated[Positive, Fit(5e6, 5e8, is_logarithmic=True)] = 3e7
    #: Time from the end of one kernel to the start of the next in its stream, and the ramp at both ends.
    kernel_gap_us: Annotated[NotNegative, Fit(*_GAP_US)] = 1.5
    #: Filling and draining of a transform, however little it moves.
    transform_ramp_us: Annotated[NotNegative, Fit(0.0, 15.0)] = 2.0
    #: The same for kernels that stream or pool: a first read of DRAM and a last write, under a microsecond each.
    stream_ramp_us: Annotated[NotNegative, Fit(0.0, 2.0)] = 1.0
    #: Additional ramp of pooling and windows in NHWC: a thread finds its window first. Measured on an H200 only.
    window_ramp_us: NotNegative = 0.0
    #: Sustained arithmetic per watt of board power, in GFLOP/s: low-power boards lower their clocks under load.
    sustained_gflops_per_watt: Annotated[Positive, Fit(20.0, 1000.0, is_logarithmic=True)] = 1000.0
    #: The same for library matrix products, which draw more power.
    gemm_sustained_gflops_per_watt: Annotated[Positive, Fit(15.0, 1000.0, is_logarithmic=True)] = 1000.0
    #: Bandwidth of a CPU's core beyond its private cache, over that within. 1 on GPUs.
    beyond_core_cache_factor: Part = 1.0
    # The defaults for tensor cores were fitted jointly to fp16 products and convolutions of a V100, a T4, an A100 and
    # an A40 and to tf32 convolutions of an A100 and an RTX 3070; the A100 and Hopper have sets of their own
    # (``hardware/kinds/gpu.yaml``).
    #: Matrix products on tensor cores with infinitely large tiles, over the peak of their precision.
    tensor_efficiency: Annotated[Part, Fit(0.3, 1.0, of_tensor_cores=True)] = 0.99
    #: Convolutions on tensor cores over products of the same shape.
    tensor_convolution_factor: Annotated[Part, Fit(0.3, 1.0, of_tensor_cores=True)] = 0.95
    #: Minimum time of a tensor core block's step along the inner dimension, due to load latency.
    tensor_step_clocks: Annotated[Positive, Fit(50.0, 2_000.0, is_logarithmic=True, of_tensor_cores=True)] = 180.0
    #: Filling and draining the pipelines of a wave of 128x128 tiles on tensor cores; scaled by area for others.
    tensor_prologue_clocks: Annotated[
        NotNegative, Fit(*_PROLOGUE_CLOCKS, is_logarithmic=True, of_tensor_cores=True)
    ] = 3_000.0
    #: Overlap of arithmetic, L2 and DRAM there: the exponent of a p-norm.
    tensor_overlap_norm: Annotated[Norm, Fit(1.0, 10.0, of_tensor_cores=True)] = 1.56
    #: DRAM bandwidth reached by products on tensor cores.
    tensor_dram_efficiency: Annotated[Part, Fit(0.5, 1.0, of_tensor_cores=True)] = 0.92
    #: The wait for the first operands there if they come from DRAM. Where it is 0, the fitted ones include it.
    tensor_dram_latency_us: NotNegative = 0.0
    #: Fraction of the bandwidth for operands contiguous along the inner dimension, of which a step loads short pieces.
    tensor_strided_efficiency: Annotated[Part, Fit(0.3, 1.0, of_tensor_cores=True)] = 0.8
    #: Bytes between one SM and L2 per clock in these products.
    tensor_l2_bytes_per_clock_per_sm: Annotated[
        Positive, Fit(16.0, 128.0, is_logarithmic=True, of_tensor_cores=True)
    ] = 120.0
    #: Their sustained arithmetic per watt of board power in fp16, in GFLOP/s; other precisions in proportion to their
    #: peaks. Products of 112 TFLOP/s on the V100's 300 W are not power-limited.
    tensor_sustained_gflops_per_watt: Annotated[
        Positive, Fit(100.0, 3_000.0, is_logarithmic=True, of_tensor_cores=True)
    ] = 500.0
    # Fused attention: ``evidence.profiles.graph_products`` fits these to bf16 kernels of an H100 and an H200, whose
    # held-out rows are within 8 and 10%. Other generations were not measured and use the same values.
    #: Both products of an attention in one kernel, over the peak of their precision.
    attention_efficiency: Part = 0.63
    #: Overlap of these with the exponentials between them: the exponent of a p-norm; 1 means no overlap.
    attention_overlap_norm: Norm = 1.94
    #: Filling and draining of a wave of blocks of 192 queries; scaled by the number of queries for others.
    attention_prologue_clocks: NotNegative = 7_980.0
    #: Fixed time of such a kernel, however little it computes: includes the kernel that plans its tiles.
    attention_ramp_us: NotNegative = 7.3
    #: DRAM bandwidth reached by transforms between NCHW and NHWC.
    layout_efficiency: Annotated[Part, Fit(0.1, 1.0, of_tensor_cores=True)] = 0.85
    #: Filling and draining of such a transform, however little it moves: small ones take 2 us on an RTX A5000
    #: (PyTorch's profiler).
    layout_ramp_us: NotNegative = 2.0
    #: DRAM bandwidth that one SM can draw, over its even share: limited by its bytes in flight over the latency.
    #: Kernels that fill the device do not depend on it. Relative to streams at datasheet bandwidth, an SM of an
    #: A6000 draws 2.3 times its share, of an RTX 5090 1.8 times; an A100's draws at least 1.2 times.
    sm_bandwidth_reach: Annotated[float, Field(ge=1)] = 2.0
    #: Additional demand of concurrent kernels over their demand alone (interference in caches and at DRAM).
    interference: NotNegative = 0.0


class EngineOverheads(Value):
    """Costs of the host and between kernels, in microseconds.

    The defaults belong to the host and the driver of a GPU, and are rounded from measurements of launches,
    graphs and synchronisations (``evidence.profiles.launch_costs``); ``hardware/kinds/gpu.yaml`` has them by
    generation.
    """

    #: Device time of a library call beyond its kernels and gaps, for back-to-back calls: the dispatch floor.
    dispatch_us: Annotated[NotNegative, Fit(*_CALL_US)] = 6.0
    #: The same for each further kernel of a call.
    dispatch_kernel_us: Annotated[NotNegative, Fit(*_LAUNCH_US)] = 2.0
    #: The same for a layout transform inside a call, including the first: the host's time to launch it. Fitted
    #: after the others, to the in-sample rows of the A100 and the RTX 3070.
    dispatch_layout_us: Annotated[NotNegative, Fit(0.0, 13.0, of_tensor_cores=True)] = 7.0
    #: ``dispatch_us`` of a matrix product on tensor cores, which checks less than a convolution.
    tensor_dispatch_us: Annotated[NotNegative, Fit(*_CALL_US, of_tensor_cores=True)] = 1.0
    #: Host time to issue a library call (descriptor checks, heuristics and first launch).
    library_call_us: NotNegative = 9.2
    #: Host time for each further kernel that a library call launches.
    library_kernel_us: NotNegative = 9.2
    #: The same for a layout transform, which has no descriptors to check: launching an empty kernel takes 2 to 3 us.
    layout_launch_us: NotNegative = 3.0
    #: Host time to launch a kernel of the engine's own: the published engine's for its smallest operators.
    bare_launch_us: NotNegative = 9.2
    #: Recording an event, or making a stream wait for one.
    event_us: NotNegative = 1.5
    #: Device-wide synchronisation, including the bubble until the next kernel runs.
    synchronise_us: NotNegative = 11.0
    #: The gap between kernels of a CUDA graph, over that between kernels of a stream.
    graph_gap_factor: Fraction = 0.8
    #: Minimum time of a kernel of a CUDA graph, including the gap before it: for the smallest kernels of ResNet-50 a
    #: profiler shows 2 us on an RTX A5000. Element-wise nodes of an H200 take 1.2 us and more
    #: (``hw_profiles/measurements/h200``), an empty one 0.5; other generations were not measured.
    graph_kernel_us: NotNegative = 2.7
    #: The same on tensor cores, besides the prologue of tiles: products take 2.7 us on an A100, 2.6 on H100 and H200.
    graph_tensor_kernel_us: NotNegative = 2.7
    #: Additional time of a tensor core convolution inside a network over repeated calls: its code and descriptors
    #: come from DRAM. ResNet-50 at batch 1 on an RTX A5000 (PyTorch's profiler); half of it on an H200, in bf16.
    cold_convolution_us: NotNegative = 2.5
    #: One node followed by several in a CUDA graph.
    fork_us: NotNegative = 1.5
    #: Several nodes followed by one in a CUDA graph.
    join_us: NotNegative = 1.5
    #: Interval between the starts of branches after a fork: an H100's 0.16 to 0.20 us (56 recorded timelines of
    #: networks); other generations were not measured.
    graph_apart_us: NotNegative = 0.0
    #: Further interval before a product or convolution whose code no running kernel has. For each code more, sets on an
    #: H100 take some 0.4 us longer where caches have it, 1.5 where L2 was emptied; others were not measured.
    graph_code_us: NotNegative = 0.0
    #: Least interval between two kernels of a branch while other branches run: on an H100 the second took 1.4 us longer
    #: there than in a chain (median of 964 recorded ones), those that need whole SMs 2.4, equal ones in step none. On
    #: an H200, which had no say, networks are off by 8.4% with it, and 9.0 without.
    graph_follow_us: NotNegative = 0.0
    #: Delay of a CUDA graph's node while nodes of another chain run: fitted on an RTX A5000
    #: (``calibration.corun_fit``).
    graph_beside_us: NotNegative = 0.25
    # Streams of ONNX Runtime (engine ``onnxruntime``): a CPU's are measured (``evidence.profiles.runtime_streams``), a
    # GPU's are not: nodes are assumed to have the gaps of a stream's kernels, and events to cost the host as usual.
    #: Gap between nodes of a session, over that between calls.
    session_gap_factor: Fraction = 1.0
    #: Delay of a stream after the event in another stream that it waits for.
    notification_us: NotNegative = 0.0
    #: The same if there are more threads, including the caller, than cores: until the thread is scheduled.
    starved_notification_us: NotNegative = 0.0


#: Parameters of a call's cost besides its kernels' work.
CALL = frozenset({"dispatch_us", "dispatch_kernel_us", "kernel_gap_us"})
