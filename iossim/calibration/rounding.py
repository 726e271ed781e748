"""Fitted values with as many digits as are worth writing down."""

from __future__ import annotations

from math import floor, isfinite, log10

DIGITS = 4


def rounded(value: float, digits: int = DIGITS) -> float:
    """The value with so many digits that count; what is not finite, and 0, as it is."""
    if value == 0 or not isfinite(value):
        return float(value)
    return float(round(value, digits - 1 - floor(log10(abs(value)))))
