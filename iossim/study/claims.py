"""Verdicts on claims in the rows of a study, as a sentence with figures and the cases where they fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, geometric_mean

from iossim.study.axes import ROW_AXES, Quantity, name_of, number
from iossim.study.question import Labels, Place, Question, label_of_axis, place_of
from iossim.study.row_comparison import (
    axis_value,
    best_of,
    compare,
    grouped,
    is_looked_at,
    is_noise,
    is_tie,
    ordered,
    other_axes,
    place,
    varied_axes,
)
from iossim.study.study_kind import Label
from iossim.study.study_run import CrossPrice, Row

#: Number of names that a sentence lists before it counts the rest.
_LISTED = 3
_UNDECIDED = "There are no rows to decide it"


@dataclass(frozen=True)
class Found:
    """Answer to a question or claim, and its rows; ``cells`` has the same as a row of a table."""

    words: str
    rows: list[Row] = field(default_factory=list)
    holds: bool | None = None
    within_noise: bool = False
    cells: dict[str, str] = field(default_factory=dict)

    def with_more(self, words: str, rows: Sequence[Row] = (), cells: Mapping[str, str] | None = None) -> Found:
        return replace(self, words=self.words + words, rows=[*self.rows, *rows], cells={**self.cells, **(cells or {})})


def figure_cells(row: Row, quantity: Quantity) -> dict[str, str]:
    """A figure of a row as cells of a table: a latency is followed by its prediction interval."""
    cells = {quantity.words: quantity.told(row)}
    if quantity != Quantity() or row.low_ms is None or row.high_ms is None:
        return cells
    return {**cells, "90% interval": f"{number(row.low_ms)}-{number(row.high_ms)} ms"}


def figure(row: Row, quantity: Quantity) -> str:
    """The content of :func:`figure_cells` in words."""
    amount, *interval = figure_cells(row, quantity).values()
    return amount + (f" (90% interval {interval[0].removesuffix(' ms')})" if interval else "")


def listed(names: Sequence[Label]) -> str:
    """Names in a row, the first few of many."""
    shown = [str(name) for name in names[:_LISTED]]
    if len(names) > _LISTED:
        return f"{', '.join(shown)} and {len(names) - _LISTED} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    # Python before 3.13 refuses a 0.
    "geomean": lambda values: geometric_mean(values) if all(values) else 0.0,
    "min": min,
    "max": max,
}


def judge(claims: Sequence[Question], known: Sequence[Row], cross: Sequence[CrossPrice], labels: Labels) -> Found:
    """Verdict on all claims in rows that did not fail; ``holds`` is None if one of them has no case there."""
    found = [_judged(claim, known, cross, labels) for claim in claims]
    if len(found) == 1:
        return found[0]
    verdicts = [each.holds for each in found]
    holds = False if False in verdicts else None if None in verdicts else True
    rows = {id(row): row for each in found for row in each.rows}
    within_noise = bool(holds) and all(each.within_noise for each in found)
    return Found("; ".join(each.words for each in found), list(rows.values()), holds, within_noise)


def _judged(claim: Question, known: Sequence[Row], cross: Sequence[CrossPrice], labels: Labels) -> Found:
    rows = [row for row in known if is_looked_at(claim, row)]
    if claim.kind == "best":
        return _is_best(claim, rows, labels)
    if claim.kind == "specialised_for":
        return _specialised(claim, rows, known, cross)
    if claim.kind in ("rises_over", "falls_over"):
        return _trend(claim, rows, labels)
    return _bounded(claim, rows, labels)


@dataclass(frozen=True)
class _Case:
    """Case of a claim: its rows, the text of a failure (else empty), and whether measurements might reverse it.

    A case of a figure has its ``value``, also in ``words``, and its ``place``.
    """

    rows: list[Row]
    failing: str
    is_noise: bool
    value: float = 0.0
    words: str = ""
    place: str = ""


def _verdict(cases: Sequence[_Case], more: str = "", unknown: str = _UNDECIDED) -> Found:
    """The number of cases in which a claim holds, ``more`` figures, and the number that measurements might reverse."""
    if not cases:
        return Found(unknown)
    count, failing = len(cases), [case.failing for case in cases if case.failing]
    ties = sum(case.is_noise for case in cases)
    held = "Within the noise" if ties == count else "Holds"
    words = f"{held} in all {count} cases" if count > 1 else held
    if failing:
        words = f"Holds in {count - len(failing)} of {count} cases, not {listed(failing)}"
    some_ties = f", {ties} within the noise" if 0 < ties < count else ""
    rows = [row for case in cases for row in case.rows]
    return Found(f"{words}{more}{some_ties}", rows, not failing, within_noise=not failing and ties == count)


def figures(asked: Question, rows: Sequence[Row], labels: Labels) -> list[Found]:
    """Figures of each case, for a question without a claimed bound."""
    axes, found = _measured(asked, rows, labels)
    return [
        Found(
            f"{one.place}: {one.words}" if one.place else one.words,
            one.rows,
            cells={**{axis: str(axis_value(one.rows[0], axis)) for axis in axes}, asked.quantity.words: one.words},
        )
        for one in found
    ] or [Found(_UNDECIDED)]


def _bounded(claim: Question, rows: Sequence[Row], labels: Labels) -> Found:
    _, cases = _measured(claim, rows, labels)
    if len(cases) == 1:
        alone = _verdict(cases)
        verdict = alone.words if alone.holds else "Does not hold"
        return replace(alone, words=f"{verdict}: {_placed(cases[0].words, cases[0].place)}")
    is_number = bool(cases) and all(isinstance(bound, int | float) for _, bound in claim.bounds)
    return _verdict(cases, f"; {_amount(claim, [one.value for one in cases])}" if is_number else "")


def _placed(words: str, at: str) -> str:
    return f"{at} ({words})" if at else words


def _measured(asked: Question, rows: Sequence[Row], labels: Labels) -> tuple[list[str], list[_Case]]:
    """Axes that distinguish cases, and the cases of a figure that are known.

    The cases of an aggregate are the values of ``for_each``; a single figure has one for every combination of the
    axes that its labels leave open.
    """
    of = place_of(asked.of, labels)
    over = None if asked.over is None else {**of, **place_of(asked.over, labels)}
    bounds: list[tuple[str, float | Place]] = [
        (sign, float(bound) if isinstance(bound, int | float) else {**of, **place_of(bound, labels)})
        for sign, bound in asked.bounds
    ]
    fixed = {axis for at in (of, over, *(bound for _, bound in bounds)) if isinstance(at, dict) for axis in at}
    axes = asked.for_each if asked.aggregate else [axis for axis in ROW_AXES if axis not in fixed]
    varied = varied_axes(rows)
    told = [axis for axis in axes if axis in varied]
    found: list[_Case] = []
    for group in grouped(rows, axes).values():
        value = _figure(asked, group, of, over)
        sides = [(sign, bound if isinstance(bound, float) else _figure(asked, group, bound)) for sign, bound in bounds]
        known = [(sign, bound) for sign, bound in sides if bound is not None]
        if value is None or len(known) < len(sides):
            continue
        beside = [asked.quantity.amount(side) for (_, side), (_, bound) in zip(known, bounds, strict=True)
                  if isinstance(bound, dict)]  # fmt: skip
        words = " and ".join(dict.fromkeys([_amount(asked, [value]), *beside]))
        noise = any(_is_noise(asked, group, of, over, bound) for sign, bound in bounds if sign != "=")
        holds, at = all(compare(value, sign, bound) for sign, bound in known), place(group[0], told)
        found.append(_Case(group, "" if holds else _placed(words, at), noise, value, words, at))
    return told, found


def _figure(asked: Question, group: Sequence[Row], of: Place, over: Place | None = None) -> float | None:
    """A figure in a group of rows, over another if given; None if it is unknown, or not unique."""
    values = [value for row in _rows_at(of, group) if (value := asked.quantity.of(row)) is not None]
    if asked.aggregate:
        found = _AGGREGATES[asked.aggregate](values) if values else None
    else:
        found = values[0] if len(values) == 1 else None
    if over is None or found is None:
        return found
    under = _figure(asked, group, over)
    return found / under if under else None


def _rows_at(at: Place, group: Sequence[Row]) -> list[Row]:
    return [row for row in group if all(axis_value(row, axis) == label for axis, label in at.items())]


def _is_noise(asked: Question, group: Sequence[Row], of: Place, over: Place | None, bound: float | Place) -> bool:
    """True where measurements might reverse a comparison: two rows tie, or the bound is in a latency's interval."""
    rows = _rows_at(of, group)
    if asked.aggregate or len(rows) != 1:
        return False
    row, rival = rows[0], bound if isinstance(bound, dict) else over if bound == 1.0 else None
    if rival is not None:
        others = _rows_at(rival, group)
        return len(others) == 1 and is_noise(row, others[0], asked.quantity)
    if over is not None or isinstance(bound, dict) or row.low_ms is None or row.high_ms is None:
        return False
    if asked.quantity == Quantity("speedup"):
        return bound == 1.0 and "sequential" in row.ties
    return asked.quantity == Quantity() and row.low_ms <= bound <= row.high_ms


