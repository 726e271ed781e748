"""The parameters that measurements of a kind of device determine, and how they lie in one vector.

Parameters that measure a length (bytes, clocks, inner elements) are fitted by their logarithm, the others as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from iossim.base.values import Value
from iossim.hardware.parameters import Fit

Floats = NDArray[np.float64]

#: Of the width of the bounds: nearer than this to one is at it.
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
    """The parameters of a table (:mod:`iossim.hardware.parameters`) that have bounds for a fit, in its order.

    Those of tensor cores, or all others.
    """
    return tuple(
        FittedParameter(name, fit.lower, fit.upper, fit.is_logarithmic)
        for name, field in table.model_fields.items()
        for fit in field.metadata
        if isinstance(fit, Fit) and fit.of_tensor_cores == of_tensor_cores
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

    def to_vector(self, values: Mapping[str, float]) -> Floats:
        """The vector of all fitted parameters from ``values`` by name, moved inside their bounds, shape ``[parameters]``."""
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
        """Parameters that lie at a bound: the data wants more than is plausible, or says nothing."""
        low, high = self.bounds()
        margin = _NEARLY * self.scales()
        at = (vector <= low + margin) | (vector >= high - margin)
        return tuple(name for name, is_at in zip(self.names, at.tolist(), strict=True) if is_at)
