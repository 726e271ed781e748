"""Answers to the questions of a study, one sentence with figures each, which mentions ties within the noise.

:mod:`iossim.study.question` defines the keys of a question, :mod:`iossim.study.claims` judges claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from iossim.search.scheduler import scheduler_names
from iossim.study.axes import METRICS, Quantity, name_of, number
from iossim.study.claims import Found, figure, figure_cells, figures, judge, listed
from iossim.study.points import labels_of
from iossim.study.question import Conditions, Labels, Question, Range, in_words
from iossim.study.row_comparison import (
    axis_value,
    best_of,
    compare,
    grouped,
    is_looked_at,
    is_tie,
    meets_all,
    ordered,
    other_axes,
    place,
    varied_axes,
)
from iossim.study.scenario import Scenario
from iossim.study.study_run import Answer, CrossPrice, Row


def meets(constraints: Sequence[Question], row: Row) -> bool | None:
    """True where a row meets all constraints that apply to it; None without constraints. A failed row meets none."""
    if not constraints:
        return None
    return row.status == "ok" and all(_is_met(each, row) for each in constraints if is_looked_at(each, row))


def _is_met(constraint: Question, row: Row) -> bool:
    value = constraint.quantity.of(row)
    bounds = [(sign, bound) for sign, bound in constraint.bounds if isinstance(bound, int | float)]
    return value is not None and all(compare(value, sign, bound) for sign, bound in bounds)


def answer(scenario: Scenario, rows: Sequence[Row], cross: Sequence[CrossPrice] = ()) -> list[Answer]:
    """Answers to the questions of a scenario, in its order, then its constraints, then the claims of publications.

    Failed rows are left out, and the sentence says so. ``Answer.rows`` are indices into ``rows``. Raises ScenarioError
    for a question about labels that the scenario lacks.
    """
    labels = labels_of(scenario)
    places = {id(row): index for index, row in enumerate(rows)}
    # Among equal rows the last is named: that of the scheduler that searched most, in whatever order a scenario lists
    # them.
    ranks = {name: rank for rank, name in enumerate(scheduler_names())}
    known = [row for row in rows if row.status == "ok"]
    known.sort(key=lambda row: (row.point, ranks.get(row.scheduler, -1)))
    failed = len(rows) - len(known)
    answers: list[Answer] = []
    left_out = f" {failed} of {len(rows)} rows failed and are left out." if failed else ""

    def add(question: str, found: Found, source: str = "", cases: Sequence[dict[str, str]] = ()) -> None:
        given = Answer(
            question=question,
            answer=f"{found.words}.{left_out}",
            cases=list(cases),
            holds=found.holds,
            within_noise=found.within_noise,
            source=source,
            rows=sorted({places[id(row)] for row in found.rows}),
        )
        answers.append(given)

    for asked in scenario.questions:
        if asked.is_claim:
            add(in_words(asked), judge([asked], known, cross, labels))
        else:
            parts = _answers(asked, known, labels)
            found = Found("; ".join(part.words for part in parts), [row for part in parts for row in part.rows])
            add(in_words(asked), found, cases=[part.cells for part in parts if part.cells])
    for constraint in scenario.constraints:
        about = [row for row in known if is_looked_at(constraint, row)]
        met = [row for row in about if _is_met(constraint, row)]
        add(in_words(constraint), Found(f"{len(met)} of {len(about)} rows meet it", met))
    for published in scenario.published:
        if published.claims:
            add(published.says, judge(published.claims, known, cross, labels), published.source)
    return answers


@dataclass(frozen=True)
class _Group:
    """Rows from which one answer is derived; ``told`` are the axes that the group's name already gives."""

    asked: Question
    rows: Sequence[Row]
    labels: Labels
    #: Axes on which the rows of all groups differ.
    varied: Sequence[str]
    told: Collection[str]

    def where(self, row: Row, *told: str) -> str:
        return place(row, {*self.varied, *told}, {*self.told, *told})

    def answer(self) -> Found:
        if self.asked.kind in ("smallest", "largest"):
            return self._end_of_axis()
        return self._best_on_axis() if self.asked.kind == "best" else self._best_row()

    def _found(self, row: Row, axis: str = "", size: str = "", quantities: Sequence[Quantity] = ()) -> Found:
        """A row as an answer: its value on an axis and the size of that value, its figures, and its other labels."""
        asked, where = quantities or [self.asked.quantity], self.where(row, *filter(None, [axis]))
        value = axis_value(row, axis) if axis else ""
        words = f"{name_of(axis, value)}{f' ({size})' if size else ''}, " if axis else ""
        words += " and ".join(figure(row, quantity) for quantity in asked) + (f" {where}" if where else "")
        cells = {axis: str(value), "size": size, **{k: v for each in asked for k, v in figure_cells(row, each).items()}}
        return Found(words, [row], cells={key: cell for key, cell in {**cells, "where": where}.items() if cell})

    def _end_of_axis(self) -> Found:
        """The smallest or largest value with a qualifying row, and how far the value before it misses."""
        asked, axis = self.asked, self.asked.axis
        values = ordered(self.rows, axis, self.labels[axis], asked.size)[:: -1 if asked.kind == "largest" else 1]
        quantities = [Quantity(name) for name in asked.having if name in METRICS] or [Quantity()]
        is_low = METRICS[quantities[0].metric].better == "lowest"
        before: list[Row] = []
        for value in values:
            own = [row for row in self.rows if axis_value(row, axis) == value]
            best = best_of([row for row in own if meets_all(asked.having, row)], quantities[0], is_low)
            if best is None:
                before = own
                continue
            known = getattr(best, asked.size) if axis == "device" else None
            size = "" if known is None else f"by {METRICS[asked.size].words}, {Quantity(asked.size).amount(known)}"
            found = self._found(best, axis, size, quantities)
            if limit := _may_miss(asked.having, best):
                found = found.with_more(f", and {limit}")
            if (nearest := _nearest(asked.having, before)) is not None:
                order = "larger" if asked.kind == "largest" else "smaller"
                name, missing = name_of(axis, axis_value(nearest, axis)), _missing(asked.having, nearest)
                words = f"; the next {order}, {name}, has {missing} at best"
                found = found.with_more(words, [nearest], {f"next {order}": f"{name}, {missing}"})
            return found
        return self._none(axis)

    def _best_on_axis(self) -> Found:
        """The value of the axis that is ahead, in every case where all else is equal."""
        asked, axis = self.asked, self.asked.axis
        cases: list[tuple[Row, list[Row], Row | None]] = []
        for case in grouped([row for row in self.rows if meets_all(asked.having, row)], other_axes(axis)).values():
            # Among equal rows the smallest value wins, which costs least; schedulers keep the order of their searches.
            order = ordered(case, axis, self.labels[axis])
            if axis != "scheduler":
                case.sort(key=lambda row: -order.index(axis_value(row, axis)))
            best = best_of(case, asked.quantity, asked.is_low)
            if best is None:
                continue
            bests = [best_of(own, asked.quantity, asked.is_low) for own in grouped(case, (axis,)).values()]
            rivals = [row for row in bests if row is not None and axis_value(row, axis) != axis_value(best, axis)]
            ties = [rival for rival in rivals if is_tie(best, rival, asked.quantity)]
            others = [rival for rival in rivals if rival not in ties]
            cases.append((best, ties, best_of(others, asked.quantity, asked.is_low)))
        if not cases:
            return Found("none")
        if len(cases) > 1:
            wins = Counter(axis_value(best, axis) for best, _, _ in cases)
            told = [f"{name_of(axis, value)} in {count} of {len(cases)} cases" for value, count in wins.most_common()]
            tied = {value: [tie for best, tie, _ in cases if tie and axis_value(best, axis) == value] for value in wins}
            more = (_ties(axis, tied[value]) for value, _ in wins.most_common())
            return Found("; ".join(map("".join, zip(told, more, strict=True))), [best for best, _, _ in cases])
        ((best, ties, runner_up),) = cases
        found = self._found(best, axis)
        if ties:
            names = listed([name_of(axis, axis_value(tie, axis)) for tie in ties])
            found = found.with_more(f", a tie with {names}", ties, {"a tie with": names})
        if runner_up is not None:
            name = name_of(axis, axis_value(runner_up, axis))
            following = f"{name}, {asked.quantity.told(runner_up)}{_ratio(best, runner_up, asked.quantity)}"
            found = found.with_more(f"; next {following}", [runner_up], {"next": following})
        return found

    def _best_row(self) -> Found:
        """The row ahead of all others, and the best one that differs from it in more than its scheduling."""
        asked = self.asked
        kept = [row for row in self.rows if meets_all(asked.having, row)]
        best = best_of(kept, asked.quantity, asked.is_low)
        if best is None:
            return self._none()
        found = self._found(best)
        axes = ("device", "batch", "model", "dtype", "engine", "scheduler")
        axis = next((each for each in axes if each in self.varied and each not in self.told), None)
        others = [row for row in kept if axis is not None and axis_value(row, axis) != axis_value(best, axis)]
        runner_up = best_of(others, asked.quantity, asked.is_low)
        if runner_up is None:
            return found
        link = "a tie with" if is_tie(best, runner_up, asked.quantity) else "next"
        following = f"{asked.quantity.told(runner_up)} {self.where(runner_up)}"
        return found.with_more(f"; {link} {following}", [runner_up], {link: following})

    def _none(self, *axes: str) -> Found:
        """Answer without a qualifying row: the nearest one, if that can be determined."""
        nearest = _nearest(self.asked.having, self.rows)
        if nearest is None:
            return Found("none")
        where = place(nearest, {*self.varied, *axes}, self.told)
        return Found(f"none; the nearest is {_missing(self.asked.having, nearest)} {where}", [nearest])


