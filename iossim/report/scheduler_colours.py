"""The same scheduler always in the same colour and shape, in every picture of every study.

Of the colours of Okabe and Ito (2008) these have a contrast of 3 or more to white and to the dark page, as WCAG 2.2 asks of
graphics (1.4.11); the palette's yellow, orange and light blue have not.
"""

from __future__ import annotations

from collections.abc import Sequence

_OWN = {
    "sequential": ("#808080", "square"),
    "greedy": ("#d55e00", "triangle-up"),
    "ios-merge": ("#009e73", "diamond"),
    "ios-parallel": ("#c2629a", "cross"),
    "ios-both": ("#0072b2", "circle"),
    # Plans on edge devices: never beside those above.
    "vanilla": ("#808080", "square"),
    "horizontal": ("#009e73", "diamond"),
    "full": ("#0072b2", "circle"),
}
#: For schedulers that others add, in the order of their names.
_OTHERS = (("#8a6d00", "triangle-down"), ("#7566c9", "triangle-right"), ("#2f8f9d", "triangle-left"))


def scheduler_marks(schedulers: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and Vega shape of each scheduler by name, in the order given."""
    foreign = sorted(name for name in schedulers if name not in _OWN)
    others = {name: _OTHERS[number % len(_OTHERS)] for number, name in enumerate(foreign)}
    return {name: _OWN[name] if name in _OWN else others[name] for name in schedulers}
