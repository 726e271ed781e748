"""Rows of a study held against conditions and against one another: who is ahead, and what is a tie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, log

from iossim.calibration.prediction.schedule_interval import REPEAT_NOISE
from iossim.study.sentences import (
    DEVICE_SIZES,
    QUESTION_AXES,
    ComparisonSentence,
    Conditions,
    Quantity,
    Quotient,
    Ratio,
    Side,
    Value,
)
from iossim.study.study_run import Row

#: Equal, but for how sums of floats are rounded.
_ROUNDING = 1e-9
#: The columns that go with the latency, or with one over it, when that is off.
_OF_LATENCY = ("latency_ms", "throughput_per_s", "speedup")
#: What says which ops run on which device, and by whose word.
_WORK = ("model", "device", "batch", "dtype", "cost_model")
Context = tuple[Value, ...]


def axis_value(row: Row, axis: str) -> Value:
    """The label of a row on an axis."""
    value: Value = getattr(row, axis)
    return value


def context(row: Row, axes: Iterable[str]) -> Context:
    """The labels of a row on some axes."""
    return tuple(axis_value(row, axis) for axis in axes)


def varied_axes(rows: Sequence[Row]) -> tuple[str, ...]:
    """The axes on which rows differ."""
    return tuple(axis for axis in QUESTION_AXES if len({axis_value(row, axis) for row in rows}) > 1)


def grouped(rows: Iterable[Row], axes: Sequence[str]) -> dict[Context, list[Row]]:
    """Rows by their labels on some axes, in the order in which they are met."""
    groups: dict[Context, list[Row]] = {}
    for row in rows:
        groups.setdefault(context(row, axes), []).append(row)
    return groups


def other_axes(axis: str) -> tuple[str, ...]:
    """What must be equal for values of an axis to be compared. The best scheduler, search and rewriting of each will do: they
    are ours to choose, unless it is they that are compared."""
    ours = {"scheduler", "search", "rewrite"}
    free = {axis} if axis in ours else {axis, *ours}
    return tuple(each for each in QUESTION_AXES if each not in free)


def holds(conditions: Conditions, row: Row) -> bool:
    """Whether all conditions hold for a row; what is not known does not."""
    return all(_holds(comparison, row) for comparison in conditions)


def compare(left: float | Value, operator: str, right: float | Value) -> bool:
    """Whether ``left operator right``; numbers that differ by rounding alone are equal."""
    if isinstance(left, str) or isinstance(right, str):
        return (left == right) is (operator == "=")
    equal = abs(left - right) <= _ROUNDING * max(abs(left), abs(right))
    below = left < right and not equal
    return {
        "=": equal,
        "!=": not equal,
        "<": below,
        "<=": below or equal,
        ">": not (below or equal),
        ">=": not below,
    }[operator]


def side_value(side: Side, value: Callable[[Quantity], float | Value | None]) -> float | Value | None:
    """What a side of a comparison comes to; None where it is not known."""
    if isinstance(side, Quantity):
        return value(side)
    if isinstance(side, Ratio):
        over, under = value(side.over), value(side.under)
        if not isinstance(over, int | float) or not isinstance(under, int | float) or under == 0:
            return None
        return over / under
    return side


def quotient_value(quotient: Quotient, row: Row) -> float | None:
    """A column of a row, or one per another; None where one is not known."""
    over: float | None = getattr(row, quotient.column)
    under: float | None = getattr(row, quotient.per) if quotient.per else 1.0
    return None if over is None or not under else over / under


def best_of(rows: Iterable[Row], quotient: Quotient, is_low: bool) -> Row | None:
    """The row that is ahead; of equals the last, which searched the larger space. None where nothing is known."""
    best, best_value = None, inf
    for row in rows:
        value = quotient_value(quotient, row)
        if value is None:
            continue
        value = value if is_low else -value
        if value < best_value or compare(value, "=", best_value):
            best, best_value = row, value
    return best


def is_tie(one: Row, other: Row, quotient: Quotient) -> bool:
    """Whether measuring might turn the order of two rows around.

    Two schedules of one point are a tie by their errors in common (``Row.ties``). Rows that differ in their search or engine
    alone run the same ops on the same device: they are a tie where they differ by less than measurements of one schedule
    do. Others, whose errors have less in common, are one where their intervals overlap.
    """
    left, right = quotient_value(quotient, one), quotient_value(quotient, other)
    if left is None or right is None:
        return False
    if compare(left, "=", right):
        return True
    if quotient.column not in _OF_LATENCY or not left or not right:
        return False
    if one.point == other.point:
        return other.scheduler in one.ties or one.scheduler in other.ties
    if context(one, _WORK) == context(other, _WORK):
        is_prediction = one.low_ms is not None and other.low_ms is not None
        return is_prediction and abs(log(left / right)) <= REPEAT_NOISE
    spans = []
    for row, value in ((one, left), (other, right)):
        if not row.latency_ms or row.low_ms is None or row.high_ms is None:
            return False
        ends = (row.low_ms / row.latency_ms, row.high_ms / row.latency_ms)
        if quotient.column != "latency_ms":
            ends = (1 / ends[1], 1 / ends[0])
        spans.append((value * ends[0], value * ends[1]))
    (low, high), (other_low, other_high) = spans
    return low <= other_high and other_low <= high


def is_noise(one: Row, other: Row, quotient: Quotient) -> bool:
    """:func:`is_tie` of figures that are measured; counts, say of stages, are equal or not."""
    return quotient.column in _OF_LATENCY and is_tie(one, other, quotient)


def ordered(rows: Iterable[Row], axis: str, listed: Sequence[Value], by: str = "peak_tflops") -> list[Value]:
    """The values of an axis from small to large: batches by number, devices by the column ``by`` (of equals by the other of
    their sizes), others as the scenario lists them."""
    sizes: dict[Value, tuple[float, ...]] = {}
    columns = sorted(DEVICE_SIZES, key=lambda column: column != by)
    for row in rows:
        size: tuple[float, ...] = ()
        if axis == "device":
            size = tuple(inf if (known := getattr(row, column)) is None else known for column in columns)
        elif axis == "batch":
            size = (row.batch,)
        value = axis_value(row, axis)
        sizes[value] = min(size, sizes.get(value, size))
    place = {value: index for index, value in enumerate(listed)}
    return sorted(sizes, key=lambda value: (*sizes[value], place.get(value, len(place)), str(value)))


def _holds(comparison: ComparisonSentence, row: Row) -> bool:
    def value(quantity: Quantity) -> float | Value | None:
        found: float | Value | None = getattr(row, quantity.column)
        return found

    left, right = side_value(comparison.left, value), side_value(comparison.right, value)
    return left is not None and right is not None and compare(left, comparison.operator, right)
