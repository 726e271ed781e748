"""Numbers and JSON in users' files: all readers parse them here, and refuse the same ones.

JSON and CSV can spell numbers that no measurement has: infinite ones, those of hundreds of digits, negative times.
"""

from __future__ import annotations

import json
import math
from typing import Any

#: Upper limit of every count of bytes or operations, rate and point in time.
LARGEST = 1e18
#: Digits of the longest integer that is kept as one.
_MOST_DIGITS = 40


class NumberError(ValueError):
    """Reason why a cell holds no valid number: ``is empty``, ``is not a number``, ``is not finite`` ..."""


def read_number(value: object, *, positive: bool = False, least: float = 0.0, most: float = LARGEST) -> float:
    """The number in a cell of text or of JSON, from ``least`` to ``most``, and above 0 if ``positive``.

    Raises NumberError.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        raise NumberError("is empty")
    try:
        found = float(value) if type(value) in (int, float) or _is_plain(value) else math.nan  # type: ignore[arg-type]
    except ValueError:
        found = math.nan
    except OverflowError:  # an integer of hundreds of digits
        found = math.inf
    if math.isnan(found):
        raise NumberError("is not a number")
    if math.isinf(found):
        raise NumberError("is not finite")
    if found < least or (positive and found <= 0):
        raise NumberError("is not positive" if positive else f"is less than {least:g}" if least else "is negative")
    if found > most:
        raise NumberError(f"is more than {most:g}, the largest value allowed")
    return found


def _is_plain(value: object) -> bool:
    """Whether text is in common number syntax; Python would also read ``1_000`` as one."""
    return isinstance(value, str) and "_" not in value


def read_json(text: str) -> Any:
    """The values of JSON; raises ValueError, with its position, for invalid JSON and for JSON nested too deeply.

    An integer beyond all counts becomes a float, possibly infinite.
    """
    try:
        return json.loads(text, parse_int=lambda digits: (int if len(digits) <= _MOST_DIGITS else float)(digits))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
