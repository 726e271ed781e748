"""The answer to a question as a value, and the figures of rows in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from iossim.study.axes import Label
from iossim.study.metrics import Quantity, number
from iossim.study.study_run import Row

#: Names that a sentence lists before it counts the rest.
_LISTED = 3


@dataclass(frozen=True)
class Found:
    """The answer to a question or claim: words, the rows behind them, and the verdict on a claim.

    ``cells`` say the same of one case as a line of a table.
    """

    words: str
    rows: list[Row] = field(default_factory=list)
    holds: bool | None = None
    within_noise: bool = False
    cells: dict[str, str] = field(default_factory=dict)


def figure(row: Row, quantity: Quantity) -> str:
    """A figure of a row; a latency comes with the interval that measurements are expected in."""
    value = quantity.of(row)
    if value is None:
        return "nothing"
    expected = _expected(row, quantity)
    return quantity.amount(value) + (f" ({expected} expected when measured)" if expected else "")


def figure_cells(row: Row, quantity: Quantity) -> dict[str, str]:
    """:func:`figure` as cells of a table."""
    value = quantity.of(row)
    cells = {quantity.words: "nothing" if value is None else quantity.amount(value)}
    if expected := _expected(row, quantity):
        cells["expected when measured"] = f"{expected} ms"
    return cells


def _expected(row: Row, quantity: Quantity) -> str:
    if quantity != Quantity() or row.low_ms is None or row.high_ms is None:
        return ""
    return f"{number(row.low_ms)} to {number(row.high_ms)}"


def listed(names: Sequence[Label]) -> str:
    """Names in a row, the first few of many."""
    shown = [str(name) for name in names[:_LISTED]]
    if len(names) > _LISTED:
        return f"{', '.join(shown)} and {len(names) - _LISTED} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
