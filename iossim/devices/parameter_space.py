"""The parameters that measured kernels can determine, their bounds, and how they lie in one vector.

A vector holds the fitted ones of :class:`~iossim.devices.parameters.ModelParameters`, then, of GPUs, the two dispatch costs
of :class:`~iossim.devices.parameters.EngineOverheads`. Parameters that measure a length (bytes, clocks, inner elements) are
fitted by their logarithm, the others as they are. Of processors fewer parameters mean anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from iossim.devices.compute_capability import TENSOR_CORES
from iossim.devices.parameters import EngineOverheads, ModelParameters
from iossim.devices.profile import DeviceProfile
from iossim.ir.types import Precision

Floats = NDArray[np.float64]

#: Of the width of the bounds: nearer than this to one is at it.
_NEARLY = 1e-3


@dataclass(frozen=True, slots=True)
class FittedParameter:
    """A parameter's bounds, and whether it is fitted by its logarithm."""

    name: str
    lower: float
    upper: float
    is_logarithmic: bool = False

    def to_vector(self, value: float) -> float:
        inside = min(max(value, self.lower), self.upper)
        return log(inside) if self.is_logarithmic else inside

    def from_vector(self, entry: float) -> float:
        return min(max(exp(entry), self.lower), self.upper) if self.is_logarithmic else entry

    @property
    def vector_bounds(self) -> tuple[float, float]:
        return (log(self.lower), log(self.upper)) if self.is_logarithmic else (self.lower, self.upper)


# Bounds say what could be, not where fits end: what ends at one is reported as not identified. Efficiencies and factors end at
# 1. Others have a reason beside them; those without are wider than any GPU.

#: From one read of DRAM (about 400 clocks, which nothing that fills shared memory goes without) to half of that, were it
#: overlapped; up to some fifty reads one after another, more than any prologue and epilogue of a tile.
_PROLOGUE_CLOCKS = (200.0, 20_000.0)
#: A kernel that waits in its stream starts 1 to 1.5 us after the one before (Nsight Systems, several GPUs); with the ramps
#: at both ends never more than what launching it anew takes, about 10 us.
_GAP_US = (0.5, 10.0)
#: Launching an empty kernel takes the host 2 to 3 us, 6.5 under the slowest driver known to us; no kernel of a library call
#: holds the device up for longer than its launch.
_LAUNCH_US = (0.0, 7.0)
#: A library call was seen to cost an engine 9 us beside its kernels; twice that, rounded.
_CALL_US = (0.0, 20.0)

MODEL_PARAMETERS = (
    FittedParameter("gemm_efficiency", 0.2, 1.0),
    FittedParameter("implicit_gemm_efficiency", 0.2, 1.0),
    FittedParameter("direct_efficiency", 0.05, 1.0),
    FittedParameter("winograd_fused_efficiency", 0.2, 1.0),
    FittedParameter("winograd_gemm_efficiency", 0.2, 1.0),
    FittedParameter("tile_128x32_factor", 0.3, 1.0),
    FittedParameter("tile_32x128_factor", 0.3, 1.0),
    FittedParameter("tile_64x64_factor", 0.3, 1.0),
    FittedParameter("tile_64x32_factor", 0.3, 1.0),
    FittedParameter("tile_32x32_factor", 0.2, 1.0),
    FittedParameter("latency_hiding_warps", 0.5, 20.0),
    FittedParameter("block_prologue_clocks", *_PROLOGUE_CLOCKS, True),
    FittedParameter("gemm_prologue_clocks", *_PROLOGUE_CLOCKS, True),
    FittedParameter("wave_quantisation", 0.0, 1.0),
    FittedParameter("overlap_norm", 1.0, 10.0),
    FittedParameter("gemm_overlap_norm", 1.0, 10.0),
    FittedParameter("dram_efficiency", 0.3, 1.0),
    FittedParameter("stream_efficiency", 0.3, 1.0),
    FittedParameter("transform_efficiency", 0.2, 1.0),
    FittedParameter("filter_transform_efficiency", 0.05, 1.0),
    FittedParameter("tile_generation_efficiency", 0.1, 1.0),
    FittedParameter("window_memory_factor", 0.2, 1.0),
    FittedParameter("l2_bytes_per_clock_per_sm", 8.0, 128.0, True),
    FittedParameter("l2_resident_fraction", 0.0, 1.0),
    FittedParameter("reuse_l2_fraction", 0.01, 30.0, True),
    FittedParameter("drift_inner", 100.0, 100_000.0, True),
    FittedParameter("translation_penalty", 0.0, 3.0),
    FittedParameter("translation_reach_bytes", 5e6, 5e8, True),
    FittedParameter("kernel_gap_us", *_GAP_US),
    FittedParameter("transform_ramp_us", 0.0, 15.0),
    FittedParameter("stream_ramp_us", 0.0, 5.0),
    FittedParameter("sustained_gflops_per_watt", 20.0, 1000.0, True),
    FittedParameter("gemm_sustained_gflops_per_watt", 15.0, 1000.0, True),
)
DISPATCH_PARAMETERS = (
    FittedParameter("dispatch_us", *_CALL_US),
    FittedParameter("dispatch_kernel_us", *_LAUNCH_US),
)
PARAMETERS = (*MODEL_PARAMETERS, *DISPATCH_PARAMETERS)
#: What a call costs beside its kernels' work.
CALL = frozenset({"dispatch_us", "dispatch_kernel_us", "kernel_gap_us"})

