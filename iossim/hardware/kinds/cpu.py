"""CPUs: a core corresponds to an SM that holds one block of one warp, as an op runs on one thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iossim.hardware.compute_capability import WARP_THREADS, MultiprocessorLimits
from iossim.hardware.kind import DeviceKind, EngineCosts, Ranges
from iossim.hardware.parameters import EngineOverheads, ModelParameters

if TYPE_CHECKING:
    from iossim.hardware.fits import DeviceFits

_LIMITS = MultiprocessorLimits("cpu", WARP_THREADS, 1, 1, 0, 0, 0, 1)
#: A core hides its own latency and has no ramp; the overhead of a unit is the gap.
_PARAMETERS = ModelParameters(
    gemm_efficiency=0.8,
    implicit_gemm_efficiency=0.88,
    depthwise_efficiency=0.39,
    vector_efficiency=0.044,
    latency_hiding_warps=1.0,
    block_prologue_clocks=0.0,
    gemm_prologue_clocks=0.0,
    wave_quantisation=1.0,
    overlap_norm=1.95,
    dram_efficiency=0.9,
    transform_efficiency=0.215,
    l2_bytes_per_clock_per_sm=29.0,
    beyond_core_cache_factor=0.34,
    kernel_gap_us=2.9,
    transform_ramp_us=0.0,
    stream_ramp_us=0.0,
    interference=0.02,
)
#: The thread of a stream calls the library itself: a call is part of the work (the gap), and nothing is issued ahead.
#: The cost of a synchronisation is that of handing work to the threads and waiting for them.
_OVERHEADS = EngineOverheads(
    dispatch_us=0.0,
    dispatch_kernel_us=0.0,
    library_call_us=0.0,
    library_kernel_us=0.0,
    bare_launch_us=0.0,
    event_us=0.0,
    synchronise_us=10.0,
    graph_gap_factor=1.0,
    graph_kernel_us=0.0,
    graph_tensor_kernel_us=0.0,
    cold_convolution_us=0.0,
    fork_us=10.0,
    join_us=10.0,
    session_gap_factor=0.1,
    notification_us=1.2,
    starved_notification_us=1200.0,
)


def _fits() -> DeviceFits:
    from iossim.hardware.fits import CPU_FITS  # needed by calibration alone

    return CPU_FITS


KIND = DeviceKind(
    noun="CPU",
    multiprocessors="cores",
    needs=frozenset({"core_cache_bytes"}),
    lacks=frozenset(),
    limits={"": _LIMITS},
    parameters={"cpu": _PARAMETERS},
    engines={"cpu": EngineCosts(_OVERHEADS)},
    ranges={"cpu": Ranges((1, 256), (0.5, 6.2), (0.25, 1152), (2, 1200), (0.25, 6144), (1, 1000))},
    fits=_fits,
    borrows=False,
)
