"""The parameters that measured kernels can determine, their bounds, and how they lie in one vector.

A vector holds the fitted ones of :class:`~iossim.devices.parameters.ModelParameters`, then, of GPUs, the two dispatch costs
of :class:`~iossim.devices.parameters.EngineOverheads`. Parameters that measure a length (bytes, clocks, inner elements) are
fitted by their logarithm, the others as they are. Of processors fewer parameters mean anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from iossim.devices.parameters import EngineOverheads, ModelParameters
from iossim.devices.profile import DeviceProfile

Floats = NDArray[np.float64]


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


#: Efficiencies are bounded at 1; other bounds are what is physically plausible.
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
    FittedParameter("block_prologue_clocks", 500.0, 20_000.0, True),
    FittedParameter("gemm_prologue_clocks", 200.0, 8_000.0, True),
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
    FittedParameter("kernel_gap_us", 0.5, 6.0),
    FittedParameter("transform_ramp_us", 0.0, 15.0),
    FittedParameter("stream_ramp_us", 0.0, 5.0),
    FittedParameter("sustained_gflops_per_watt", 20.0, 1000.0, True),
    FittedParameter("gemm_sustained_gflops_per_watt", 15.0, 1000.0, True),
)
DISPATCH_PARAMETERS = (
    FittedParameter("dispatch_us", 0.0, 12.0),
    FittedParameter("dispatch_kernel_us", 0.0, 20.0),
)
PARAMETERS = (*MODEL_PARAMETERS, *DISPATCH_PARAMETERS)

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
    """What is fitted for a kind of device, in the order of a vector."""

    parameters: tuple[FittedParameter, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    def to_vector(self, profile: DeviceProfile) -> Floats:
        """The profile's values of all fitted parameters, moved inside their bounds, shape ``[parameters]``."""
        known = profile.parameters.model_dump() | profile.engine.model_dump()
        return np.array([p.to_vector(known[p.name]) for p in self.parameters])

    def values(self, vector: Floats) -> dict[str, float]:
        """Each fitted parameter's value."""
        return {p.name: p.from_vector(entry) for p, entry in zip(self.parameters, vector.tolist(), strict=True)}

    def bounds(self) -> tuple[Floats, Floats]:
        """Lower and upper bounds of a vector."""
        pairs = [p.vector_bounds for p in self.parameters]
        return np.array([low for low, _ in pairs]), np.array([high for _, high in pairs])

    def scales(self) -> Floats:
        """The width of each parameter's bounds."""
        low, high = self.bounds()
        return high - low


GPU_SPACE = ParameterSpace(PARAMETERS)
PROCESSOR_SPACE = ParameterSpace(PROCESSOR_PARAMETERS)


def space_of(profile: DeviceProfile) -> ParameterSpace:
    """The parameters that are fitted for a device."""
    return PROCESSOR_SPACE if profile.is_processor else GPU_SPACE


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
