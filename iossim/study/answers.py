"""Answers to the questions of a study, one sentence with figures each, which mentions ties within the noise.

:mod:`iossim.study.question` defines the keys of a question, :mod:`iossim.study.claims` judges claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from iossim.search.scheduler import scheduler_names
from iossim.study import table
from iossim.study.axes import METRICS, Quantity, name_of, number
from iossim.study.claims import Found, figures, judge, listed
from iossim.study.points import labels_of
from iossim.study.question import Labels, Question, Range, in_words
from iossim.study.scenario import Scenario
from iossim.study.study_kind import Label
from iossim.study.study_run import Answer, CrossPrice, Row


def answer(scenario: Scenario, rows: Sequence[Row], cross: Sequence[CrossPrice] = ()) -> list[Answer]:
    """Answers to the questions of a scenario, in its order, then the claims of publications.

    Failed rows are left out, and the sentence says so. ``Answer.rows`` are indices into ``rows``. Raises ScenarioError
    for a question about labels that the scenario lacks.
    """
    labels = labels_of(scenario)
    # Among equal rows the last is named: that of the scheduler that searched most, in whatever order a scenario lists
    # them.
    ranks = {name: rank for rank, name in enumerate(scheduler_names())}
    known = [row for row in rows if row.status == "ok"]
    known.sort(key=lambda row: (row.point, ranks.get(row.scheduler, -1)))
    said = [(in_words(asked), _answers(asked, known, cross, labels), "") for asked in scenario.questions]
    said += [
        (each.says, [judge(each.claims, known, cross, labels)], each.source)
        for each in scenario.published
        if each.claims
    ]
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


def _answers(asked: Question, known: Sequence[Row], cross: Sequence[CrossPrice], labels: Labels) -> list[Found]:
    """A verdict on a claim; else answers for each group of rows: by the axes in ``for_each``, and by model, since
    models are not comparable.
    """
    if asked.is_claim:
        return [judge([asked], known, cross, labels)]
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
        found = _Group(asked, group, labels[asked.axis] if asked.axis else (), varied, axes).answer()
        name = ", ".join(map(name_of, axes, values))
        cells = {**dict(zip(axes, map(str, values), strict=True)), **(found.cells or {"answer": found.words})}
        parts.append(replace(found, words=f"{name}: {found.words}" if name else found.words, cells=cells))
    return parts


@dataclass(frozen=True)
class _Group:
    """Rows from which one answer is derived; ``told`` are the axes that the group's name already gives."""

    asked: Question
    rows: Sequence[Row]
    #: Labels of the question's axis, as the scenario lists them.
    listed: Sequence[Label]
    #: Axes on which the rows of all groups differ.
    varied: Sequence[str]
    told: Collection[str]

    def answer(self) -> Found:
        if self.asked.kind in ("smallest", "largest"):
            return self._end_of_axis() or self._none(self.asked.axis)
        kept = [row for row in self.rows if table.meets_all(self.asked.having, row)]
        return self._best_on_axis(kept) if self.asked.kind == "best" else self._best_row(kept) or self._none()

    def _best(self, rows: Iterable[Row]) -> Row | None:
        return table.best_of(rows, self.asked.quantity, self.asked.is_low)

    def _label(self, row: Row) -> Label:
        label: Label = getattr(row, self.asked.axis)
        return label

    def _name(self, row: Row) -> str:
        """Name of a row's value on the axis."""
        return name_of(self.asked.axis, self._label(row))

    def _where(self, row: Row, *told: str) -> str:
        return table.place(row, self.varied, {*self.told, *told})

    def _found(self, row: Row, quantities: Sequence[Quantity] = (), size: str = "") -> Found:
        """A row as an answer: its value on the axis and the size of that value, its figures, and its other labels."""
        axis, cells, words = self.asked.axis, {}, []
        for quantity in quantities or [self.asked.quantity]:
            told = cells[quantity.words] = quantity.told(row)
            if quantity == Quantity() and row.low_ms is not None and row.high_ms is not None:
                interval = f"{number(row.low_ms)}-{number(row.high_ms)}"
                cells["90% interval"], told = f"{interval} ms", f"{told} (90% interval {interval})"
            words.append(told)
        where, said = self._where(row, axis), " and ".join(words)
        if axis:
            cells = {axis: str(self._label(row)), "size": size, **cells}
            said = f"{self._name(row)}{f' ({size})' if size else ''}, {said}"
        cells = {key: cell for key, cell in {**cells, "where": where}.items() if cell}
        return Found(f"{said} {where}".rstrip(), [row], cells=cells)

    def _end_of_axis(self) -> Found | None:
        """The smallest or largest value with a qualifying row, and how far the value before it misses."""
        asked, before = self.asked, list[Row]()
        end, order = (-1, "next larger") if asked.kind == "largest" else (1, "next smaller")
        quantities = [*map(Quantity, asked.having)] or [Quantity()]
        is_low = METRICS[quantities[0].metric].better == "lowest"
        for value in table.ordered(self.rows, asked.axis, self.listed, asked.size)[::end]:
            own = [row for row in self.rows if self._label(row) == value]
            best = table.best_of([row for row in own if table.meets_all(asked.having, row)], quantities[0], is_low)
            if best is None:
                before = own
                continue
            known = getattr(best, asked.size) if asked.axis == "device" else None
            size = "" if known is None else f"by {METRICS[asked.size].words}, {Quantity(asked.size).amount(known)}"
            found = self._found(best, quantities, size)
            for sign, bound in asked.having["latency_ms"].bounds if "latency_ms" in asked.having else ():
                if sign in ("<", "<=") and best.high_ms is not None and best.high_ms > bound:
                    found = found.with_more("", f", and measuring may show more than {number(bound)} ms")
            if (nearest := _nearest(asked.having, before)) is not None:
                name, missing = self._name(nearest), _missing(asked.having, nearest)
                words = f"; the {order}, {name}, has {missing} at best"
                found = found.with_more(order, words, [nearest], f"{name}, {missing}")
            return found
        return None

    def _best_on_axis(self, kept: Sequence[Row]) -> Found:
        """The value of the axis that is ahead, in every case where all else is equal."""
        asked = self.asked
        cases: list[tuple[Row, list[Row], Row | None]] = []
        for case in table.grouped(kept, table.other_axes(asked.axis)).values():
            # Among equal rows the smallest value wins, which costs least; schedulers keep the order of their searches.
            order = table.ordered(case, asked.axis, self.listed)
            if asked.axis != "scheduler":
                case.sort(key=lambda row: -order.index(self._label(row)))
            if (best := self._best(case)) is None:
                continue
            bests = filter(None, map(self._best, table.grouped(case, (asked.axis,)).values()))
            rivals = [row for row in bests if self._label(row) != self._label(best)]
            ties = [rival for rival in rivals if table.is_tie(best, rival, asked.quantity)]
            cases.append((best, ties, self._best(rival for rival in rivals if rival not in ties)))
        if len(cases) != 1:
            return self._wins(cases)
        ((best, ties, runner_up),) = cases
        found = self._found(best)
        if ties:
            names = listed([*map(self._name, ties)])
            found = found.with_more("a tie with", f", a tie with {names}", ties, names)
        if runner_up is not None:
            one, other = (asked.quantity.of(row) for row in (best, runner_up))
            ratio = f" ({max(one, other) / min(one, other):.2f}x)" if one and other else ""
            following = f"{self._name(runner_up)}, {asked.quantity.told(runner_up)}{ratio}"
            found = found.with_more("next", f"; next {following}", [runner_up], following)
        return found

    def _wins(self, cases: Sequence[tuple[Row, list[Row], Row | None]]) -> Found:
        """The number of cases that each value wins, and ties in."""
        told = []
        for value, count in Counter(self._label(best) for best, _, _ in cases).most_common():
            tied = [ties for best, ties, _ in cases if ties and self._label(best) == value]
            names = dict.fromkeys(str(self._label(tie)) for ties in tied for tie in ties)
            more = f" ({len(tied)} a tie, with {listed(list(names))})" if tied else ""
            told.append(f"{name_of(self.asked.axis, value)} in {count} of {len(cases)} cases{more}")
        return Found("; ".join(told) or "none", [best for best, _, _ in cases])

    def _best_row(self, kept: Sequence[Row]) -> Found | None:
        """The row ahead of all others, and the best one that differs from it in more than its scheduling."""
        if (best := self._best(kept)) is None:
            return None
        found, quantity = self._found(best), self.asked.quantity
        axes = ("device", "batch", "model", "dtype", "engine", "scheduler")
        axis = next((each for each in axes if each in self.varied and each not in self.told), "")
        runner_up = self._best(row for row in kept if axis and getattr(row, axis) != getattr(best, axis))
        if runner_up is None:
            return found
        link = "a tie with" if table.is_tie(best, runner_up, quantity) else "next"
        following = f"{quantity.told(runner_up)} {self._where(runner_up)}"
        return found.with_more(link, f"; {link} {following}", [runner_up], following)

    def _none(self, *axes: str) -> Found:
        """Answer without a qualifying row: the nearest one, if that can be determined."""
        nearest = _nearest(self.asked.having, self.rows)
        if nearest is None:
            return Found("none")
        where = table.place(nearest, {*self.varied, *axes}, self.told)
        return Found(f"none; the nearest is {_missing(self.asked.having, nearest)} {where}", [nearest])


def _nearest(having: Mapping[str, Range], rows: Sequence[Row]) -> Row | None:
    """Row that misses the bounds by the least total factor; None without bounds."""

    def miss(row: Row) -> float:
        factors = []
        for name, bounds in having.items():
            value = getattr(row, name)
            for sign, bound in bounds.bounds:
                over, under = (value, bound) if sign in ("<", "<=") and bound else (bound, value)
                factors.append(inf if value is None or not under else max(1.0, over / under))
        return prod(factors)

    nearest = min(rows, key=miss, default=None) if having else None
    return None if nearest is None or miss(nearest) == inf else nearest


def _missing(having: Mapping[str, Range], row: Row) -> str:
    """Figures of a row that the conditions bound."""
    return " and ".join(Quantity(name).amount(getattr(row, name)) for name in having)
