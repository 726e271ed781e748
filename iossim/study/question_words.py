"""Questions, claims and constraints as sentences, for reports and the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from iossim.study.axes import ROW_AXES, name_of, where_in_words
from iossim.study.metrics import METRICS, Quantity
from iossim.study.question import Condition, Conditions, Place, Question, Range

_AGGREGATES = {"mean": "mean", "geomean": "geometric mean", "min": "minimum", "max": "maximum"}
_SIGNS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than", "=": "equal to"}


def in_words(asked: Question) -> str:
    """A question ends with a question mark; a claim or constraint is a statement."""
    axis = _axis(asked.axis)
    direction, quantity = "lowest" if asked.is_low else "highest", asked.quantity.words
    metric = _at(asked.of, quantity)
    said = {
        "best": f"Which {axis} has the {direction} {quantity}",
        "smallest": f"Which is the smallest {axis}",
        "largest": f"Which is the largest {axis}",
        "rises_over": f"The {metric} rises over the {axis}",
        "falls_over": f"The {metric} falls over the {axis}",
        "specialised_for": f"Each schedule is the fastest for the {axis} that it was made for",
        "metric": f"What is the {direction} {quantity}",
        "figure": _figure(asked),
    }[asked.kind]
    if asked.expect is not None:
        said = f"The {axis} of the {direction} {quantity} is {name_of(asked.best or '', asked.expect)}"
    if asked.kind in ("smallest", "largest") and axis == "device":
        said += f" by {METRICS[asked.size].words}"
    tail = [said]
    if asked.having:
        tail.append(
            f"with {_and([f'a {_named(name)} of {_condition(name, each)}' for name, each in asked.having.items()])}"
        )
    if asked.for_each:
        tail.append(f"for each {_and([_axis(each) for each in asked.for_each])}")
    told = " ".join(tail)
    rows = [_conditions(asked.where, "is")] if asked.where else []
    rows += [_conditions(asked.where_not, "is not")] if asked.where_not else []
    told += f", where {' and '.join(rows)}" if rows else ""
    return f"{told}{'' if asked.is_claim else '?'}"


def _figure(asked: Question) -> str:
    """A figure, and what it is bounded by."""
    said = _at(asked.of, asked.quantity.words)
    if asked.aggregate:
        said = f"{_AGGREGATES[asked.aggregate]} of the {said}"
    over = "" if asked.over is None else _place(asked.over)
    if over and not asked.bounds:
        return f"What is the {said}, as a multiple of that {over}"
    if over and all(bound == 1 for _, bound in asked.bounds):
        bounds = [f"{_SIGNS[sign]} that {over}" for sign, _ in asked.bounds]
    elif over:
        bounds = [f"{_SIGNS[sign]} {bound:g}" for sign, bound in asked.bounds]
        bounds[-1] += f" times that {over}"
    else:
        bounds = [f"{_SIGNS[sign]} {_bound(asked.quantity, bound)}" for sign, bound in asked.bounds]
    return f"The {said} is {_and(bounds)}" if bounds else f"What is the {said}"


def _bound(quantity: Quantity, bound: float | str | Place) -> str:
    return quantity.exact(bound) if isinstance(bound, int | float) else f"that {_place(bound)}"


def _at(at: str | Place | None, quantity: str) -> str:
    return quantity if at is None else f"{quantity} {_place(at)}"


def _place(at: str | Place) -> str:
    return f"of {at}" if isinstance(at, str) else where_in_words(at, set(at))


def _conditions(conditions: Conditions, verb: str) -> str:
    return _and([f"the {_named(name)} {verb} {_condition(name, each)}" for name, each in conditions.items()])


def _condition(name: str, condition: Condition) -> str:
    if isinstance(condition, Range):
        return _and([f"{_SIGNS[sign]} {_exact(name, bound)}" for sign, bound in condition.bounds])
    values = condition if isinstance(condition, list) else [condition]
    return " or ".join(value if isinstance(value, str) else _exact(name, value) for value in values)


def _exact(name: str, value: float) -> str:
    return Quantity(name).exact(value) if name in METRICS else f"{value:g}"


def _named(name: str) -> str:
    return _axis(name) if name in ROW_AXES else METRICS[name].words


def _axis(name: str) -> str:
    return "batch size" if name == "batch" else name.replace("_", " ")


def _and(parts: Sequence[str]) -> str:
    return " and ".join(parts)
