"""NVIDIA GPUs: limits, default parameters and ranges by generation, and the parameters that fits determine."""

from __future__ import annotations

from iossim.hardware.compute_capability import LIMITS, Architecture
from iossim.hardware.kind import DeviceKind, EngineCosts, Ranges
from iossim.hardware.parameters import EngineOverheads, FittedParameter, ModelParameters, ParameterSpace, fitted

_VOLTA = ModelParameters()
_PASCAL = _VOLTA.model_copy(update={"sustained_gflops_per_watt": 60.0, "gemm_sustained_gflops_per_watt": 60.0})
# A T4 of 70 W sustains 42 of its 65 TFLOP/s on tensor cores. Its convolutions reach 0.7 of its products, the V100's
# 0.98; the default is halfway.
_TURING = _VOLTA.model_copy(
    update={
        "sustained_gflops_per_watt": 75.0,
        "gemm_sustained_gflops_per_watt": 60.0,
        "tensor_convolution_factor": 0.82,
        "tensor_prologue_clocks": 8_000.0,
        "tensor_strided_efficiency": 0.94,
        "tensor_sustained_gflops_per_watt": 600.0,
    }
)
# An SM of 192 lanes and 4 schedulers uses all lanes only if warps issue two instructions at a time.
_KEPLER = _PASCAL.model_copy(update={"gemm_efficiency": 0.5, "implicit_gemm_efficiency": 0.5})
# Asynchronous copies fetch whole lines of L2, so that short pieces lose little. An A100 of 300 W sustains 200 to 245
# TFLOP/s, of 400 W 290.
_AMPERE = _VOLTA.model_copy(update={"tensor_strided_efficiency": 0.94, "tensor_sustained_gflops_per_watt": 760.0})
# ``evidence.profiles.graph_products`` fits these and Hopper's to bf16 products in CUDA graphs of an A100, an H100 and
# an H200: held-out rows are within 9% on each, and 3,826 fp16 products of an A100 that took no part within 6% (7%
# before).
_GA100 = _AMPERE.model_copy(
    update={
        "tensor_efficiency": 1.0,
        "tensor_step_clocks": 36.0,
        "tensor_prologue_clocks": 5_140.0,
        "tensor_overlap_norm": 6.2,
        "tensor_dram_efficiency": 0.72,
        "tensor_strided_efficiency": 1.0,
        "tensor_l2_bytes_per_clock_per_sm": 27.5,
    }
)
# GA10x: another process, and GDDR takes more power: an A40 of 300 W sustains 104 to 123 of its 150 TFLOP/s.
_GA10X = _AMPERE.model_copy(update={"tensor_sustained_gflops_per_watt": 400.0})
# Ada was not measured: its process does about a third more per watt, rounded down. An L4 of 72 W then sustains 65 of
# its 121 TFLOP/s. The large products of an H100 and an H200, of 700 W, sustain 740 of 989.
# Ada's large L2 is that of Blackwell's GeForces, and an RTX 5090's moves 5.9 TB/s.
_ADA = _AMPERE.model_copy(update={"tensor_sustained_gflops_per_watt": 900.0, "l2_shared_bytes_per_clock_per_sm": 14.3})
# An H100's convolutions and products run at the speed of L2 while what they read, and twice what they write, is up to
# some 38 MB, and at that of DRAM from 45 MB on. An H200's pools take 0.7 us more than copies, however small. Its fp32
# convolutions of few blocks take 1.38 to 1.54 times as long (four of them) if their operands come from DRAM.
_HOPPER = _AMPERE.model_copy(
    update={
        "tensor_efficiency": 1.0,
        "tensor_step_clocks": 224.0,
        "tensor_prologue_clocks": 4_490.0,
        "tensor_overlap_norm": 4.8,
        "tensor_dram_efficiency": 0.81,
        "tensor_strided_efficiency": 1.0,
        "tensor_l2_bytes_per_clock_per_sm": 128.0,
        "tensor_sustained_gflops_per_watt": 1060.0,
        "l2_resident_fraction": 0.68,
        "l2_written_factor": 2.0,
        "dram_latency_factor": 1.45,
        "window_ramp_us": 0.7,
    }
)
#: Volta, Turing and Pascal are validated by measured kernels (Volta by networks too); the others use the nearest
#: of these. Tensor cores were measured from Volta to Hopper, except Ada. Some compute capabilities differ.
PARAMETERS: dict[str, ModelParameters] = {
    Architecture.KEPLER: _KEPLER,
    Architecture.MAXWELL: _PASCAL,
    Architecture.PASCAL: _PASCAL,
    Architecture.VOLTA: _VOLTA,
    Architecture.TURING: _TURING,
    Architecture.AMPERE: _GA100,
    "8.6": _GA10X,
    Architecture.ADA: _ADA,
    Architecture.HOPPER: _HOPPER,
    # Two dies, each with an L2 as large as an H100's.
    Architecture.BLACKWELL: _HOPPER.model_copy(update={"l2_shared_bytes_per_clock_per_sm": 46.0}),
    Architecture.BLACKWELL_RTX: _ADA,
}

