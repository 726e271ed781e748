"""Errors of operator families beside the published ones of another model, in distribution and out of it.

In distribution are shapes held out by their hash, on measured devices; out of distribution are devices left out, from
datasheet facts alone. Errors are the mean over devices of each one's mean over its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evidence.validation.families import PUBLISHED_FAMILIES
from evidence.validation.splits import SplitRows
from iossim.calibration.validation import OperatorEvaluation
from iossim.prediction.bands import key_of
from iossim.prediction.published import published_figures

Floats = NDArray[np.float64]
#: Model whose errors are published by family.
PUBLISHED_MODEL = "NeuSight"
#: Fewer rows of a kind, in a data set with other kinds, do not judge a family.
FEWEST_ROWS = 100


@dataclass(frozen=True, slots=True)
class FamilyErrors:
    """Mean absolute errors of a family as fractions; None without rows."""

    family: str
    #: Distribution of the rows: ``in_distribution`` or ``out_of_distribution``.
    setting: str
    devices: int
    error: float | None
    roofline: float | None
    published: float

    @property
    def is_better(self) -> bool | None:
        """True where the error is below the published one."""
        return None if self.error is None else self.error < self.published

    def to_json(self) -> dict[str, Any]:
        return {
            "family": self.family,
            "setting": self.setting,
            "devices": self.devices,
            "mape": self.error,
            "calibrated_roofline": self.roofline,
            PUBLISHED_MODEL.lower(): self.published,
            "is_better": self.is_better,
        }


def operator_model(name: str) -> dict[str, Any]:
    """Published results of a model of single operators: mean errors (%) by family, in distribution and out."""
    found: dict[str, Any] = next(row for row in published_figures()["operator_models"] if row["name"] == name)
    return found


def family_errors(operators: Sequence[OperatorEvaluation], rows: Sequence[SplitRows]) -> tuple[FamilyErrors, ...]:
    """Both settings of each family; those without rows are left out."""
    inside = [
        (key_of(*each.kinds[0]), each.device, _errors(each.unseen)) for each in operators if len(each) >= FEWEST_ROWS
    ]
    outside = [
        (row.key, row.device, _errors(row))
        for row in rows
        if (row.split, row.part) == ("device", "zero-shot") and len(row) >= FEWEST_ROWS
    ]
    published = operator_model(PUBLISHED_MODEL)
    found: list[FamilyErrors] = []
    for family, kinds in PUBLISHED_FAMILIES.items():
        for setting, judged in (("in_distribution", inside), ("out_of_distribution", outside)):
            own = [each for each in judged if each[0] in kinds]
            if own:
                devices = sorted({each[1] for each in own})
                errors, roofs = (
                    [_mean(each[2][place] for each in own if each[1] == name) for name in devices] for place in (0, 1)
                )
                found.append(
                    FamilyErrors(
                        family,
                        setting,
                        len(devices),
                        _mean_of(errors),
                        _mean_of(roofs),
                        published[setting][family] / 100,
                    )
                )
    return tuple(found)


def _errors(judged: OperatorEvaluation | SplitRows) -> tuple[Floats, Floats]:
    measured_us = judged.measured_us
    return np.abs(judged.predicted_us / measured_us - 1), np.abs(judged.baseline_us / measured_us - 1)


def _mean(several: Iterable[Floats]) -> float | None:
    joined = np.concatenate(list(several))
    known = joined[np.isfinite(joined)]
    return float(known.mean()) if len(known) else None


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
