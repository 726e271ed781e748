"""Parameters that measurements of a device determine: by its kind, and as the vectors of a fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, log
from typing import Any

import numpy as np

from iossim.base.compiled import Floats
from iossim.base.values import Value
from iossim.hardware.compute_capability import TENSOR_CORES
from iossim.hardware.parameters import EngineOverheads, Fit, ModelParameters
from iossim.ir.types import Precision

#: The bounds of parameters by name, some with ``log``, and ``ties``, as a file has them.
Bounds = Mapping[str, Any]
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
    """Fitted parameters of a kind of device, in the order of a vector; ``ties`` name those equal to a fitted one."""

    parameters: tuple[FittedParameter, ...]
    ties: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of_table(table: Bounds) -> ParameterSpace:
        """The space of a table of bounds."""
        bounds = {name: row for name, row in table.items() if name != "ties"}
        fitted = (FittedParameter(name, low, high, bool(how)) for name, (low, high, *how) in bounds.items())
        return ParameterSpace(tuple(fitted), table.get("ties", {}))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def determined(self) -> tuple[str, ...]:
        """The fitted parameters, then those tied to them."""
        return (*self.names, *self.ties)

    def without(self, names: Collection[str]) -> ParameterSpace:
        """The space without some of the fitted parameters."""
        return replace(self, parameters=tuple(one for one in self.parameters if one.name not in names))

    def to_vector(self, values: Mapping[str, float]) -> Floats:
        """The vector of all fitted parameters from ``values`` by name, moved inside their bounds."""
        return np.array([p.to_vector(values[p.name]) for p in self.parameters])

    def values(self, vector: Floats) -> dict[str, float]:
        """Each fitted parameter's value, from a vector ``[parameters]``, and those of the parameters tied to them."""
        fitted = {p.name: p.from_vector(entry) for p, entry in zip(self.parameters, vector.tolist(), strict=True)}
        return fitted | {name: fitted[leader] for name, leader in self.ties.items()}

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

    @staticmethod
    def of_tables(tables: Mapping[str, Bounds]) -> DeviceFits:
        """The spaces of a kind's tables, by name; without one of ``kernels`` those of GPUs."""
        spaces = {name: ParameterSpace.of_table(table) for name, table in tables.items()}
        of_gpus = {} if "kernels" in spaces else {"kernels": GPU_SPACE, "tensor_cores": TENSOR_SPACE}
        return DeviceFits(**of_gpus, **spaces)

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
