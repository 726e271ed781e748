"""The rows of a study as a tidy table: selected by conditions, grouped by labels, ordered, and compared by pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, log

from iossim.prediction.schedule_interval import REPEAT_NOISE
from iossim.study.axes import DEVICE_SIZES, ROW_AXES, Quantity, where_in_words
from iossim.study.question import Condition, Question, Range, values_of
from iossim.study.study_kind import Label
from iossim.study.study_run import Row

#: Such values are equal up to rounding of sums of floats.
_ROUNDING = 1e-9
#: Columns that are inaccurate if the latency is, or its inverse.
_OF_LATENCY = ("latency_ms", "throughput_per_s", "speedup")
#: Axes that decide which ops run on which device, and who prices them.
_WORK = ("model", "device", "batch", "dtype", "cost_model")


def place(row: Row, axes: Iterable[str], told: Iterable[str] = ()) -> str:
    """Place of a row on some axes, except those mentioned already: ``with ios-both at batch 8``."""
    left = set(axes) - set(told)
    return where_in_words({axis: getattr(row, axis) for axis in left}, left)


def context(row: Row, axes: Iterable[str]) -> tuple[Label, ...]:
    """Labels of a row on some axes."""
    return tuple(getattr(row, axis) for axis in axes)


def varied_axes(rows: Sequence[Row]) -> tuple[str, ...]:
    """Axes on which rows differ."""
    return tuple(axis for axis in ROW_AXES if len({getattr(row, axis) for row in rows}) > 1)


def grouped(rows: Iterable[Row], axes: Sequence[str]) -> dict[tuple[Label, ...], list[Row]]:
    """Rows by their labels on some axes, in order of appearance."""
    groups: dict[tuple[Label, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(context(row, axes), []).append(row)
    return groups


def other_axes(axis: str) -> tuple[str, ...]:
    """Axes on which two rows must be equal for their values of an axis to be comparable.

    Each value is taken with its best scheduler, search and rewriting, which a user may choose, unless these are
    compared.
    """
    ours = {"scheduler", "search", "rewrite"}
    free = {axis} if axis in ours else {axis, *ours}
    return tuple(each for each in ROW_AXES if each not in free)


def is_looked_at(asked: Question, row: Row) -> bool:
    """True where a question applies to a row."""
    unwanted = any(meets(condition, getattr(row, name)) for name, condition in asked.where_not.items())
    return not unwanted and meets_all(asked.where, row)


def meets_all(conditions: Mapping[str, Condition], row: Row) -> bool:
    """True where a row meets all conditions; an unknown value meets none."""
    return all(meets(condition, getattr(row, name)) for name, condition in conditions.items())


def meets(condition: Condition, value: float | Label | None) -> bool:
    if value is None:
        return False
    if isinstance(condition, Range):
        return all(compare(value, sign, bound) for sign, bound in condition.bounds)
    return any(compare(value, "=", each) for each in values_of(condition))


def compare(left: float | Label, operator: str, right: float | Label) -> bool:
    """Result of ``left operator right``; numbers that differ only by rounding are equal."""
    if isinstance(left, str) or isinstance(right, str):
        return str(left) == str(right)
    if abs(left - right) <= _ROUNDING * max(abs(left), abs(right)):
        return "=" in operator
    return operator[0] == ("<" if left < right else ">")


def best_of(rows: Iterable[Row], quantity: Quantity, is_low: bool) -> Row | None:
    """The best row; among equals the last, which searched the larger space. None where nothing is known."""
    best, best_value = None, inf
    for row in rows:
        value = quantity.of(row)
        if value is None:
            continue
        value = value if is_low else -value
        if value < best_value or compare(value, "=", best_value):
            best, best_value = row, value
    return best


def is_tie(one: Row, other: Row, quantity: Quantity) -> bool:
    """True where measurements might reverse the order of two rows.

    Two schedules of one point tie by their common errors (``Row.ties``). Rows that differ only in their search or
    engine run the same ops on the same device: they tie if they differ by less than measurements of one schedule do.
    Others, whose errors have less in common, tie if their intervals overlap.
    """
    left, right = quantity.of(one), quantity.of(other)
    if left is None or right is None:
        return False
    if compare(left, "=", right):
        return True
    if quantity.metric not in _OF_LATENCY or not left or not right:
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
        if quantity.metric != "latency_ms":
            ends = (1 / ends[1], 1 / ends[0])
        spans.append((value * ends[0], value * ends[1]))
    (low, high), (other_low, other_high) = spans
    return bool(low <= other_high and other_low <= high)


def is_noise(one: Row, other: Row, quantity: Quantity) -> bool:
    """:func:`is_tie` for measured figures; counts, such as stages, are equal or not."""
    return quantity.metric in _OF_LATENCY and is_tie(one, other, quantity)


def ordered(rows: Iterable[Row], axis: str, listed: Sequence[Label], by: str = "peak_tflops") -> list[Label]:
    """Values from small to large: batches by number, devices by ``by``, others as the scenario lists them."""
    columns = {"device": sorted(DEVICE_SIZES, key=lambda column: column != by), "batch": ["batch"]}.get(axis, [])
    sizes: dict[Label, tuple[float, ...]] = {}
    for row in rows:
        size = tuple(inf if known is None else known for known in (getattr(row, column) for column in columns))
        value: Label = getattr(row, axis)
        sizes[value] = min(size, sizes.get(value, size))
    place = {value: index for index, value in enumerate(listed)}
    return sorted(sizes, key=lambda value: (*sizes[value], place.get(value, len(place)), str(value)))
