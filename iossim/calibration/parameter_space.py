"""The parameters that measured kernels can determine, their bounds, and how they lie in one vector.

A vector holds the fitted ones of :class:`~iossim.devices.parameters.ModelParameters`, then the two dispatch costs of
:class:`~iossim.devices.parameters.EngineOverheads`. Parameters that measure a length (bytes, clocks, inner elements) are
fitted by their logarithm, the others as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


def to_vector(profile: DeviceProfile) -> Floats:
    """The profile's values of all fitted parameters, moved inside their bounds, shape ``[parameters]``."""
    model = [p.to_vector(getattr(profile.parameters, p.name)) for p in MODEL_PARAMETERS]
    dispatch = [p.to_vector(getattr(profile.engine, p.name)) for p in DISPATCH_PARAMETERS]
    return np.array(model + dispatch)


def values(vector: Floats) -> dict[str, float]:
    """Each fitted parameter's value."""
    return {p.name: p.from_vector(entry) for p, entry in zip(PARAMETERS, vector.tolist(), strict=True)}


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


def bounds() -> tuple[Floats, Floats]:
    """Lower and upper bounds of a vector."""
    pairs = [p.vector_bounds for p in PARAMETERS]
    return np.array([low for low, _ in pairs]), np.array([high for _, high in pairs])


def scales() -> Floats:
    """The width of each parameter's bounds."""
    low, high = bounds()
    return high - low