#: What measured calls of one thread tell of a processor.
PROCESSOR_PARAMETERS = (
    FittedParameter("gemm_efficiency", 0.1, 1.0),
    FittedParameter("implicit_gemm_efficiency", 0.1, 1.0),
    FittedParameter("depthwise_efficiency", 0.01, 1.0),
    FittedParameter("vector_efficiency", 0.002, 1.0, True),
    FittedParameter("overlap_norm", 1.0, 10.0),
    FittedParameter("dram_efficiency", 0.3, 1.0),
    FittedParameter("transform_efficiency", 0.05, 1.0),
    FittedParameter("l2_bytes_per_clock_per_sm", 1.0, 128.0, True),
    FittedParameter("beyond_core_cache_factor", 0.1, 1.0),
    FittedParameter("l2_resident_fraction", 0.0, 1.0),
    FittedParameter("kernel_gap_us", 0.5, 100.0, True),
)


@dataclass(frozen=True)
class ParameterSpace:
    """What is fitted for a kind of device, in the order of a vector; ``ties`` are parameters that follow a fitted one, by a
    factor, because no data tells them apart."""

    parameters: tuple[FittedParameter, ...]
    ties: tuple[tuple[str, str, float], ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    def to_vector(self, profile: DeviceProfile) -> Floats:
        """The profile's values of all fitted parameters, moved inside their bounds, shape ``[parameters]``."""
        known = profile.parameters.model_dump() | profile.engine.model_dump()
        return np.array([p.to_vector(known[p.name]) for p in self.parameters])

    def values(self, vector: Floats) -> dict[str, float]:
        """Each fitted parameter's value, and those of the parameters that are tied to them."""
        fitted = {p.name: p.from_vector(entry) for p, entry in zip(self.parameters, vector.tolist(), strict=True)}
        return fitted | {name: factor * fitted[leader] for name, leader, factor in self.ties}

    def bounds(self) -> tuple[Floats, Floats]:
        """Lower and upper bounds of a vector."""
        pairs = [p.vector_bounds for p in self.parameters]
        return np.array([low for low, _ in pairs]), np.array([high for _, high in pairs])

    def scales(self) -> Floats:
        """The width of each parameter's bounds."""
        low, high = self.bounds()
        return high - low

    def at_bounds(self, vector: Floats) -> tuple[str, ...]:
        """Parameters that lie at a bound: the data wants more than is plausible, or says nothing."""
        low, high = self.bounds()
        margin = _NEARLY * self.scales()
        at = (vector <= low + margin) | (vector >= high - margin)
        return tuple(name for name, is_at in zip(self.names, at.tolist(), strict=True) if is_at)


GPU_SPACE = ParameterSpace(PARAMETERS)
#: What rows of tensor cores' precisions tell, and no others: they are fitted beside the parameters above, which stay.
TENSOR_SPACE = ParameterSpace(
    (
        FittedParameter("tensor_efficiency", 0.3, 1.0),
        FittedParameter("tensor_convolution_factor", 0.3, 1.0),
        FittedParameter("tensor_step_clocks", 50.0, 2_000.0, True),
        FittedParameter("tensor_prologue_clocks", *_PROLOGUE_CLOCKS, True),
        FittedParameter("tensor_overlap_norm", 1.0, 10.0),
        FittedParameter("tensor_dram_efficiency", 0.5, 1.0),
        FittedParameter("tensor_strided_efficiency", 0.3, 1.0),
        FittedParameter("tensor_l2_bytes_per_clock_per_sm", 16.0, 128.0, True),
        FittedParameter("tensor_sustained_gflops_per_watt", 100.0, 3_000.0, True),
        FittedParameter("tensor_dispatch_us", *_CALL_US),
        FittedParameter("layout_efficiency", 0.1, 1.0),
        FittedParameter("layout_ramp_us", 0.0, 15.0),
    )
)
PROCESSOR_SPACE = ParameterSpace(PROCESSOR_PARAMETERS)


#: Crowding is 0 if kernels side by side take no longer for it; networks on SMs of their own beside another one were seen to
#: take 1.1 times as long, and 1.22 at most, so that a half is ample. A synchronisation takes the host 2 us where the device is idle already, and a few launches at most.
#: A launch takes 2 us at least (see :data:`_LAUNCH_US`); 10 is what a call was seen to cost with everything around it.
#:
#: A library call launches its first kernel, and each further one, as the engine launches its own: what checks and
#: heuristics cost on top is a part of that (the descriptors are made beforehand), and no published figure tells it from the
#: launch. So there is one cost, of any kernel.
GPU_CONCURRENCY = ParameterSpace(
    (
        FittedParameter("crowding", 0.0, 0.5),
        FittedParameter("synchronise_us", 2.0, 20.0),
        FittedParameter("bare_launch_us", 2.0, 10.0),
    ),
    ties=(("library_call_us", "bare_launch_us", 1.0), ("library_kernel_us", "bare_launch_us", 1.0)),
)
#: Threads call the library themselves; what is left is handing work over. Cores may share less than they have.
PROCESSOR_CONCURRENCY = ParameterSpace(
    (FittedParameter("crowding", 0.0, 1.0), FittedParameter("synchronise_us", 0.5, 200.0))
)


def space_of(profile: DeviceProfile) -> ParameterSpace:
    """The parameters that are fitted for a device."""
    return PROCESSOR_SPACE if profile.is_processor else GPU_SPACE


def space_told_by(profile: DeviceProfile, precisions: Collection[Precision]) -> ParameterSpace:
    """The parameters that operators of these precisions tell of a device: those of its tensor cores for what runs there."""
    space = space_of(profile)
    on_tensor_cores = {one for one in precisions if profile.architecture in TENSOR_CORES.get(one, ())}
    if not on_tensor_cores:
        return space
    others = () if on_tensor_cores == set(precisions) else space.parameters
    return ParameterSpace((*others, *TENSOR_SPACE.parameters))


def concurrency_space(profile: DeviceProfile) -> ParameterSpace:
    """The parameters that concurrent schedules tell of a device: ``concurrency_fit`` fits them."""
    return PROCESSOR_CONCURRENCY if profile.is_processor else GPU_CONCURRENCY


def with_values(profile: DeviceProfile, given: Mapping[str, float]) -> DeviceProfile:
    """The profile with parameters replaced, in its model or its engine, wherever their name is."""
    model = {name: value for name, value in given.items() if name in ModelParameters.model_fields}
    engine = {name: value for name, value in given.items() if name in EngineOverheads.model_fields}
    return profile.model_copy(
        update={
            "parameters": profile.parameters.model_copy(update=model),
            "engine": profile.engine.model_copy(update=engine),
        }
    )