def _amount(asked: Question, values: list[float]) -> str:
    """Range of a claim's figures; a ratio is a multiple of another figure."""
    quantity = asked.quantity if asked.over is None else Quantity("speedup")
    return quantity.span(values)


def _is_best(claim: Question, rows: Sequence[Row], labels: Labels) -> Found:
    wanted = label_of_axis(claim.axis, claim.expect or "", labels)
    varied, axes = varied_axes(rows), other_axes(claim.axis)
    cases: list[_Case] = []
    ahead: list[float] = []
    for case in grouped(rows, axes).values():
        mine = [row for row in case if axis_value(row, claim.axis) == wanted]
        theirs = [row for row in case if axis_value(row, claim.axis) != wanted]
        own, rival = (best_of(each, claim.quantity, claim.is_low) for each in (mine, theirs))
        if own is None or rival is None:
            continue
        over, under = claim.quantity.of(own), claim.quantity.of(rival)
        assert over is not None
        assert under is not None
        if claim.is_low:
            over, under = under, over
        by = ""
        if over and under:  # nothing is a multiple of 0
            ahead.append(over / under)
            by = f" by {under / over:.3g}x"
        failing = ""
        if not is_tie(own, rival, claim.quantity) and compare(over, "<", under):
            where = place(own, [axis for axis in axes if axis in varied])
            failing = f"{where} ({axis_value(rival, claim.axis)} is ahead{by})".strip()
        cases.append(_Case([own, rival], failing, is_noise(own, rival, claim.quantity)))
    return _verdict(cases, f"; {Quantity('speedup').span(ahead)} of the next best" if ahead else "")


