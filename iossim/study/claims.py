"""Verdicts on claims in the rows of a study, as a sentence with figures and the cases where they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
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

    def with_more(self, words: str, rows: Sequence[Row] = (), cells: Mapping[str, str] | None = None) -> Found:
        return replace(self, words=self.words + words, rows=[*self.rows, *rows], cells={**self.cells, **(cells or {})})


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
    """Case of a claim: its rows, the text of a failure (else empty), and whether measurements might reverse it.

    ``value`` is its figure, None where there is none; ``words`` say it, and ``place`` where it is.
    """

    rows: list[Row]
    failing: str
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
        unknown = f"No schedule was priced at another point than its own: write 'cross_evaluate: [{claim.axis}]'"
    elif claim.kind in ("rises_over", "falls_over"):
        cases, unknown = list(_trend(claim, rows, labels)), f"{_UNDECIDED}: it takes two values of {claim.axis}"
    else:
        cases, quantity = _measured(claim, rows, labels)[1], _unit(claim)
    if not cases:
        return Found(unknown)
    count, failing = len(cases), [case.failing for case in cases if case.failing]
    ties = sum(case.is_noise for case in cases)
    held = "Within the noise" if ties == count else "Holds"
    words = held if count == 1 else f"{held} in {'both' if count == 2 else f'all {count}'} cases"
    if failing:
        words = f"Holds in {count - len(failing)} of {count} cases, not {listed(failing)}"
    values = [case.value for case in cases if case.value is not None]
    if claim.kind in ("rises_over", "falls_over"):
        words += told.format(listed([case.placed for case in cases]))
    elif claim.kind == "figure" and count == 1:
        words = f"{'Does not hold' if failing else held}: {cases[0].placed}"
    elif values and claim.bounds_are_numbers:
        words += told.format(quantity.span(values))
    words += f", {ties} within the noise" if 0 < ties < count else ""
    found = [row for case in cases for row in case.rows]
    return Found(words, found, not failing, within_noise=not failing and ties == count)


def figures(asked: Question, rows: Sequence[Row], labels: Labels) -> list[Found]:
    """Figures of each case, for a question without a claimed bound."""
    axes, cases = _measured(asked, rows, labels)
    return [
        Found(
            f"{one.place}: {one.words}" if one.place else one.words,
            one.rows,
            cells={**{axis: str(getattr(one.rows[0], axis)) for axis in axes}, asked.quantity.words: one.words},
        )
        for one in cases
    ] or [Found(_UNDECIDED)]


def _unit(asked: Question) -> Quantity:
    """Name under which a figure is told; one over another is a ratio."""
    return asked.quantity if asked.over is None else _RATIO


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
    varied = table.varied_axes(rows)
    told = [axis for axis in axes if axis in varied]
    found: list[_Case] = []
    for group in table.grouped(rows, axes).values():
        value = _figure(asked, group, of, over)
        sides = [bound if isinstance(bound, float) else _figure(asked, group, bound) for _, bound in bounds]
        known = [(sign, side) for (sign, _), side in zip(bounds, sides, strict=True) if side is not None]
        if value is None or len(known) < len(bounds):
            continue
        beside = [side for side, (_, bound) in zip(sides, bounds, strict=True) if isinstance(bound, dict)]
        amounts = [_unit(asked).amount(value), *(asked.quantity.amount(side) for side in beside if side is not None)]
        noise = any(_might_reverse(asked, group, of, over, bound) for sign, bound in bounds if sign != "=")
        case = _Case(group, "", noise, value, " and ".join(dict.fromkeys(amounts)), table.place(group[0], told))
        holds = all(table.compare(value, sign, bound) for sign, bound in known)
        found.append(case if holds else replace(case, failing=case.placed))
    return told, found


_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    # Python before 3.13 refuses a 0.
    "geomean": lambda values: geometric_mean(values) if all(values) else 0.0,
    "min": min,
    "max": max,
}


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
    return [row for row in group if table.context(row, at) == tuple(at.values())]


def _might_reverse(asked: Question, group: Sequence[Row], of: Place, over: Place | None, bound: float | Place) -> bool:
    """True where measurements might reverse a comparison: two rows tie, or the bound is in a latency's interval."""
    rows = _rows_at(of, group)
    if asked.aggregate or len(rows) != 1:
        return False
    row, rival = rows[0], bound if isinstance(bound, dict) else over if bound == 1.0 else None
    if rival is not None:
        others = _rows_at(rival, group)
        return len(others) == 1 and table.is_noise(row, others[0], asked.quantity)
    if over is not None or isinstance(bound, dict) or row.low_ms is None or row.high_ms is None:
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
        failing = ""
        if not table.is_tie(own, rival, claim.quantity) and table.compare(over, "<", under):
            by = "" if ahead is None else f" by {under / over:.3g}x"
            failing = f"{table.place(own, told)} ({getattr(rival, claim.axis)} is ahead{by})".strip()
        yield _Case([own, rival], failing, table.is_noise(own, rival, claim.quantity), ahead)


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
        ends = f"{number(found[0])} to {claim.quantity.amount(found[-1])}"
        noise = table.is_noise(steps[0], steps[-1], claim.quantity)
        case = _Case(steps, "", noise, words=ends, place=table.place(group[0], varied))
        yield case if holds and table.compare(found[-1], above, found[0]) else replace(case, failing=case.placed)


def _specialised(
    claim: Question, rows: Sequence[Row], known: Sequence[Row], cross: Sequence[CrossPrice]
) -> Iterator[_Case]:
    """The schedule made for each point against those made for its neighbours on the axis; figures are the times of the
    best of these.
    """
    own = {(row.point, row.scheduler): row for row in rows}
    of_point = {row.point: row for row in known}
    varied = table.varied_axes(rows)
    at_point: dict[tuple[int, str], list[tuple[float, CrossPrice]]] = {}
    for price in cross:
        if price.axis == claim.axis and price.latency_ms is not None and price.made_for != price.run_at:
            at_point.setdefault((price.run_at, price.scheduler), []).append((price.latency_ms, price))
    for key, prices in at_point.items():
        row = own.get(key)
        if row is None or not row.latency_ms:
            continue
        rival_ms, rival = min(prices, key=lambda each: each[0])
        beaten = [each for each in prices if not each[1].tie and table.compare(each[0], "<", row.latency_ms)]
        failing = ""
        if beaten:
            first_ms, first = min(beaten, key=lambda each: each[0])
            maker, by = "another", f"{row.latency_ms / first_ms:.3g}x as fast" if first_ms else "faster"
            if (made_for := of_point.get(first.made_for)) is not None:
                maker = f"the one made for {name_of(claim.axis, getattr(made_for, claim.axis))}"
            failing = f"{table.place(row, varied)} ({maker} is {by})"
        yield _Case([row], failing, rival.tie and not beaten, rival_ms / row.latency_ms)
