"""Answers to the questions of a study, one sentence with figures each, which mentions ties within the noise.

:mod:`iossim.study.question` defines the keys of a question, :mod:`iossim.study.claims` judges claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from iossim.search.scheduler import scheduler_names
from iossim.study import table
from iossim.study.axes import METRICS, Quantity, name_of, number
from iossim.study.claims import Found, figures, judge, listed
from iossim.study.points import labels_of
from iossim.study.question import Conditions, Labels, Question, Range, in_words
from iossim.study.scenario import Scenario
from iossim.study.study_run import Answer, CrossPrice, Row


def meets(constraints: Sequence[Question], row: Row) -> bool | None:
    """True where a row meets all constraints that apply to it; None without constraints. A failed row meets none."""
    if not constraints:
        return None
    return row.status == "ok" and all(_is_met(each, row) for each in constraints if table.is_looked_at(each, row))


def _is_met(constraint: Question, row: Row) -> bool:
    value = constraint.quantity.of(row)
    return value is not None and all(table.compare(value, sign, bound) for sign, bound in constraint.bounds)


def answer(scenario: Scenario, rows: Sequence[Row], cross: Sequence[CrossPrice] = ()) -> list[Answer]:
    """Answers to the questions of a scenario, in its order, then its constraints, then the claims of publications.

    Failed rows are left out, and the sentence says so. ``Answer.rows`` are indices into ``rows``. Raises ScenarioError
    for a question about labels that the scenario lacks.
    """
    labels = labels_of(scenario)
    # Among equal rows the last is named: that of the scheduler that searched most, in whatever order a scenario lists
    # them.
    ranks = {name: rank for rank, name in enumerate(scheduler_names())}
    known = [row for row in rows if row.status == "ok"]
    known.sort(key=lambda row: (row.point, ranks.get(row.scheduler, -1)))
    said: list[tuple[str, list[Found], str]] = []
    for asked in scenario.questions:
        found = [judge([asked], known, cross, labels)] if asked.is_claim else _answers(asked, known, labels)
        said.append((in_words(asked), found, ""))
    for constraint in scenario.constraints:
        about = [row for row in known if table.is_looked_at(constraint, row)]
        met = [row for row in about if _is_met(constraint, row)]
        said.append((in_words(constraint), [Found(f"{len(met)} of {len(about)} rows meet it", met)], ""))
    for published in scenario.published:
        if published.claims:
            said.append((published.says, [judge(published.claims, known, cross, labels)], published.source))
    places = {id(row): index for index, row in enumerate(rows)}
    failed = len(rows) - len(known)
    left_out = f" {failed} of {len(rows)} rows failed and are left out." if failed else ""
    return [
        Answer(
            question=question,
            answer=f"{'; '.join(part.words for part in parts)}.{left_out}",
            cases=[part.cells for part in parts if part.cells],
            holds=parts[0].holds,
            within_noise=parts[0].within_noise,
            source=source,
            rows=sorted({places[id(row)] for part in parts for row in part.rows}),
        )
        for question, parts, source in said
    ]


def _answers(asked: Question, known: Sequence[Row], labels: Labels) -> list[Found]:
    """Answers for each group of rows: by the axes in ``for_each``, and by model, since models are not comparable."""
    rows = [row for row in known if table.is_looked_at(asked, row)]
    if not rows:
        return [Found("There are no rows to answer it from")]
    if asked.kind == "figure":
        return figures(asked, rows, labels)
    varied = table.varied_axes(rows)
    axes = tuple(dict.fromkeys(asked.for_each))
    if "model" in varied and "model" not in (*axes, asked.axis):
        axes = ("model", *axes)
    parts: list[Found] = []
    for values, group in table.grouped(rows, axes).items():
        found = _Group(asked, group, labels, varied, axes).answer()
        name = ", ".join(map(name_of, axes, values))
        cells = {**dict(zip(axes, map(str, values), strict=True)), **(found.cells or {"answer": found.words})}
        parts.append(replace(found, words=f"{name}: {found.words}" if name else found.words, cells=cells))
    return parts


@dataclass(frozen=True)
class _Group:
    """Rows from which one answer is derived; ``told`` are the axes that the group's name already gives."""

    asked: Question
    rows: Sequence[Row]
    labels: Labels
    #: Axes on which the rows of all groups differ.
    varied: Sequence[str]
    told: Collection[str]

    def answer(self) -> Found:
        if self.asked.kind in ("smallest", "largest"):
            return self._end_of_axis()
        return self._best_on_axis() if self.asked.kind == "best" else self._best_row()

    def _best(self, rows: Sequence[Row]) -> Row | None:
        return table.best_of(rows, self.asked.quantity, self.asked.is_low)

    def _where(self, row: Row, *told: str) -> str:
        return table.place(row, self.varied, {*self.told, *told})

    def _found(self, row: Row, axis: str = "", size: str = "", quantities: Sequence[Quantity] = ()) -> Found:
        """A row as an answer: its value on an axis and the size of that value, its figures, and its other labels."""
        cells, words, where = {}, [], self._where(row, axis)
        for quantity in quantities or [self.asked.quantity]:
            told = cells[quantity.words] = quantity.told(row)
            if quantity == Quantity() and row.low_ms is not None and row.high_ms is not None:
                interval = f"{number(row.low_ms)}-{number(row.high_ms)}"
                cells["90% interval"], told = f"{interval} ms", f"{told} (90% interval {interval})"
            words.append(told)
        value = name_of(axis, getattr(row, axis)) + (f" ({size})" if size else "") if axis else ""
        own = {axis: str(getattr(row, axis)) if axis else "", "size": size, **cells, "where": where}
        said = f"{value}, {' and '.join(words)}" if axis else " and ".join(words)
        known = {key: cell for key, cell in own.items() if cell}
        return Found(f"{said} {where}".rstrip(), [row], cells=known)

    def _end_of_axis(self) -> Found:
        """The smallest or largest value with a qualifying row, and how far the value before it misses."""
        asked, axis = self.asked, self.asked.axis
        values = table.ordered(self.rows, axis, self.labels[axis], asked.size)[:: -1 if asked.kind == "largest" else 1]
        quantities = [Quantity(name) for name in asked.having if name in METRICS] or [Quantity()]
        is_low = METRICS[quantities[0].metric].better == "lowest"
        before: list[Row] = []
        for value in values:
            own = [row for row in self.rows if getattr(row, axis) == value]
            best = table.best_of([row for row in own if table.meets_all(asked.having, row)], quantities[0], is_low)
            if best is None:
                before = own
                continue
            known = getattr(best, asked.size) if axis == "device" else None
            size = "" if known is None else f"by {METRICS[asked.size].words}, {Quantity(asked.size).amount(known)}"
            found = self._found(best, axis, size, quantities)
            for name, sign, bound in _bounds(asked.having):
                if name == "latency_ms" and sign in ("<", "<=") and best.high_ms is not None and best.high_ms > bound:
                    found = found.with_more(f", and measuring may show more than {number(bound)} ms")
            if (nearest := _nearest(asked.having, before)) is not None:
                order = "larger" if asked.kind == "largest" else "smaller"
                name, missing = name_of(axis, getattr(nearest, axis)), _missing(asked.having, nearest)
                words = f"; the next {order}, {name}, has {missing} at best"
                found = found.with_more(words, [nearest], {f"next {order}": f"{name}, {missing}"})
            return found
        return self._none(axis)

    def _best_on_axis(self) -> Found:
        """The value of the axis that is ahead, in every case where all else is equal."""
        asked, axis = self.asked, self.asked.axis
        cases: list[tuple[Row, list[Row], Row | None]] = []
        for case in table.grouped(
            [row for row in self.rows if table.meets_all(asked.having, row)], table.other_axes(axis)
        ).values():
            # Among equal rows the smallest value wins, which costs least; schedulers keep the order of their searches.
            order = table.ordered(case, axis, self.labels[axis])
            if axis != "scheduler":
                case.sort(key=lambda row: -order.index(getattr(row, axis)))
            best = self._best(case)
            if best is None:
                continue
            bests = filter(None, map(self._best, table.grouped(case, (axis,)).values()))
            rivals = [row for row in bests if getattr(row, axis) != getattr(best, axis)]
            ties = [rival for rival in rivals if table.is_tie(best, rival, asked.quantity)]
            cases.append((best, ties, self._best([rival for rival in rivals if rival not in ties])))
        if not cases:
            return Found("none")
        if len(cases) > 1:
            wins = Counter(getattr(best, axis) for best, _, _ in cases)
            told = []
            for value, count in wins.most_common():
                tied = [ties for best, ties, _ in cases if ties and getattr(best, axis) == value]
                names = dict.fromkeys(str(getattr(tie, axis)) for ties in tied for tie in ties)
                more = f" ({len(tied)} a tie, with {listed(list(names))})" if tied else ""
                told.append(f"{name_of(axis, value)} in {count} of {len(cases)} cases{more}")
            return Found("; ".join(told), [best for best, _, _ in cases])
        ((best, ties, runner_up),) = cases
        found = self._found(best, axis)
        if ties:
            tied_names = listed([name_of(axis, getattr(tie, axis)) for tie in ties])
            found = found.with_more(f", a tie with {tied_names}", ties, {"a tie with": tied_names})
        if runner_up is not None:
            one, other = (asked.quantity.of(row) for row in (best, runner_up))
            ratio = f" ({max(one, other) / min(one, other):.2f}x)" if one and other else ""
            following = f"{name_of(axis, getattr(runner_up, axis))}, {asked.quantity.told(runner_up)}{ratio}"
            found = found.with_more(f"; next {following}", [runner_up], {"next": following})
        return found

    def _best_row(self) -> Found:
        """The row ahead of all others, and the best one that differs from it in more than its scheduling."""
        asked = self.asked
        kept = [row for row in self.rows if table.meets_all(asked.having, row)]
        best = self._best(kept)
        if best is None:
            return self._none()
        found = self._found(best)
        axes = ("device", "batch", "model", "dtype", "engine", "scheduler")
        axis = next((each for each in axes if each in self.varied and each not in self.told), "")
        runner_up = self._best([row for row in kept if axis and getattr(row, axis) != getattr(best, axis)])
        if runner_up is None:
            return found
        link = "a tie with" if table.is_tie(best, runner_up, asked.quantity) else "next"
        following = f"{asked.quantity.told(runner_up)} {self._where(runner_up)}"
        return found.with_more(f"; {link} {following}", [runner_up], {link: following})

    def _none(self, *axes: str) -> Found:
        """Answer without a qualifying row: the nearest one, if that can be determined."""
        nearest = _nearest(self.asked.having, self.rows)
        if nearest is None:
            return Found("none")
        where = table.place(nearest, {*self.varied, *axes}, self.told)
        return Found(f"none; the nearest is {_missing(self.asked.having, nearest)} {where}", [nearest])


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