def _answers(asked: Question, known: Sequence[Row], labels: Labels) -> list[Found]:
    """Answers for each group of rows: by the axes in ``for_each``, and by model, since models are not comparable."""
    rows = [row for row in known if is_looked_at(asked, row)]
    if not rows:
        return [Found("There are no rows to answer it from")]
    varied = varied_axes(rows)
    axes = tuple(dict.fromkeys(asked.for_each))
    if asked.kind == "figure":
        return figures(asked, rows, labels)
    if "model" in varied and "model" not in (*axes, asked.axis):
        axes = ("model", *axes)
    parts: list[Found] = []
    for values, group in grouped(rows, axes).items():
        found = _Group(asked, group, labels, varied, axes).answer()
        name = ", ".join(map(name_of, axes, values))
        cells = {**dict(zip(axes, map(str, values), strict=True)), **(found.cells or {"answer": found.words})}
        parts.append(replace(found, words=f"{name}: {found.words}" if name else found.words, cells=cells))
    return parts


def _bounds(conditions: Conditions) -> list[tuple[str, str, float]]:
    """Conditions that bound a metric by a number: metric, comparison, number."""
    return [
        (name, sign, bound)
        for name, condition in conditions.items()
        if name in METRICS and isinstance(condition, Range)
        for sign, bound in condition.bounds
    ]


