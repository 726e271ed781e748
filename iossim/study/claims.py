"""Verdicts on claims in the rows of a study, as a sentence with figures and the cases where they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, geometric_mean

from iossim.study import table
from iossim.study.axes import ROW_AXES, Quantity, name_of, number
from iossim.study.question import Labels, Place, Question, label_of_axis, place_of
from iossim.study.study_kind import Label
from iossim.study.study_run import CrossPrice, Row

#: Number of names that a sentence lists before it counts the rest.
_LISTED = 3
_UNDECIDED = "There are no rows to decide it"
#: A ratio of two figures: ``1.2x``.
_RATIO = Quantity("speedup")


@dataclass(frozen=True)
class Found:
    """Answer to a question or claim, and its rows; ``cells`` has the same as a row of a table."""

    words: str
    rows: list[Row] = field(default_factory=list)
    holds: bool | None = None
    within_noise: bool = False
    cells: dict[str, str] = field(default_factory=dict)

    def with_more(self, column: str, words: str, rows: Sequence[Row] = (), cell: str = "") -> Found:
        """This with further words and rows, and a cell if there is a column for it."""
        cells = self.cells | ({column: cell} if column else {})
        return replace(self, words=self.words + words, rows=[*self.rows, *rows], cells=cells)


def listed(names: Sequence[Label]) -> str:
    """Names in a row, the first few of many."""
    shown = [str(name) for name in names[:_LISTED]]
    if len(names) > _LISTED:
        return f"{', '.join(shown)} and {len(names) - _LISTED} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


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


@dataclass(frozen=True)
class _Case:
    """Case of a claim or figure: its rows, whether the claim holds there, and whether measurements might reverse it.

    ``value`` is its figure, None where there is none; ``words`` say it, or why it fails, and ``place`` where it is.
    """

    rows: list[Row]
    holds: bool
    is_noise: bool
    value: float | None = None
    words: str = ""
    place: str = ""

    @property
    def placed(self) -> str:
        return f"{self.place} ({self.words})" if self.place else self.words


def _judged(claim: Question, known: Sequence[Row], cross: Sequence[CrossPrice], labels: Labels) -> Found:
    """The number of cases in which a claim holds, their figures, and the number that measurements might reverse."""
    rows = [row for row in known if table.is_looked_at(claim, row)]
    quantity, told, unknown = _RATIO, "; {}", _UNDECIDED
    if claim.kind == "best":
        cases, told = list(_best(claim, rows, labels)), "; {} of the next best"
    elif claim.kind == "specialised_for":
        cases, told = list(_specialised(claim, rows, known, cross)), "; the best of the others takes {} the time"
        unknown = "No schedule could be priced at another point than its own"
    elif claim.kind in ("rises_over", "falls_over"):
        cases, unknown = list(_trend(claim, rows, labels)), f"{_UNDECIDED}: it takes two values of {claim.axis}"
    else:
        cases, quantity = list(_measured(claim, rows, labels)), _unit(claim)
    if not cases:
        return Found(unknown)
    count, failing = len(cases), [case.placed for case in cases if not case.holds]
    ties = sum(case.is_noise for case in cases)
    held = "Within the noise" if ties == count else "Holds"
    values = [case.value for case in cases if case.value is not None]
    if count == 1 and (failing or claim.kind == "figure"):
        words = f"{'Does not hold' if failing else held}: {cases[0].placed}"
    else:
        words = held if count == 1 else f"{held} in {'both' if count == 2 else f'all {count}'} cases"
        if failing:
            words = f"Holds in {count - len(failing)} of {count} cases, not {listed(failing)}"
        if claim.kind in ("rises_over", "falls_over"):
            words += told.format(listed([case.placed for case in cases]))
        elif values:
            words += told.format(quantity.span(values))
    words += f", {ties} within the noise" if 0 < ties < count else ""
    found = [row for case in cases for row in case.rows]
    return Found(words, found, not failing, within_noise=not failing and ties == count)


def figures(asked: Question, rows: Sequence[Row], labels: Labels) -> list[Found]:
    """The figure that a question asks for, in each case."""
    varied = [axis for axis in table.varied_axes(rows) if axis in _open_axes(asked, labels)]
    return [
        Found(
            f"{one.place}: {one.words}" if one.place else one.words,
            one.rows,
            cells={**{axis: str(getattr(one.rows[0], axis)) for axis in varied}, asked.quantity.words: one.words},
        )
        for one in _measured(asked, rows, labels)
    ] or [Found(_UNDECIDED)]


def _unit(asked: Question) -> Quantity:
    """Name under which a figure is told; one over another is a ratio."""
    return asked.quantity if asked.over is None else _RATIO


def _open_axes(asked: Question, labels: Labels) -> list[str]:
    """Axes of the cases of a figure: ``for_each`` of an aggregate, else all that its labels leave open."""
    fixed = {**place_of(asked.of, labels), **place_of(asked.over, labels)}
    return asked.for_each if asked.aggregate else [axis for axis in ROW_AXES if axis not in fixed]


def _measured(asked: Question, rows: Sequence[Row], labels: Labels) -> Iterator[_Case]:
    """The cases of a figure that are known: of a single figure one for every combination of its open axes."""
    of = place_of(asked.of, labels)
    over = None if asked.over is None else {**of, **place_of(asked.over, labels)}
    axes = _open_axes(asked, labels)
    varied = [axis for axis in table.varied_axes(rows) if axis in axes]
    for group in table.grouped(rows, axes).values():
        value = _figure(asked, group, of)
        if over is not None and value is not None:
            under = _figure(asked, group, over)
            value = value / under if under else None  # nothing is a multiple of 0
        if value is None:
            continue
        holds = all(table.compare(value, sign, bound) for sign, bound in asked.bounds)
        noise = any(_might_reverse(asked, group, of, over, bound) for sign, bound in asked.bounds if sign != "=")
        yield _Case(group, holds, noise, value, _unit(asked).amount(value), table.place(group[0], varied))


_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    # Python before 3.13 refuses a 0.
    "geomean": lambda values: geometric_mean(values) if all(values) else 0.0,
    "min": min,
    "max": max,
}


def _figure(asked: Question, group: Sequence[Row], at: Place) -> float | None:
    """A figure in a group of rows; None if it is unknown, or not unique."""
    values = [value for row in _rows_at(at, group) if (value := asked.quantity.of(row)) is not None]
    if asked.aggregate:
        return _AGGREGATES[asked.aggregate](values) if values else None
    return values[0] if len(values) == 1 else None


def _rows_at(at: Place, group: Sequence[Row]) -> list[Row]:
    return [row for row in group if table.context(row, at) == tuple(at.values())]


def _might_reverse(asked: Question, group: Sequence[Row], of: Place, over: Place | None, bound: float) -> bool:
    """True where measurements might reverse a comparison: two rows tie, or the bound is in a latency's interval."""
    compared = [_rows_at(at, group) for at in (of, over) if at is not None]
    if asked.aggregate or any(len(rows) != 1 for rows in compared):
        return False
    (row,), *others = compared
    if others:
        return bound == 1.0 and table.is_noise(row, others[0][0], asked.quantity)
    if row.low_ms is None or row.high_ms is None:
        return False
    if asked.quantity == _RATIO:
        return bound == 1.0 and "sequential" in row.ties
    return asked.quantity == Quantity() and row.low_ms <= bound <= row.high_ms