def _trend(claim: Question, rows: Sequence[Row], labels: Labels) -> Found:
    kept = _rows_at(place_of(claim.of, labels), rows)
    axes = tuple(axis for axis in ROW_AXES if axis != claim.axis)
    varied = [axis for axis in varied_axes(kept) if axis in axes]
    order = ordered(kept, claim.axis, labels[claim.axis])
    at_least, above = (">=", ">") if claim.kind == "rises_over" else ("<=", "<")
    cases: list[_Case] = []
    told: list[str] = []
    for case in grouped(kept, axes).values():
        by_value = {axis_value(row, claim.axis): row for row in case}
        steps = [by_value[value] for value in order if value in by_value]
        found = [value for row in steps if (value := claim.quantity.of(row)) is not None]
        if len(found) < 2:
            continue
        true = all(compare(after, at_least, before) for before, after in pairwise(found))
        true = true and compare(found[-1], above, found[0])
        name = place(case[0], varied)
        ends = f"{number(found[0])} to {claim.quantity.amount(found[-1])}"
        told.append(_placed(ends, name))
        cases.append(_Case(steps, "" if true else told[-1], is_noise(steps[0], steps[-1], claim.quantity)))
    unknown = f"{_UNDECIDED}: it takes two values of {claim.axis}"
    return _verdict(cases, f"; {listed(told)}" if told else "", unknown)


def _specialised(claim: Question, rows: Sequence[Row], known: Sequence[Row], cross: Sequence[CrossPrice]) -> Found:
    """Schedule made for each point against those made for its neighbours on the axis."""
    own = {(row.point, row.scheduler): row for row in rows}
    of_point = {row.point: row for row in known}
    varied = varied_axes(rows)
    cases: list[_Case] = []
    slower: list[float] = []
    at_point: dict[tuple[int, str], list[tuple[float, CrossPrice]]] = {}
    for price in cross:
        if price.axis == claim.axis and price.latency_ms is not None and price.made_for != price.run_at:
            at_point.setdefault((price.run_at, price.scheduler), []).append((price.latency_ms, price))
    for key, prices in at_point.items():
        row = own.get(key)
        if row is None or not row.latency_ms:
            continue
        rival_ms, rival = min(prices, key=lambda each: each[0])
        slower.append(rival_ms / row.latency_ms)
        beaten = [each for each in prices if not each[1].tie and compare(each[0], "<", row.latency_ms)]
        failing = ""
        if beaten:
            first_ms, first = min(beaten, key=lambda each: each[0])
            made_for = of_point.get(first.made_for)
            name = name_of(claim.axis, axis_value(made_for, claim.axis)) if made_for else ""
            maker = f"the one made for {name}" if name else "another"
            by = f"{row.latency_ms / first_ms:.3g}x as fast" if first_ms else "faster"
            failing = f"{place(row, varied)} ({maker} is {by})"
        cases.append(_Case([row], failing, rival.tie and not beaten))
    unknown = f"No schedule was priced at another point than its own: write 'cross_evaluate: [{claim.axis}]'"
    more = f"; the best of the others takes {Quantity('speedup').span(slower)} the time" if slower else ""
    return _verdict(cases, more, unknown)
