"""Predicted beside measured times, in the figures that accuracy is quoted in."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Where the buckets of measured time end.
BUCKET_ENDS_US = (200.0, 1000.0)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Relative errors of predictions, predicted over measured less 1; all None where there are no rows.

    ``kendall_tau`` is the rank correlation of both times (Kendall 1938, tau-b), None where fewer than two differ.
    """

    rows: int
    #: Mean of the absolute errors: MAPE as a fraction.
    mean_error: float | None = None
    median_error: float | None = None
    #: Mean of the errors with their sign.
    bias: float | None = None
    kendall_tau: float | None = None

    @staticmethod
    def of(predicted_us: Floats, measured_us: Floats) -> Accuracy:
        """The accuracy of predictions, shape ``[rows]``; rows without a prediction (nan) do not count."""
        known = np.isfinite(predicted_us)
        predicted_us, measured_us = predicted_us[known], measured_us[known]
        if not len(measured_us):
            return Accuracy(0)
        errors = predicted_us / measured_us - 1.0
        size = np.abs(errors)
        return Accuracy(
            len(errors),
            float(np.mean(size)),
            float(np.median(size)),
            float(np.mean(errors)),
            rank_correlation(predicted_us, measured_us),
        )

    def to_json(self) -> dict[str, int | float | None]:
        return {
            "rows": self.rows,
            "mape": self.mean_error,
            "median_error": self.median_error,
            "bias": self.bias,
            "kendall_tau": self.kendall_tau,
        }


def rank_correlation(first: Floats, second: Floats) -> float | None:
    """Kendall's tau-b, or None where either has no two different values."""
    from scipy.stats import kendalltau

    if len(np.unique(first)) < 2 or len(np.unique(second)) < 2:
        return None
    return float(kendalltau(first, second).statistic)


def coverage(low_us: Floats, high_us: Floats, measured_us: Floats) -> float | None:
    """The part of measured times in their intervals; None of no rows."""
    return float(np.mean((low_us <= measured_us) & (measured_us <= high_us))) if len(measured_us) else None


def width(low_us: Floats, high_us: Floats) -> float | None:
    """The median of high over low; None of no rows."""
    return float(np.median(high_us / low_us)) if len(low_us) else None


def buckets(measured_us: Floats) -> dict[str, Mask]:
    """The rows of each bucket of measured time, by a name such as ``<0.2 ms``."""
    ends = (0.0, *BUCKET_ENDS_US, np.inf)
    names = [
        f"<{BUCKET_ENDS_US[0] / 1e3:g} ms",
        *(f"{low / 1e3:g}-{high / 1e3:g} ms" for low, high in pairwise(BUCKET_ENDS_US)),
        f">{BUCKET_ENDS_US[-1] / 1e3:g} ms",
    ]
    return {
        name: (measured_us >= low) & (measured_us < high)
        for name, (low, high) in zip(names, pairwise(ends), strict=True)
    }