def _best(claim: Question, rows: Sequence[Row], labels: Labels) -> Iterator[_Case]:
    """The wanted value against the best other one, wherever all else is equal; figures say how far it is ahead."""
    wanted = label_of_axis(claim.axis, claim.expect or "", labels)
    axes = table.other_axes(claim.axis)
    told = [axis for axis in table.varied_axes(rows) if axis in axes]
    for case in table.grouped(rows, axes).values():
        mine, theirs = ([row for row in case if (getattr(row, claim.axis) == wanted) is own] for own in (True, False))
        own, rival = (table.best_of(each, claim.quantity, claim.is_low) for each in (mine, theirs))
        if own is None or rival is None:
            continue
        over, under = (claim.quantity.of(row) or 0.0 for row in ((rival, own) if claim.is_low else (own, rival)))
        ahead = over / under if over and under else None  # nothing is a multiple of 0
        holds = table.is_tie(own, rival, claim.quantity) or not table.compare(over, "<", under)
        words = f"{getattr(rival, claim.axis)} is ahead" + ("" if ahead is None else f" by {under / over:.3g}x")
        noise = table.is_noise(own, rival, claim.quantity)
        yield _Case([own, rival], holds, noise, ahead, words, table.place(own, told))


def _trend(claim: Question, rows: Sequence[Row], labels: Labels) -> Iterator[_Case]:
    """The figures along an axis, where two or more are known."""
    kept = _rows_at(place_of(claim.of, labels), rows)
    axes = [axis for axis in ROW_AXES if axis != claim.axis]
    varied = [axis for axis in table.varied_axes(kept) if axis in axes]
    order = table.ordered(kept, claim.axis, labels[claim.axis])
    at_least, above = (">=", ">") if claim.kind == "rises_over" else ("<=", "<")
    for group in table.grouped(kept, axes).values():
        by_value = {getattr(row, claim.axis): row for row in group}
        steps = [by_value[value] for value in order if value in by_value]
        found = [value for row in steps if (value := claim.quantity.of(row)) is not None]
        if len(found) < 2:
            continue
        holds = all(table.compare(after, at_least, before) for before, after in pairwise(found))
        holds = holds and table.compare(found[-1], above, found[0])
        ends = f"{number(found[0])} to {claim.quantity.amount(found[-1])}"
        noise = table.is_noise(steps[0], steps[-1], claim.quantity)
        yield _Case(steps, holds, noise, words=ends, place=table.place(group[0], varied))


def _specialised(
    claim: Question, rows: Sequence[Row], known: Sequence[Row], cross: Sequence[CrossPrice]
) -> Iterator[_Case]:
    """The schedule made for each point against those made for its neighbours on the axis; figures are the times of the
    best of these.
    """
    value_at = {row.point: name_of(claim.axis, getattr(row, claim.axis)) for row in known}
    varied = table.varied_axes(rows)
    at_point: dict[tuple[int, str], list[tuple[float, CrossPrice]]] = {}
    for price in cross:
        if price.axis == claim.axis and price.latency_ms is not None:
            at_point.setdefault((price.run_at, price.scheduler), []).append((price.latency_ms, price))
    for row in rows:
        prices = at_point.get((row.point, row.scheduler))
        if not prices or not row.latency_ms:
            continue
        rival_ms, rival = min(prices, key=itemgetter(0))
        beaten = [each for each in prices if not each[1].tie and table.compare(each[0], "<", row.latency_ms)]
        first_ms, first = min(beaten or prices, key=itemgetter(0))
        by = f"{row.latency_ms / first_ms:.3g}x as fast" if first_ms else "faster"
        words = f"the one made for {value_at.get(first.made_for, 'another point')} is {by}"
        noise = rival.tie and not beaten
        yield _Case([row], not beaten, noise, rival_ms / row.latency_ms, words, table.place(row, varied))
