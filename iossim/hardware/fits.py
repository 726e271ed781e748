"""Parameters that measurements of a device determine: by its kind, and as the vectors of a fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, log

import numpy as np

from iossim.base.values import Value
from iossim.hardware.compute_capability import TENSOR_CORES
from iossim.hardware.parameters import EngineOverheads, Fit, Floats, ModelParameters
from iossim.ir.types import Precision

#: Fraction of the bounds' width within which a value counts as at a bound.
_NEARLY = 1e-3


@dataclass(frozen=True, slots=True)
class FittedParameter:
    """A parameter with its :class:`~iossim.hardware.parameters.Fit`."""

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


def fitted(table: type[Value], of_tensor_cores: bool = False) -> tuple[FittedParameter, ...]:
    """The parameters of a table (:mod:`iossim.hardware.parameters`) with bounds for a fit, in its order.

    Either those of tensor cores, or all others.
    """
    return tuple(
        FittedParameter(name, fit.lower, fit.upper, fit.is_logarithmic)
        for name, field in table.model_fields.items()
        for fit in field.metadata
        if isinstance(fit, Fit) and fit.of_tensor_cores == of_tensor_cores
    )


@dataclass(frozen=True)
class ParameterSpace:
    """Fitted parameters of a kind of device, in the order of a vector; ``ties`` follow a fitted one, by a factor."""

    parameters: tuple[FittedParameter, ...]
    ties: tuple[tuple[str, str, float], ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    def to_vector(self, values: Mapping[str, float]) -> Floats:
        """The vector of all fitted parameters from ``values`` by name, moved inside their bounds."""
        return np.array([p.to_vector(values[p.name]) for p in self.parameters])

    def values(self, vector: Floats) -> dict[str, float]:
        """Each fitted parameter's value, from a vector ``[parameters]``, and those of the parameters tied to them."""
        fitted = {p.name: p.from_vector(entry) for p, entry in zip(self.parameters, vector.tolist(), strict=True)}
        return fitted | {name: factor * fitted[leader] for name, leader, factor in self.ties}

    def bounds(self) -> tuple[Floats, Floats]:
        """Lower and upper bounds of a vector, shape ``[parameters]`` each."""
        pairs = [p.vector_bounds for p in self.parameters]
        return np.array([low for low, _ in pairs]), np.array([high for _, high in pairs])

    def scales(self) -> Floats:
        """The width of each parameter's bounds, shape ``[parameters]``."""
        low, high = self.bounds()
        return high - low

    def at_bounds(self, vector: Floats) -> tuple[str, ...]:
        """Parameters at a bound: the data suggests an implausible value, or does not determine it."""
        low, high = self.bounds()
        margin = _NEARLY * self.scales()
        at = (vector <= low + margin) | (vector >= high - margin)
        return tuple(name for name, is_at in zip(self.names, at.tolist(), strict=True) if is_at)


@dataclass(frozen=True)
class DeviceFits:
    """The parameters of a kind of device that are determined by operators measured alone (``kernels``), by concurrent
    stages, by whole networks run sequentially (``launches``), and by operators on tensor cores.
    """

    kernels: ParameterSpace
    concurrency: ParameterSpace
    launches: ParameterSpace = ParameterSpace(())
    tensor_cores: ParameterSpace = ParameterSpace(())

    def told_by(self, architecture: str, precisions: Collection[Precision]) -> ParameterSpace:
        """The parameters determined by operators of these precisions: the tensor cores' if they run there."""
        on_tensor_cores = {one for one in precisions if architecture in TENSOR_CORES.get(one, ())}
        if not on_tensor_cores:
            return self.kernels
        others = () if on_tensor_cores == set(precisions) else self.kernels.parameters
        return ParameterSpace((*others, *self.tensor_cores.parameters))


#: Determined by measured kernels: the model's fitted parameters, then two dispatch costs.
GPU_SPACE = ParameterSpace((*fitted(ModelParameters), *fitted(EngineOverheads)))
#: Determined only by rows of tensor core precisions: they are fitted beside the parameters above, which are fixed.
TENSOR_SPACE = ParameterSpace((*fitted(ModelParameters, True), *fitted(EngineOverheads, True)))
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
GPU_FITS = DeviceFits(GPU_SPACE, GPU_CONCURRENCY, GPU_LAUNCHES, TENSOR_SPACE)

CPU_FITS = DeviceFits(
    # Determined by measured calls of one thread.
    kernels=ParameterSpace(
        (
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
    ),
    # Threads call the library themselves; the rest is handing work over. Cores may share less than they have.
    concurrency=ParameterSpace(
        (FittedParameter("interference", 0.0, 1.0), FittedParameter("synchronise_us", 0.5, 200.0))
    ),
)
