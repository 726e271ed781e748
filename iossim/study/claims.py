"""Whether claims hold in the rows of a study, in a sentence with figures: how many cases there are, and which are not so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, geometric_mean

from iossim.study.answer_words import Found, amount, listed, number, place, span
from iossim.study.row_comparison import (
    axis_value,
    best_of,
    compare,
    grouped,
    holds,
    is_noise,
    is_tie,
    ordered,
    other_axes,
    quotient_value,
    side_value,
    varied_axes,
)
from iossim.study.sentences import (
    NUMBERS,
    QUESTION_AXES,
    Claim,
    ComparisonSentence,
    DiagonalIsBest,
    Holds,
    IsBest,
    Labels,
    Quantity,
    Quotient,
    Ratio,
    Side,
    Trend,
    Value,
)
from iossim.study.study_run import CrossPrice, Row

_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    # Python before 3.13 refuses a 0.
    "geomean": lambda values: geometric_mean(values) if all(values) else 0.0,
    "min": min,
    "max": max,
}


def judge(claim: Claim, known: Sequence[Row], cross: Sequence[CrossPrice], labels: Labels) -> Found:
    """Whether a claim holds in rows that did not fail; None in ``holds`` where there is no case of it."""
    rows = [row for row in known if holds(claim.where, row) and holds(claim.having, row)]
    if isinstance(claim, Holds):
        return _holds(claim, rows)
    if isinstance(claim, IsBest):
        return _is_best(claim, rows)
    if isinstance(claim, Trend):
        return _trend(claim, rows, labels)
    return _diagonal(claim, rows, known, cross)


def _holds(claim: Holds, rows: Sequence[Row]) -> Found:
    quantities = [quantity for comparison in claim.conditions for quantity in comparison.quantities]
    fixed = {axis for quantity in quantities for axis, _ in quantity.at}
    if any(quantity.aggregate for quantity in quantities):
        axes: tuple[str, ...] = claim.for_each
    else:
        axes = tuple(axis for axis in QUESTION_AXES if axis not in fixed)
    varied = varied_axes(rows)
    cases: list[tuple[bool, str, float | None]] = []
    behind: list[Row] = []
    ties = 0
    for group in grouped(rows, axes).values():

        def value(quantity: Quantity, group: Sequence[Row] = group) -> float | Value | None:
            return _quantity(quantity, group)

        sides = [(side_value(each.left, value), side_value(each.right, value), each) for each in claim.conditions]
        if any(left is None or right is None for left, right, _ in sides):
            continue
        true = all(compare(left, each.operator, right) for left, right, each in sides)  # type: ignore[arg-type]
        name = place(group[0], [axis for axis in axes if axis in varied])
        told = list(dict.fromkeys(_told(left, right, each) for left, right, each in sides))
        lead = sides[0][0] if isinstance(sides[0][0], float | int) else None
        cases.append((true, f"{name} ({', '.join(told)})" if name else ", ".join(told), lead))
        ties += any(_is_noise(each, group) for each in claim.conditions)
        behind += group
    if not cases:
        return Found("No row is there to tell", [], None)
    failing = [name for true, name, _ in cases if not true]
    is_noise = not failing and ties == len(cases)
    if len(cases) == 1:
        verdict = "Does not hold" if failing else _counted(1, failing, ties)
        return Found(f"{verdict}: {cases[0][1]}", behind, not failing, is_noise)
    leads = [lead for _, _, lead in cases if lead is not None]
    is_bound = leads and len(claim.conditions) == 1 and isinstance(claim.conditions[0].right, float)
    more = f"; {_span_of(claim.conditions[0].left, leads)}" if is_bound else ""
    return _verdict(len(cases), failing, ties, behind, f"{more}{_some_ties(ties, len(cases))}")


def _is_noise(comparison: ComparisonSentence, group: Sequence[Row]) -> bool:
    """Whether measuring might turn an order around: of two rows that tie, or of a latency and a bound in its interval."""
    if comparison.operator in ("=", "!="):
        return False
    ratio, right = comparison.left, comparison.right
    left: Side = ratio
    if isinstance(ratio, Ratio) and right == 1.0:
        left, right = ratio.over, ratio.under
    if isinstance(left, Quantity) and isinstance(right, Quantity):
        one, other = _row(left, group), _row(right, group)
        return (
            one is not None
            and other is not None
            and left.column == right.column
            and is_noise(one, other, Quotient(left.column))
        )
    if isinstance(left, Quantity) and isinstance(right, float):
        row = _row(left, group)
        if row is None or row.low_ms is None or row.high_ms is None:
            return False
        if left.column == "speedup":
            return right == 1.0 and "sequential" in row.ties
        return left.column == "latency_ms" and row.low_ms <= right <= row.high_ms
    return False


def _row(quantity: Quantity, group: Sequence[Row]) -> Row | None:
    """The one row that a quantity is of; None where it is of several."""
    rows = [row for row in group if all(axis_value(row, axis) == value for axis, value in quantity.at)]
    return rows[0] if len(rows) == 1 and quantity.aggregate is None else None


def _quantity(quantity: Quantity, group: Sequence[Row]) -> float | Value | None:
    """What a quantity is in a group of rows; None where it is not known, or not one value."""
    rows = [row for row in group if all(axis_value(row, axis) == value for axis, value in quantity.at)]
    values = [value for row in rows if (value := getattr(row, quantity.column)) is not None]
    if quantity.aggregate is not None:
        return _AGGREGATES[quantity.aggregate](values) if values else None
    return values[0] if len(values) == 1 else None


def _told(left: float | Value | None, right: float | Value | None, comparison: ComparisonSentence) -> str:
    """The two figures of a comparison; a number that the claim gives itself is left out."""
    sides = ((left, comparison.left), (right, comparison.right))
    figures = [_amount(side, value) for value, side in sides if isinstance(side, Quantity | Ratio)]
    return " and ".join(figures)


def _amount(side: Side, value: float | Value | None) -> str:
    if isinstance(side, Ratio):
        assert isinstance(value, float | int)
        return f"{value:.3g}x"
    if isinstance(side, Quantity) and side.column in NUMBERS and isinstance(value, float | int):
        return amount(side.column, value)
    return str(value)


def _span_of(side: Side, values: Sequence[float]) -> str:
    if isinstance(side, Quantity) and side.column in NUMBERS:
        return span(Quotient(side.column), values)
    low, high = number(min(values)), number(max(values))
    return (low if low == high else f"{low} to {high}") + ("x" if isinstance(side, Ratio) else "")


def _is_best(claim: IsBest, rows: Sequence[Row]) -> Found:
    varied = varied_axes(rows)
    failing: list[str] = []
    ahead: list[float] = []
    ties, cases, behind = 0, 0, []
    axes = other_axes(claim.axis)
    for case in grouped(rows, axes).values():
        by_value = grouped(case, (claim.axis,))
        own = best_of(by_value.get((claim.value,), []), claim.quotient, claim.is_low)
        rival = best_of(
            [row for (value,), group in by_value.items() if value != claim.value for row in group],
            claim.quotient,
            claim.is_low,
        )
        if own is None or rival is None:
            continue
        cases += 1
        behind += [own, rival]
        mine, theirs = quotient_value(claim.quotient, own), quotient_value(claim.quotient, rival)
        assert mine is not None
        assert theirs is not None
        over, under = (theirs, mine) if claim.is_low else (mine, theirs)
        by = ""
        if over and under:  # nothing is a multiple of 0
            ahead.append(over / under)
            by = f" by {under / over:.3g}x"
        ties += is_noise(own, rival, claim.quotient)
        if is_tie(own, rival, claim.quotient):
            continue
        if compare(over, "<", under):
            where = place(own, [axis for axis in axes if axis in varied])
            failing.append(f"{where} ({axis_value(rival, claim.axis)} is ahead{by})".strip())
    if not cases:
        return Found("No row is there to tell", [], None)
    more = f"; {span(Quotient('speedup'), ahead)} of the next best" if ahead else ""
    return _verdict(cases, failing, ties, behind, f"{more}{_some_ties(ties, cases)}")


def _trend(claim: Trend, rows: Sequence[Row], labels: Labels) -> Found:
    kept = [row for row in rows if all(axis_value(row, axis) == value for axis, value in claim.quantity.at)]
    axes = tuple(axis for axis in QUESTION_AXES if axis != claim.axis)
    varied = varied_axes(kept)
    order = ordered(kept, claim.axis, labels[claim.axis])
    failing: list[str] = []
    cases: list[str] = []
    behind: list[Row] = []
    ties = 0
    for case in grouped(kept, axes).values():
        by_value = {axis_value(row, claim.axis): row for row in case}
        steps = [by_value[value] for value in order if value in by_value]
        figures = [value for row in steps if (value := getattr(row, claim.quantity.column)) is not None]
        if len(figures) < 2:
            continue
        behind += steps
        ties += is_noise(steps[0], steps[-1], Quotient(claim.quantity.column))
        pairs = pairwise(figures)
        operator, strictly = (">=", ">") if claim.rises else ("<=", "<")
        true = all(compare(after, operator, before) for before, after in pairs)
        true = true and compare(figures[-1], strictly, figures[0])
        name = place(case[0], [axis for axis in axes if axis in varied])
        ends = f"{number(figures[0])} to {amount(claim.quantity.column, figures[-1])}"
        cases.append(f"{name} ({ends})" if name else ends)
        if not true:
            failing.append(cases[-1])
    if not cases:
        return Found(f"No row is there to tell: it takes two values of {claim.axis}", [], None)
    return _verdict(len(cases), failing, ties, behind, f"; {listed(cases)}")


def _diagonal(claim: DiagonalIsBest, rows: Sequence[Row], known: Sequence[Row], cross: Sequence[CrossPrice]) -> Found:
    """At each point the schedule that was made for it against those made for the points beside it on the axis."""
    own = {(row.point, row.scheduler): row for row in rows}
    of_point = {row.point: row for row in known}
    failing: list[str] = []
    behind: list[Row] = []
    slower: list[float] = []
    ties, cases = 0, 0
    varied = varied_axes(rows)
    at_point: dict[tuple[int, str], list[CrossPrice]] = {}
    for price in cross:
        if price.axis == claim.axis and price.latency_ms is not None and price.made_for != price.run_at:
            at_point.setdefault((price.run_at, price.scheduler), []).append(price)
    for key, prices in at_point.items():
        row = own.get(key)
        if row is None or not row.latency_ms:
            continue
        cases += 1
        behind.append(row)
        rival = min(prices, key=lambda price: price.latency_ms or 0.0)
        assert rival.latency_ms is not None
        slower.append(rival.latency_ms / row.latency_ms)
        beaten = [
            price
            for price in prices
            if not price.tie and price.latency_ms is not None and compare(price.latency_ms, "<", row.latency_ms)
        ]
        if beaten:
            first = min(beaten, key=lambda price: price.latency_ms or 0.0)
            made_for = of_point.get(first.made_for)
            maker = f"the one made for {axis_value(made_for, claim.axis)}" if made_for else "another"
            by = f"{row.latency_ms / first.latency_ms:.3g}x as fast" if first.latency_ms else "faster"
            failing.append(f"{place(row, varied)} ({maker} is {by})")
        elif rival.tie:
            ties += 1
    if not cases:
        return Found(f"No schedule was priced beside its own point: say 'cross_evaluate: [{claim.axis}]'", [], None)
    more = f"; the best of the others takes {span(Quotient('speedup'), slower)} the time"
    return _verdict(cases, failing, ties, behind, f"{more}{_some_ties(ties, cases)}")


def _verdict(cases: int, failing: Sequence[str], ties: int, behind: list[Row], more: str) -> Found:
    """What a claim came to, with ``more`` figures behind how many cases there are."""
    return Found(
        f"{_counted(cases, failing, ties)}{more}", behind, not failing, within_noise=not failing and ties == cases
    )


def _some_ties(ties: int, cases: int) -> str:
    return f", {ties} within the noise" if 0 < ties < cases else ""


def _counted(cases: int, failing: Sequence[str], ties: int) -> str:
    """In how many cases a claim holds, and the first of those in which it does not; where measuring might turn all of them
    around, that alone."""
    if not failing:
        if ties == cases:
            return f"Within the noise in all {cases} cases" if cases > 1 else "Within the noise"
        return f"Holds in all {cases} cases" if cases > 1 else "Holds"
    return f"Holds in {cases - len(failing)} of {cases} cases, not {listed(failing)}"
