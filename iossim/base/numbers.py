"""Numbers and JSON as users' files hold them: every reader takes them from here, and refuses the same ones.

JSON and CSV can spell numbers that nothing measured has: infinite ones, those of hundreds of digits, negative times.
"""

from __future__ import annotations

import json
import math
from typing import Any

#: No time that is measured, priced or scheduled is longer, in microseconds: eleven days.
LONGEST_US = 1e12
#: No count of bytes or operations, no rate and no point in time is larger.
LARGEST = 1e18
#: Digits of the longest whole number that is kept as one.
_MOST_DIGITS = 40


class NumberError(ValueError):
    """Why a cell holds no number that can be: ``is empty``, ``is not a number``, ``is not finite`` ..."""


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
    except OverflowError:  # a whole number of hundreds of digits
        found = math.inf
    if math.isnan(found):
        raise NumberError("is not a number")
    if math.isinf(found):
        raise NumberError("is not finite")
    if found < least or (positive and found <= 0):
        raise NumberError("is not positive" if positive else f"is less than {least:g}" if least else "is negative")
    if found > most:
        raise NumberError(f"is more than {most:g}, and nothing is")
    return found


def _is_plain(value: object) -> bool:
    """Whether text is written as a number is; Python would read ``1_000`` as one, too."""
    return isinstance(value, str) and "_" not in value


def read_json(text: str) -> Any:
    """The values of JSON; raises ValueError, with its place, for what is none, or is nested too deeply to be read.

    A whole number of more digits than anything counts becomes a float, infinite ones included.
    """
    try:
        return json.loads(text, parse_int=lambda digits: (int if len(digits) <= _MOST_DIGITS else float)(digits))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