_RANGES: dict[str, Ranges] = {
    Architecture.KEPLER: Ranges((1, 15), (0.7, 1.1), (0.125, 1.5), (14, 337), (1, 12), (10, 375)),
    Architecture.MAXWELL: Ranges((1, 24), (0.9, 1.4), (0.25, 3), (14, 337), (1, 24), (5, 300)),
    Architecture.PASCAL: Ranges((2, 60), (1.0, 1.75), (0.25, 4), (40, 732), (2, 24), (7, 300)),
    Architecture.VOLTA: Ranges((6, 84), (0.8, 1.63), (0.5, 6), (51, 1134), (8, 64), (10, 350)),
    Architecture.TURING: Ranges((14, 72), (1.2, 1.86), (0.5, 6), (112, 672), (3, 48), (25, 280)),
    Architecture.AMPERE: Ranges((4, 128), (0.625, 1.86), (0.5, 48), (34, 2039), (4, 96), (7, 500)),
    Architecture.ADA: Ranges((20, 144), (1.4, 2.65), (12, 96), (192, 1152), (6, 48), (35, 450)),
    Architecture.HOPPER: Ranges((78, 144), (1.6, 1.98), (40, 60), (1935, 4900), (64, 144), (300, 1000)),
    Architecture.BLACKWELL: Ranges((16, 192), (1.5, 2.7), (16, 128), (256, 8000), (8, 288), (40, 1400)),
    Architecture.BLACKWELL_RTX: Ranges((16, 192), (1.5, 2.7), (16, 128), (256, 8000), (8, 288), (40, 1400)),
}

