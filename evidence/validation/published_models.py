"""Errors of operator families beside the published ones of another model, in distribution and out of it.

In distribution are shapes held out by their hash, on measured devices; out of distribution are devices left out, from
datasheet facts alone. Errors are the mean over devices of each one's mean over its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from evidence.validation.splits import SplitRows
from iossim.base.compiled import Floats
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
    """Mean absolute errors of a family as fractions."""

    family: str
    #: Distribution of the rows: ``in_distribution`` or ``out_of_distribution``.
    setting: str
    devices: int
    error: float
    published: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def family_errors(operators: Sequence[OperatorEvaluation], rows: Sequence[SplitRows]) -> tuple[FamilyErrors, ...]:
    """Both settings of each family; those without rows are left out."""
    judged: list[tuple[str, str, OperatorEvaluation | SplitRows]] = [
        ("in_distribution", key_of(*each.kinds[0]), each.unseen) for each in operators if len(each) >= FEWEST_ROWS
    ]
    zero_shot = (row for row in rows if (row.split, row.part) == ("device", "zero-shot") and len(row) >= FEWEST_ROWS)
    judged += [("out_of_distribution", row.key, row) for row in zero_shot]
    published = next(one for one in published_figures()["operator_models"] if one["name"] == PUBLISHED_MODEL)
    found: list[FamilyErrors] = []
    for family, kinds in PUBLISHED_FAMILIES.items():
        for setting in ("in_distribution", "out_of_distribution"):
            own = [each for its, key, each in judged if its == setting and key in kinds]
            if own:
                devices = len({each.device for each in own})
                theirs = published[setting][family] / 100
                found.append(FamilyErrors(family, setting, devices, _error(own), theirs))
    return tuple(found)


def _error(judged: Sequence[OperatorEvaluation | SplitRows]) -> float:
    """Mean over devices of each one's mean error."""
    errors: dict[str, list[Floats]] = {}
    for each in judged:
        errors.setdefault(each.device, []).append(np.abs(each.predicted_us / each.measured_us - 1))
    return fmean(float(np.concatenate(of_device).mean()) for of_device in errors.values())
