"""Where the values of a profile's parameters come from, and how far they can be trusted.

All that an interval needs is here: a profile's file alone tells how far its predictions may be off.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from iossim.base.values import Value
from iossim.hardware.parameters import DROPPED

_Ratio = Annotated[float, Field(gt=0)]
_Percent = Annotated[float, Field(ge=0)]


class DataSet(Value):
    """A recording that parameters were fitted to: ``rows`` are those that the fit saw."""

    name: str
    device: str
    rows: int = Field(ge=0)
    libraries: dict[str, str] = Field(default_factory=dict)
    #: What its rows count together, of all that one fit saw; None where the rows of a fit count alike.
    weight_percent: float | None = Field(default=None, ge=0, le=100)


class Borrowed(Value):
    """Parameters that were fitted on another device, as nothing measured on this one tells them."""

    device: str
    parameters: list[str] = Field(min_length=1)


class KindError(Value):
    """How far predictions are from the measured device times of a kind of operators, on unseen shapes."""

    data_set: str
    kind: str
    rows: int = Field(ge=1)
    #: Mean absolute relative error, of the measured time.
    mape_percent: _Percent
    median_error_percent: _Percent
    #: Rank correlation of predicted and measured times; None where it is not defined.
    kendall_tau: float | None = Field(default=None, ge=-1, le=1)


class Band(Value):
    """Where nine of ten measured times lie, over the predicted one, for predictions of up to ``up_to_us``."""

    #: None: the band goes on without end.
    up_to_us: float | None = Field(default=None, gt=0)
    #: How many residuals it was taken from.
    rows: int = Field(ge=0)
    #: The 5th percentile of measured over predicted time.
    low: _Ratio
    #: The 95th.
    high: _Ratio

    @model_validator(mode="after")
    def _around_the_prediction(self) -> Self:
        if not self.low <= 1 <= self.high:
            raise ValueError("a band must hold the prediction itself: low <= 1 <= high")
        return self


class Provenance(Value):
    """Where parameter values come from: set by hand, fitted to data sets, or taken over from other devices' fits."""

    kind: Literal["hand-set", "fitted", "transferred"]
    note: str
    #: Day of the fit, ``2026-11-21``.
    date: str | None = None
    data_sets: list[DataSet] = Field(default_factory=list)
    #: The part of all shapes that the fit did not see.
    held_out_fraction: float | None = Field(default=None, ge=0, lt=1)
    #: Errors on those shapes.
    held_out: list[KindError] = Field(default_factory=list)
    #: Errors on the other shapes, each predicted by a fit of the same data without it.
    cross_validated: list[KindError] = Field(default_factory=list)
    #: Residual bands by kind of operator (see ``calibration.bands``), by ascending predicted time.
    bands: dict[str, list[Band]] = Field(default_factory=dict)
    #: The width of the interval of a network run by the published engine, over what its parts make: nine of ten
    #: networks lie in it, each predicted by a fit without it. 1 where no networks of the device were measured.
    network_width: float = Field(default=1.0, gt=0, le=1)
    #: Standard deviation of each fitted parameter over bootstrapped fits.
    spread: dict[str, float] = Field(default_factory=dict)
    #: Fitted parameters that the data leaves open, near the starting point or a bound.
    unidentified: list[str] = Field(default_factory=list)
    #: Fitted parameters that ended at a bound of what is plausible.
    at_bounds: list[str] = Field(default_factory=list)
    #: Values of parameters in some bootstrapped fits: entry ``k`` of every list is of fit ``k``.
    resamples: dict[str, list[float]] = Field(default_factory=dict)
    #: For each published network that took part, the parameters fitted without it.
    left_out: dict[str, dict[str, float]] = Field(default_factory=dict)
    #: Parameters taken over from other devices; ``spread`` and ``resamples`` hold theirs.
    borrowed: list[Borrowed] = Field(default_factory=list)

    @field_validator("spread", "resamples", "left_out", "unidentified", "at_bounds", mode="before")
    @classmethod
    def _without_dropped(cls, told: Any) -> Any:
        """What older files tell, less the parameters that the model no longer has."""
        if isinstance(told, dict):
            return {name: cls._without_dropped(value) for name, value in told.items() if name not in DROPPED}
        return [each for each in told if each not in DROPPED] if isinstance(told, list) else told

    @field_validator("date")
    @classmethod
    def _is_a_day(cls, date: str | None) -> str | None:
        if date:
            datetime.date.fromisoformat(date)
        return date

    @field_validator("bands")
    @classmethod
    def _bands_ascend(cls, bands: dict[str, list[Band]]) -> dict[str, list[Band]]:
        for kind, several in bands.items():
            ends = [band.up_to_us for band in several]
            if not ends or ends[-1] is not None or None in ends[:-1]:
                raise ValueError(f"the bands of {kind!r} must end with one without up_to_us, and only that one")
            if sorted(set(ends[:-1])) != ends[:-1]:  # type: ignore[type-var]
                raise ValueError(f"the bands of {kind!r} must ascend in up_to_us")
        return bands

    @field_validator("resamples")
    @classmethod
    def _equally_many(cls, resamples: dict[str, list[float]]) -> dict[str, list[float]]:
        if len({len(values) for values in resamples.values()}) > 1:
            raise ValueError("every parameter needs as many values as the others")
        return resamples


DEFAULT_PROVENANCE = Provenance(
    kind="hand-set",
    note=(
        "set by hand and small searches against measured fp32 kernels (Volta, Turing, Pascal) and against measured "
        "networks on V100-SXM2; other architectures take the nearest of these; depthwise, pooling and element-wise "
        "kernels are priors; not validated on held-out data"
    ),
)

HOST_PROVENANCE = Provenance(
    kind="hand-set",
    note=(
        "rounded from operators measured with ONNX Runtime on one x86-64 processor with AVX-512; another one "
        "differs, until it is calibrated"
    ),
)
