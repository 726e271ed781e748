"""Answers to the questions of a study, one sentence with figures each; ties within the noise are said.

:mod:`iossim.study.question` has the keys of a question, :mod:`iossim.study.claims` judges claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from iossim.search.scheduler import scheduler_names
from iossim.study.axes import Label, name_of
from iossim.study.claims import Found, figure, figure_cells, figures, judge, listed
from iossim.study.metrics import METRICS, Quantity, number
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
    """Whether a row meets all constraints that are about it; None without constraints. A failed row meets none."""
    if not constraints:
        return None
    return row.status == "ok" and all(_is_met(each, row) for each in constraints if is_looked_at(each, row))


def _is_met(constraint: Question, row: Row) -> bool:
    value = constraint.quantity.of(row)
    bounds = [(sign, bound) for sign, bound in constraint.bounds if isinstance(bound, int | float)]
    return value is not None and all(compare(value, sign, bound) for sign, bound in bounds)


def answer(scenario: Scenario, rows: Sequence[Row], cross: Sequence[CrossPrice] = ()) -> list[Answer]:
    """Answers to the questions of a scenario, in its order, then its constraints, then the claims of publications.

    Rows that failed are left out, and the sentence says so. ``Answer.rows`` are places in ``rows``. Raises
    ScenarioError for a question about labels that the scenario does not have.
    """
    labels = labels_of(scenario)
    places = {id(row): index for index, row in enumerate(rows)}
    # The last of equal rows is named: that of the scheduler that searched most, in whatever order a scenario lists
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
            parts = _answer(asked, known, labels)
            behind = [row for part in parts for row in part.rows]
            cases = [part.cells for part in parts if part.cells]
            add(in_words(asked), Found("; ".join(part.words for part in parts), behind), cases=cases)
    for constraint in scenario.constraints:
        about = [row for row in known if is_looked_at(constraint, row)]
        met = [row for row in about if _is_met(constraint, row)]
        add(in_words(constraint), Found(f"{len(met)} of {len(about)} rows meet it", met))
    for published in scenario.published:
        if published.claims:
            add(published.says, judge(published.claims, known, cross, labels), published.source)
    return answers


def _answer(asked: Question, known: Sequence[Row], labels: Labels) -> list[Found]:
    """The answer for each group of rows: by the axes in ``for_each``, and by model, since models do not compare."""
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
        told = set(axes)
        if asked.kind in ("smallest", "largest"):
            found = _end_of_axis(asked, group, labels, varied, told)
        elif asked.kind == "best":
            found = _best_on_axis(asked, group, labels, varied, told)
        else:
            found = _best_row(asked, group, varied, told)
        name = ", ".join(map(name_of, axes, values))
        cells = {**dict(zip(axes, map(str, values), strict=True)), **(found.cells or {"answer": found.words})}
        parts.append(replace(found, words=f"{name}: {found.words}" if name else found.words, cells=cells))
    return parts


def _end_of_axis(asked: Question, rows: Sequence[Row], labels: Labels, varied: Sequence[str], told: set[str]) -> Found:
    """The smallest or largest value with a row as asked for, and how far the one before it is from that."""
    values = ordered(rows, asked.axis, labels[asked.axis], asked.size)
    if asked.kind == "largest":
        values.reverse()
    quantities = [Quantity(name) for name in asked.having if name in METRICS] or [Quantity()]
    first = quantities[0]
    for index, value in enumerate(values):
        own = [row for row in rows if axis_value(row, asked.axis) == value]
        best = best_of(
            [row for row in own if meets_all(asked.having, row)], first, METRICS[first.metric].better == "lowest"
        )
        if best is None:
            continue
        size = ""
        if asked.axis == "device" and (known := getattr(best, asked.size)) is not None:
            size = f"by {METRICS[asked.size].words}, {Quantity(asked.size).amount(known)}"
        where = place(best, varied, {*told, asked.axis})
        words = f"{name_of(asked.axis, value)}{f' ({size})' if size else ''}, "
        words += " and ".join(figure(best, quantity) for quantity in quantities) + _spaced(where)
        cells = {asked.axis: str(value), **({"size": size} if size else {})}
        for quantity in quantities:
            cells |= figure_cells(best, quantity)
        cells |= {"where": where} if where else {}
        behind = [best]
        if limit := _may_miss(asked.having, best):
            words += f", and {limit}"
        if index:
            before = values[index - 1]
            nearest = _nearest(asked.having, [row for row in rows if axis_value(row, asked.axis) == before])
            if nearest is not None:
                behind.append(nearest)
                order = "larger" if asked.kind == "largest" else "smaller"
                missing = _missing(asked.having, nearest)
                words += f"; the next {order}, {name_of(asked.axis, before)}, has {missing} at best"
                cells[f"next {order}"] = f"{name_of(asked.axis, before)}, {missing}"
        return Found(words, behind, cells=cells)
    return _none(asked, rows, {*varied, asked.axis}, told)


def _best_on_axis(asked: Question, rows: Sequence[Row], labels: Labels, varied: Sequence[str], told: set[str]) -> Found:
    """The value of the axis that is ahead, in every case where all else is equal."""
    cases: list[tuple[Row, Row | None, list[Row]]] = []
    for case in grouped([row for row in rows if meets_all(asked.having, row)], other_axes(asked.axis)).values():
        # Of equal rows the one with the smallest value wins, which costs least; schedulers keep the order of their
        # searches.
        order = ordered(case, asked.axis, labels[asked.axis])
        rank = {each: index for index, each in enumerate(order)}
        if asked.axis != "scheduler":
            case = sorted(case, key=lambda row: -rank[axis_value(row, asked.axis)])  # noqa: PLW2901
        best = best_of(case, asked.quantity, asked.is_low)
        if best is None:
            continue
        value = axis_value(best, asked.axis)
        rivals = [
            rival
            for other, own in grouped(case, (asked.axis,)).items()
            if other != (value,) and (rival := best_of(own, asked.quantity, asked.is_low)) is not None
        ]
        ties = [rival for rival in rivals if is_tie(best, rival, asked.quantity)]
        behind = best_of([rival for rival in rivals if rival not in ties], asked.quantity, asked.is_low)
        cases.append((best, behind, ties))
    if not cases:
        return Found("none")
    if len(cases) == 1:
        best, behind, ties = cases[0]
        value, where = axis_value(best, asked.axis), place(best, varied, {*told, asked.axis})
        words = f"{name_of(asked.axis, value)}, {figure(best, asked.quantity)}{_spaced(where)}"
        cells = {asked.axis: str(value), **figure_cells(best, asked.quantity), **({"where": where} if where else {})}
        if ties:
            tied = listed([name_of(asked.axis, axis_value(tie, asked.axis)) for tie in ties])
            words += f", a tie with {tied}"
            cells["a tie with"] = tied
        if behind is not None:
            name = name_of(asked.axis, axis_value(behind, asked.axis))
            following = f"{name}, {_value(behind, asked.quantity)}{_ratio(best, behind, asked.quantity)}"
            words += f"; next {following}"
            cells["next"] = following
        return Found(words, [best, *ties, *([behind] if behind is not None else [])], cells=cells)
    wins = Counter(axis_value(best, asked.axis) for best, _, _ in cases)
    words = "; ".join(
        f"{name_of(asked.axis, value)} in {count} of {len(cases)} cases{_ties_of(value, cases, asked.axis)}"
        for value, count in wins.most_common()
    )
    return Found(words, [best for best, _, _ in cases])


def _best_row(asked: Question, rows: Sequence[Row], varied: Sequence[str], told: set[str]) -> Found:
    """The row that is ahead of all others, and the best that differs from it in more than how it was scheduled."""
    kept = [row for row in rows if meets_all(asked.having, row)]
    best = best_of(kept, asked.quantity, asked.is_low)
    if best is None:
        return _none(asked, rows, varied, told)
    where = place(best, varied, told)
    words = f"{figure(best, asked.quantity)}{_spaced(where)}"
    cells = {**figure_cells(best, asked.quantity), **({"where": where} if where else {})}
    axis = next((each for each in ("device", "batch", "model", "dtype", "engine", "scheduler") if each in varied
                 and each not in told), None)  # fmt: skip
    if axis is None:
        return Found(words, [best], cells=cells)
    others = [row for row in kept if axis_value(row, axis) != axis_value(best, axis)]
    behind = best_of(others, asked.quantity, asked.is_low)
    if behind is None:
        return Found(words, [best], cells=cells)
    link = "a tie with" if is_tie(best, behind, asked.quantity) else "next"
    cells[link] = f"{_value(behind, asked.quantity)} {place(behind, varied, told)}"
    return Found(f"{words}; {link} {cells[link]}", [best, behind], cells=cells)


def _none(asked: Question, rows: Sequence[Row], axes: Iterable[str], told: set[str]) -> Found:
    """No row is as asked for: which comes nearest, if that can be told."""
    nearest = _nearest(asked.having, rows)
    if nearest is None:
        return Found("none")
    return Found(f"none; the nearest is {_missing(asked.having, nearest)} {place(nearest, axes, told)}", [nearest])


def _bounds(conditions: Conditions) -> list[tuple[str, str, float]]:
    """The conditions that bound a metric by a number: metric, comparison, number."""
    return [
        (name, sign, bound)
        for name, condition in conditions.items()
        if name in METRICS
        for sign, bound in (condition.bounds if isinstance(condition, Range) else ())
    ]


def _nearest(conditions: Conditions, rows: Sequence[Row]) -> Row | None:
    """The row that misses the bounds by the least factor, all in all."""

    def miss(row: Row) -> float:
        total = 1.0
        for name, sign, bound in _bounds(conditions):
            value = getattr(row, name)
            if value is None:
                return float("inf")
            factor = value / bound if sign in ("<", "<=") and bound else bound / value if value else float("inf")
            total *= max(1.0, factor)
        return total

    if not _bounds(conditions):
        return None
    nearest = min(rows, key=miss, default=None)
    return None if nearest is None or miss(nearest) == float("inf") else nearest


def _missing(conditions: Conditions, row: Row) -> str:
    """The figures of a row that the conditions bound."""
    names = dict.fromkeys(name for name, _, _ in _bounds(conditions))
    return " and ".join(Quantity(name).amount(getattr(row, name)) for name in names)


def _may_miss(conditions: Conditions, row: Row) -> str:
    """A warning, if an answer keeps a bound on the latency by less than its interval."""
    for name, sign, bound in _bounds(conditions):
        if name == "latency_ms" and sign in ("<", "<=") and row.high_ms is not None and row.high_ms > bound:
            return f"measuring may show more than {number(bound)} ms"
    return ""


def _ratio(best: Row, behind: Row, quantity: Quantity) -> str:
    one, other = quantity.of(best), quantity.of(behind)
    if not one or not other:
        return ""
    return f" ({max(one, other) / min(one, other):.2f}x)"


def _value(row: Row, quantity: Quantity) -> str:
    value = quantity.of(row)
    return "nothing" if value is None else quantity.amount(value)


def _ties_of(value: Label, cases: Sequence[tuple[Row, Row | None, list[Row]]], axis: str) -> str:
    tied = [ties for best, _, ties in cases if ties and axis_value(best, axis) == value]
    names = list(dict.fromkeys(str(axis_value(tie, axis)) for ties in tied for tie in ties))
    return f" ({len(tied)} a tie, with {listed(names)})" if tied else ""


def _spaced(text: str) -> str:
    return f" {text}" if text else ""