#: Determined by measured kernels: the model's fitted parameters, then two dispatch costs.
GPU_SPACE = ParameterSpace((*fitted(ModelParameters), *fitted(EngineOverheads)))
#: Determined only by rows of tensor core precisions: they are fitted beside the parameters above, which are fixed.
TENSOR_SPACE = ParameterSpace((*fitted(ModelParameters, True), *fitted(EngineOverheads, True)))
#: Costs of launches, graphs and synchronisations, rounded from single measurements
#: (``evidence.profiles.launch_costs`` reproduces them from their table), with standard deviations. A graph's node was
#: measured on a Volta, on an RTX A5000 and on an RTX 5070 Ti; the last two are less certain, since they depend on the
#: gap of a stream. The host's time does not depend on the generation: an operator of the published
#: engine takes at least 9.2 us, on a Maxwell as on an A100.
_HOST_SPREAD = {"kernel_gap_us": 0.75, "bare_launch_us": 3.3, "synchronise_us": 4.0, "fork_us": 0.75, "join_us": 0.75}
_UNTIL_VOLTA = EngineCosts(EngineOverheads(graph_gap_factor=0.8), {**_HOST_SPREAD, "graph_gap_factor": 0.1})
_TURING_AND_AMPERE = EngineCosts(EngineOverheads(graph_gap_factor=0.5), {**_HOST_SPREAD, "graph_gap_factor": 0.26})
_ADA_SPREAD = {**_HOST_SPREAD, "graph_gap_factor": 0.2}
_ADA_COSTS = EngineCosts(
    EngineOverheads(graph_gap_factor=0.4, graph_kernel_us=2.6, graph_tensor_kernel_us=2.6), _ADA_SPREAD
)
#: Timelines of 14 networks on an H100: after a fork or a join a kernel starts as soon as in a chain (0.42 us), and
#: further branches at intervals of 0.16 to 0.20 us.
_HOPPER_GRAPHS = {"graph_kernel_us": 1.4, "cold_convolution_us": 0.1, "fork_us": 0.0, "join_us": 0.0}
_SINCE_HOPPER = EngineCosts(
    _ADA_COSTS.values.model_copy(update={**_HOPPER_GRAPHS, "graph_apart_us": 0.19}), _ADA_SPREAD
)
#: An empty node of an RTX 5070 Ti takes as little; its forks were not measured.
_BLACKWELL_RTX = EngineCosts(
    _ADA_COSTS.values.model_copy(update={"graph_kernel_us": 1.4, "cold_convolution_us": 1.25}), _ADA_SPREAD
)
#: By architecture.
ENGINES: dict[str, EngineCosts] = {
    **dict.fromkeys((Architecture.KEPLER, Architecture.MAXWELL, Architecture.PASCAL, Architecture.VOLTA), _UNTIL_VOLTA),
    **dict.fromkeys((Architecture.TURING, Architecture.AMPERE), _TURING_AND_AMPERE),
    Architecture.ADA: _ADA_COSTS,
    **dict.fromkeys((Architecture.HOPPER, Architecture.BLACKWELL), _SINCE_HOPPER),
    Architecture.BLACKWELL_RTX: _BLACKWELL_RTX,
}

#: Determined by stages that replay a graph, beyond their kernels: the cost of an edge between two streams (a stage has
#: a fork and a join, which the data cannot separate; an event between two streams costs 3 us), and their gap.
GPU_CONCURRENCY = ParameterSpace(
    (FittedParameter("graph_gap_factor", 0.1, 1.0), FittedParameter("fork_us", 0.0, 10.0)),
    ties=(("join_us", "fork_us", 1.0),),
)
#: Determined by networks run sequentially (``calibration.host_fit``): the gap between kernels, and a common cost of
#: all launches. Queueing a single launch takes at least 2 us; twice the observed 9 us per call of an engine is
#: ample. The cost of a synchronisation is not determined: nothing is waited for in them.
#:
#: A library call launches its first kernel, and each further one, as the engine launches its own: the additional cost
#: of checks and heuristics is included (the descriptors are made beforehand), and cannot be separated.
GPU_LAUNCHES = ParameterSpace(
    (FittedParameter("kernel_gap_us", 0.5, 10.0), FittedParameter("bare_launch_us", 2.0, 18.0)),
    ties=(("library_call_us", "bare_launch_us", 1.0), ("library_kernel_us", "bare_launch_us", 1.0)),
)

KIND = DeviceKind(
    noun="GPU",
    multiprocessors="SMs",
    needs=frozenset({"compute_capability", "board_power_w"}),
    lacks=frozenset({"core_cache_bytes"}),
    limits=LIMITS,
    parameters=PARAMETERS,
    engines=ENGINES,
    ranges=_RANGES,
    kernels=GPU_SPACE,
    concurrency=GPU_CONCURRENCY,
    launches=GPU_LAUNCHES,
    tensor_cores=TENSOR_SPACE,
    borrows=True,
)