def _nearest(conditions: Conditions, rows: Sequence[Row]) -> Row | None:
    """Row that misses the bounds by the least total factor; None without bounds."""
    bounds = _bounds(conditions)

    def miss(row: Row) -> float:
        factors = []
        for name, sign, bound in bounds:
            value = getattr(row, name) or 0.0
            over, under = (value, bound) if sign in ("<", "<=") and bound else (bound, value)
            factors.append(max(1.0, over / under) if getattr(row, name) is not None and under else inf)
        return prod(factors)

    nearest = min(rows, key=miss, default=None) if bounds else None
    return None if nearest is None or miss(nearest) == inf else nearest


def _missing(conditions: Conditions, row: Row) -> str:
    """Figures of a row that the conditions bound."""
    names = dict.fromkeys(name for name, _, _ in _bounds(conditions))
    return " and ".join(Quantity(name).amount(getattr(row, name)) for name in names)


def _may_miss(conditions: Conditions, row: Row) -> str:
    """A warning, if an answer meets a bound on the latency by less than its interval."""
    for name, sign, bound in _bounds(conditions):
        if name == "latency_ms" and sign in ("<", "<=") and row.high_ms is not None and row.high_ms > bound:
            return f"measuring may show more than {number(bound)} ms"
    return ""


def _ratio(best: Row, runner_up: Row, quantity: Quantity) -> str:
    one, other = quantity.of(best), quantity.of(runner_up)
    return f" ({max(one, other) / min(one, other):.2f}x)" if one and other else ""


def _ties(axis: str, tied: Sequence[Sequence[Row]]) -> str:
    """Number of cases in which others tie, and their names."""
    names = list(dict.fromkeys(str(axis_value(tie, axis)) for ties in tied for tie in ties))
    return f" ({len(tied)} a tie, with {listed(names)})" if tied else ""
