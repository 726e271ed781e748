"""Provenance and uncertainty of the values of a profile's parameters.

It contains all data for an interval: a profile's file alone determines the uncertainty of its predictions.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from iossim.base.values import Value

_Ratio = Annotated[float, Field(gt=0)]
_Percent = Annotated[float, Field(ge=0)]


class DataSet(Value):
    """A recording that parameters were fitted to; ``rows`` are the in-sample ones."""

    name: str
    device: str
    rows: int = Field(ge=0)
    libraries: dict[str, str] = Field(default_factory=dict)
    #: Total weight of its rows, among all in-sample rows of one fit; None if the rows of a fit have equal weights.
    weight_percent: float | None = Field(default=None, ge=0, le=100)


class Borrowed(Value):
    """Parameters that were fitted on another device, as no measurement of this one determines them."""

    device: str
    parameters: list[str] = Field(min_length=1)


class KindError(Value):
    """Prediction error for a kind of operators relative to measured device times, on held-out shapes."""

    data_set: str
    kind: str
    rows: int = Field(ge=1)
    #: Mean absolute relative error, of the measured time.
    mape_percent: _Percent
    median_error_percent: _Percent
    #: Rank correlation of predicted and measured times; None if undefined.
    kendall_tau: float | None = Field(default=None, ge=-1, le=1)


class Band(Value):
    """90% band of measured over predicted times, for predictions of up to ``up_to_us``."""

    #: None: the band has no upper limit.
    up_to_us: float | None = Field(default=None, gt=0)
    #: Number of residuals that it was computed from.
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
    """Origin of parameter values: set by hand, fitted to data sets, or transferred from other devices' fits."""

    kind: Literal["hand-set", "fitted", "transferred"]
    note: str
    #: Day of the fit, ``2026-11-21``.
    date: str | None = None
    data_sets: list[DataSet] = Field(default_factory=list)
    #: Fraction of all shapes that was held out.
    held_out_fraction: float | None = Field(default=None, ge=0, lt=1)
    #: Errors on the held-out shapes.
    held_out: list[KindError] = Field(default_factory=list)
    #: Errors on the other shapes, each predicted by a fit of the same data without it.
    cross_validated: list[KindError] = Field(default_factory=list)
    #: Residual bands by kind of operator (see ``calibration.accuracy``), by ascending predicted time.
    bands: dict[str, list[Band]] = Field(default_factory=dict)
    #: Width of the interval of a network run by the published engine, relative to the combination of its parts: nine of
    #: ten networks are in it, each predicted by a fit without it. 1 if no networks of the device were measured.
    network_width: float = Field(default=1.0, gt=0, le=1)
    #: Standard deviation of each fitted parameter over bootstrapped fits.
    spread: dict[str, float] = Field(default_factory=dict)
    #: Fitted parameters that the data does not determine, near the starting point or a bound.
    unidentified: list[str] = Field(default_factory=list)
    #: Fitted parameters that ended at a bound of plausibility.
    at_bounds: list[str] = Field(default_factory=list)
    #: For each published network in the fit, the parameters fitted without it.
    left_out: dict[str, dict[str, float]] = Field(default_factory=dict)
    #: Parameters borrowed from other devices; ``spread`` contains theirs.
    borrowed: list[Borrowed] = Field(default_factory=list)

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
            ends = [band.up_to_us for band in several if band.up_to_us is not None]
            if [band.up_to_us for band in several] != [*ends, None]:
                raise ValueError(f"the bands of {kind!r} must end with one without up_to_us, and only that one")
            if sorted(set(ends)) != ends:
                raise ValueError(f"the bands of {kind!r} must ascend in up_to_us")
        return bands

    @model_validator(mode="before")
    @classmethod
    def _without_resamples(cls, data: object) -> object:
        """Older profiles hold ``resamples`` of parameters, which no prediction reads: these are ignored."""
        return {key: value for key, value in data.items() if key != "resamples"} if isinstance(data, dict) else data


DEFAULT_PROVENANCE = Provenance(
    kind="hand-set",
    note=(
        "set by hand and small searches against measured fp32 kernels (Volta, Turing, Pascal) and against measured "
        "networks on V100-SXM2; other architectures take the nearest of these; depthwise, pooling and element-wise "
        "kernels are priors; not validated on held-out data"
    ),
)
