"""Figures and places of rows in words, for the sentences that answer questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from iossim.study.row_comparison import quotient_value
from iossim.study.sentences import QUESTION_AXES, Quotient, Value
from iossim.study.study_run import Row

#: What stands behind a figure of a column.
_UNITS = {
    "latency_ms": " ms",
    "low_ms": " ms",
    "high_ms": " ms",
    "published_ms": " ms",
    "throughput_per_s": " a second",
    "speedup": "x",
    "stages": " stages",
    "streams": " streams",
    "merged_stages": " merged stages",
    "active_warps": " active warps",
    "weights_mib": " MiB of weights",
    "peak_memory_mib": " MiB",
    "kernels": " kernels",
    "gmacs": "e9 multiply-adds",
    "traffic_mib": " MiB moved",
    "convolutions_ms": " ms of convolutions",
    "undivided_ms": " ms of convolutions undivided",
    "micro_batch_gain": "x",
    "largest_gain": "x",
    "workspace_mib": " MiB of workspaces",
    "private_mib": " MiB of a unit's memory",
    "shared_mib": " MiB of shared memory",
    "external_mib": " MiB of external memory",
    "sent_mib": " MiB sent",
    "waited_ms": " ms of waiting",
    "board_power_w": " W",
    "peak_tflops": " TFLOP/s",
}
#: Columns above a table of answers; others by their name.
_HEADINGS = {
    "latency_ms": "latency",
    "throughput_per_s": "throughput",
    "published_ms": "published",
    "speedup": "speed-up",
}
_PER = {"board_power_w": "watt", "peak_tflops": "TFLOP/s", "peak_memory_mib": "MiB", "weights_mib": "MiB of weights"}
_WORDS = {
    "model": "of {}",
    "device": "on {}",
    "batch": "at batch {}",
    "dtype": "in {}",
    "engine": "with the {} engine",
    "cost_model": "by {}",
    "search": "searched {}",
    "rewrite": "{}",
    "workspace": "under {}",
    "dataflow": "by {}",
    "scheduler": "with {}",
}
#: Names that a sentence lists before it counts the rest.
_LISTED = 3


@dataclass(frozen=True)
class Found:
    """What a question or claim came to: words, the rows behind them, and of a claim whether it holds, and by more than the
    noise. ``cells`` say the same of one case as a line of a table."""

    words: str
    rows: list[Row] = field(default_factory=list)
    holds: bool | None = None
    within_noise: bool = False
    cells: dict[str, str] = field(default_factory=dict)


def number(value: float) -> str:
    """Three digits, or all before the point: ``0.00123``, ``4.31``, ``1,234``."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def amount(column: str, value: float) -> str:
    """A figure of a column with its unit."""
    if column == "gap":
        return f"{100 * value:.2g}% above the bound"
    return f"{number(value)}{_UNITS.get(column, '')}"


def quotient_amount(quotient: Quotient, value: float) -> str:
    """A figure of a column, or of one per another, with its unit."""
    if quotient.per is None:
        return amount(quotient.column, value)
    return f"{amount(quotient.column, value)} per {_PER.get(quotient.per, quotient.per)}"


def figure(row: Row, quotient: Quotient) -> str:
    """What a row has of a column, and of a latency where it is expected when measured."""
    value = quotient_value(quotient, row)
    if value is None:
        return "nothing"
    expected = _expected(row, quotient)
    return quotient_amount(quotient, value) + (f" ({expected} expected when measured)" if expected else "")


def figure_cells(row: Row, quotient: Quotient) -> dict[str, str]:
    """:func:`figure` as cells of a table."""
    value = quotient_value(quotient, row)
    name = _HEADINGS.get(quotient.column, quotient.column.replace("_", " "))
    cells = {name: "nothing" if value is None else quotient_amount(quotient, value)}
    if expected := _expected(row, quotient):
        cells["expected when measured"] = f"{expected} ms"
    return cells


def _expected(row: Row, quotient: Quotient) -> str:
    if quotient != Quotient("latency_ms") or row.low_ms is None or row.high_ms is None:
        return ""
    return f"{number(row.low_ms)} to {number(row.high_ms)}"


def place(row: Row, varied: Iterable[str], told: Iterable[str] = ()) -> str:
    """Where a row stands on the axes that vary, but for those that are told already: ``with ios-both at batch 8``."""
    left = set(varied) - set(told)
    return " ".join(_WORDS[axis].format(getattr(row, axis)) for axis in _SPOKEN if axis in left)


#: The order in which places are spoken.
_SPOKEN = (
    "model",
    "device",
    "scheduler",
    "batch",
    "dtype",
    "engine",
    "cost_model",
    "search",
    "rewrite",
    "workspace",
    "dataflow",
)
assert set(_SPOKEN) == set(QUESTION_AXES)


def span(quotient: Quotient, values: Sequence[float]) -> str:
    """``1.2 to 1.6x``."""
    low, high = min(values), max(values)
    if number(low) == number(high):
        return quotient_amount(quotient, low)
    return f"{number(low)} to {quotient_amount(quotient, high)}"


def listed(names: Sequence[Value]) -> str:
    """Names in a row, the first few of many."""
    shown = [str(name) for name in names[:_LISTED]]
    if len(names) > _LISTED:
        return f"{', '.join(shown)} and {len(names) - _LISTED} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def sentence(text: str) -> str:
    """Ends as a sentence does."""
    return text if text.endswith((".", "!", "?")) else f"{text}."
