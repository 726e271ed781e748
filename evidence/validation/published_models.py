"""Errors of operator families beside the published ones of another model, in distribution and out of it.

In distribution are shapes held out by their hash, on measured devices; out of distribution are devices left out, from
datasheet facts alone. Errors are the mean over devices of each one's mean over its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evidence.validation.splits import SplitRows
from iossim.calibration.validation import OperatorEvaluation
from iossim.prediction.bands import key_of
from iossim.prediction.published import published_figures

#: Model whose errors are published by family.
PUBLISHED_MODEL = "NeuSight"
#: Kinds (keys of bands) by the family with published errors.
PUBLISHED_FAMILIES: Mapping[str, frozenset[str]] = {
    **{name: frozenset({name}) for name in ("bmm", "linear")},
    "elementwise": frozenset({"add", "mul", "relu", "gelu", "tanh"}),
    **{name: frozenset({name}) for name in ("softmax", "layer_norm")},
}
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
    judged: list[tuple[str, str, OperatorEvaluation | SplitRows]] = [
        ("in_distribution", key_of(*each.kinds[0]), each.unseen) for each in operators if len(each) >= FEWEST_ROWS
    ]
    zero_shot = (row for row in rows if (row.split, row.part) == ("device", "zero-shot") and len(row) >= FEWEST_ROWS)
    judged += [("out_of_distribution", row.key, row) for row in zero_shot]
    published = operator_model(PUBLISHED_MODEL)
    found: list[FamilyErrors] = []
    for family, kinds in PUBLISHED_FAMILIES.items():
        for setting in ("in_distribution", "out_of_distribution"):
            own = [each for its, key, each in judged if its == setting and key in kinds]
            if own:
                devices = len({each.device for each in own})
                error, roofline = (_error(own, model) for model in ("predicted_us", "baseline_us"))
                theirs = published[setting][family] / 100
                found.append(FamilyErrors(family, setting, devices, error, roofline, theirs))
    return tuple(found)


def _error(judged: Sequence[OperatorEvaluation | SplitRows], model: str) -> float | None:
    """Mean over devices of each one's mean error by a model, which may be nan for some rows; None without others."""
    means = []
    for device in sorted({each.device for each in judged}):
        errors = [np.abs(getattr(each, model) / each.measured_us - 1) for each in judged if each.device == device]
        known = np.concatenate(errors)[np.isfinite(np.concatenate(errors))]
        means += [float(known.mean())] if len(known) else []
    return sum(means) / len(means) if means else None
