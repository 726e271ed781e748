"""Answers to the questions of a study, one sentence with figures each; ties within the noise are said.

:mod:`iossim.study.question_grammar` has the language, :mod:`iossim.study.claims` what becomes of claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from iossim.search.scheduler import scheduler_names
from iossim.study.answer_words import (
    Found,
    amount,
    figure,
    figure_cells,
    listed,
    number,
    place,
    quotient_amount,
    sentence,
)
from iossim.study.claims import judge
from iossim.study.points import labels_of
from iossim.study.question_grammar import parse_claim, parse_constraint, parse_question
from iossim.study.row_comparison import (
    axis_value,
    best_of,
    grouped,
    holds,
    is_tie,
    ordered,
    other_axes,
    quotient_value,
    varied_axes,
)
from iossim.study.scenario import Scenario
from iossim.study.sentences import (
    NUMBERS,
    BestOf,
    ComparisonSentence,
    Conditions,
    EndOfAxis,
    Holds,
    Labels,
    Quantity,
    Question,
    Quotient,
    Value,
)
from iossim.study.study_run import Answer, CrossPrice, Row


def meets(constraints: Sequence[str], row: Row) -> bool | None:
    """Whether a row meets all constraints that are about it; None without constraints. A failed row meets none."""
    if not constraints:
        return None
    if row.status != "ok":
        return False
    return all(holds(each.conditions, row) for each in map(_constraint, constraints) if holds(each.where, row))


@cache
def _constraint(text: str) -> Holds:
    return parse_constraint(text, None)


def answer(scenario: Scenario, rows: Sequence[Row], cross: Sequence[CrossPrice] = ()) -> list[Answer]:
    """Answers to the questions of a scenario, in its order, then its constraints, then the claims of publications.

    Rows that failed are left out, and the sentence says so. ``Answer.rows`` are places in ``rows``. Raises ScenarioError for
    a question that cannot be read.
    """
    labels = labels_of(scenario)
    places = {id(row): index for index, row in enumerate(rows)}
    # Of equals the last is named: whatever order a scenario lists schedulers in, the one that searched most.
    ranks = {name: rank for rank, name in enumerate(scheduler_names())}
    known = [row for row in rows if row.status == "ok"]
    known.sort(key=lambda row: (row.point, ranks.get(row.scheduler, -1)))
    failed = len(rows) - len(known)
    answers: list[Answer] = []

    def add(question: str, found: Found, source: str = "", cases: Sequence[dict[str, str]] = ()) -> None:
        words = sentence(found.words)
        if failed:
            words += f" {failed} of {len(rows)} rows failed and are left out."
        behind = sorted({places[id(row)] for row in found.rows})
        answers.append(
            Answer(
                question=question,
                answer=words,
                cases=list(cases),
                holds=found.holds,
                within_noise=found.within_noise,
                source=source,
                rows=behind,
            )
        )

    for text in scenario.questions:
        asked = parse_question(text, labels)
        if isinstance(asked, EndOfAxis | BestOf):
            parts = _answer(asked, known, labels)
            words = "; ".join(part.words for part in parts)
            rows_behind = [row for part in parts for row in part.rows]
            add(text, Found(words, rows_behind), cases=[part.cells for part in parts if part.cells])
        else:
            add(text, judge(asked, known, cross, labels))
    for text in scenario.constraints:
        add(text, _constrained(parse_constraint(text, labels), known))
    for published in scenario.published:
        if published.claim is not None:
            found = judge(parse_claim(published.claim, labels), known, cross, labels)
            add(published.says, found, published.source)
    return answers


def _answer(asked: Question, known: Sequence[Row], labels: Labels) -> list[Found]:
    """A question for each group on its own: of those that it names, and of models, which answer nothing for each other."""
    rows = [row for row in known if holds(asked.where, row)]
    if not rows:
        return [Found("No row is there to answer it")]
    varied = varied_axes(rows)
    axes = asked.for_each
    asks_for_models = "model" in axes or asked.axis == "model"
    if "model" in varied and not asks_for_models:
        axes = ("model", *axes)
    parts: list[Found] = []
    for values, group in grouped(rows, axes).items():
        told = set(axes)
        if isinstance(asked, EndOfAxis):
            found = _end_of_axis(asked, group, labels, varied, told)
        elif asked.axis:
            found = _best_on_axis(asked, group, labels, varied, told)
        else:
            found = _best_row(asked, group, varied, told)
        name = ", ".join(f"batch {value}" if isinstance(value, int) else value for value in values)
        cells = {**dict(zip(axes, map(str, values), strict=True)), **(found.cells or {"answer": found.words})}
        parts.append(replace(found, words=f"{name}: {found.words}" if name else found.words, cells=cells))
    return parts


def _end_of_axis(
    asked: EndOfAxis, rows: Sequence[Row], labels: Labels, varied: Sequence[str], told: set[str]
) -> Found:
    """The smallest or largest value with a row as asked for, and how far the one before it is from that."""
    values = ordered(rows, asked.axis, labels[asked.axis], asked.by)
    if asked.is_largest:
        values.reverse()
    quotients = [Quotient(column) for column in _columns(asked.having)] or [Quotient("latency_ms")]
    first = quotients[0]
    called = _called(asked.axis)
    for index, value in enumerate(values):
        own = [row for row in rows if axis_value(row, asked.axis) == value]
        best = best_of([row for row in own if holds(asked.having, row)], first, first.is_better_low)
        if best is None:
            continue
        size = _size(best, asked.by) if asked.axis == "device" else ""
        where = place(best, varied, {*told, asked.axis})
        words = [f"{called(value)}{f' ({size})' if size else ''}, "]
        words.append(" and ".join(figure(best, quotient) for quotient in quotients))
        words.append(_spaced(where))
        cells = {asked.axis: str(value), **({"size": size} if size else {})}
        for quotient in quotients:
            cells |= figure_cells(best, quotient)
        cells |= {"where": where} if where else {}
        behind = [best]
        if limit := _may_miss(asked.having, best):
            words.append(f", and {limit}")
        if index:
            before = values[index - 1]
            nearest = _nearest(asked.having, [row for row in rows if axis_value(row, asked.axis) == before])
            if nearest is not None:
                behind.append(nearest)
                order = "larger" if asked.is_largest else "smaller"
                missing = _missing(asked.having, nearest)
                words.append(f"; the next {order}, {called(before)}, has {missing} at best")
                cells[f"next {order}"] = f"{called(before)}, {missing}"
        return Found("".join(words), behind, cells=cells)
    nearest = _nearest(asked.having, rows)
    if nearest is None:
        return Found("none")
    where = place(nearest, {*varied, asked.axis}, told)
    return Found(f"none; the nearest is {_missing(asked.having, nearest)} {where}", [nearest])


def _best_on_axis(asked: BestOf, rows: Sequence[Row], labels: Labels, varied: Sequence[str], told: set[str]) -> Found:
    """Who is ahead wherever all else is equal."""
    cases: list[tuple[Row, Row | None, list[Row]]] = []
    for case in grouped([row for row in rows if holds(asked.having, row)], other_axes(asked.axis)).values():
        # Of equals the smallest value of an axis, which costs least; but the scheduler that searched most.
        order = ordered(case, asked.axis, labels[asked.axis])
        rank = {each: index for index, each in enumerate(order)}
        if asked.axis != "scheduler":
            case = sorted(case, key=lambda row: -rank[axis_value(row, asked.axis)])  # noqa: PLW2901
        best = best_of(case, asked.quotient, asked.is_low)
        if best is None:
            continue
        value = axis_value(best, asked.axis)
        rivals = [
            rival
            for other, own in grouped(case, (asked.axis,)).items()
            if other != (value,) and (rival := best_of(own, asked.quotient, asked.is_low)) is not None
        ]
        ties = [rival for rival in rivals if is_tie(best, rival, asked.quotient)]
        behind = best_of([rival for rival in rivals if rival not in ties], asked.quotient, asked.is_low)
        cases.append((best, behind, ties))
    if not cases:
        return Found("none")
    called = _called(asked.axis)
    if len(cases) == 1:
        best, behind, ties = cases[0]
        value, where = axis_value(best, asked.axis), place(best, varied, {*told, asked.axis})
        words = f"{called(value)}, {figure(best, asked.quotient)}{_spaced(where)}"
        cells = {asked.axis: str(value), **figure_cells(best, asked.quotient), **({"where": where} if where else {})}
        if ties:
            tied = listed([called(axis_value(tie, asked.axis)) for tie in ties])
            words += f", a tie with {tied}"
            cells["a tie with"] = tied
        if behind is not None:
            ratio = _ratio(best, behind, asked.quotient)
            following = f"{called(axis_value(behind, asked.axis))}, {_value(behind, asked.quotient)}{ratio}"
            words += f"; next {following}"
            cells["next"] = following
        return Found(words, [best, *ties, *([behind] if behind is not None else [])], cells=cells)
    wins = Counter(axis_value(best, asked.axis) for best, _, _ in cases)
    words = "; ".join(
        f"{called(value)} in {count} of {len(cases)} cases{_ties_of(value, cases, asked.axis)}"
        for value, count in wins.most_common()
    )
    return Found(words, [best for best, _, _ in cases])


def _best_row(asked: BestOf, rows: Sequence[Row], varied: Sequence[str], told: set[str]) -> Found:
    """The row that is ahead of all others, and the best that differs from it in more than how it was scheduled."""
    kept = [row for row in rows if holds(asked.having, row)]
    best = best_of(kept, asked.quotient, asked.is_low)
    if best is None:
        nearest = _nearest(asked.having, rows) if asked.having else None
        if nearest is None:
            return Found("none")
        return Found(
            f"none; the nearest is {_missing(asked.having, nearest)} {place(nearest, varied, told)}", [nearest]
        )
    where = place(best, varied, told)
    words = f"{figure(best, asked.quotient)}{_spaced(where)}"
    cells = {**figure_cells(best, asked.quotient), **({"where": where} if where else {})}
    axis = next((each for each in ("device", "batch", "model", "dtype", "engine", "scheduler") if each in varied
                 and each not in told), None)  # fmt: skip
    if axis is None:
        return Found(words, [best], cells=cells)
    others = [row for row in kept if axis_value(row, axis) != axis_value(best, axis)]
    behind = best_of(others, asked.quotient, asked.is_low)
    if behind is None:
        return Found(words, [best], cells=cells)
    link = "a tie with" if is_tie(best, behind, asked.quotient) else "next"
    cells[link] = f"{_value(behind, asked.quotient)} {place(behind, varied, told)}"
    return Found(f"{words}; {link} {cells[link]}", [best, behind], cells=cells)


def _constrained(constraint: Holds, rows: Sequence[Row]) -> Found:
    about = [row for row in rows if holds(constraint.where, row)]
    met = [row for row in about if holds(constraint.conditions, row)]
    return Found(f"{len(met)} of {len(about)} rows meet it", met)


def _columns(conditions: Conditions) -> list[str]:
    """The columns of numbers that conditions are about, each once."""
    found = [quantity.column for comparison in conditions for quantity in comparison.quantities]
    return [column for column in dict.fromkeys(found) if column in NUMBERS]


def _bounds(conditions: Conditions) -> list[tuple[str, str, float]]:
    """The conditions that bound a column by a number: column, operator, number."""
    turned = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
    found: list[tuple[str, str, float]] = []
    for comparison in conditions:
        for one, other, operator in _sides(comparison, turned):
            if isinstance(one, Quantity) and one.column in NUMBERS and isinstance(other, float):
                found.append((one.column, operator, other))
    return found


def _sides(comparison: ComparisonSentence, turned: dict[str, str]) -> list[tuple[object, object, str]]:
    operator = comparison.operator
    return [
        (comparison.left, comparison.right, operator),
        (comparison.right, comparison.left, turned.get(operator, operator)),
    ]


def _nearest(conditions: Conditions, rows: Sequence[Row]) -> Row | None:
    """The row that misses the bounds by the least factor, all in all."""

    def miss(row: Row) -> float:
        total = 1.0
        for column, operator, bound in _bounds(conditions):
            value = getattr(row, column)
            if value is None:
                return float("inf")
            factor = value / bound if operator in ("<", "<=") and bound else bound / value if value else float("inf")
            total *= max(1.0, factor)
        return total

    if not _bounds(conditions):
        return None
    nearest = min(rows, key=miss, default=None)
    return None if nearest is None or miss(nearest) == float("inf") else nearest


def _missing(conditions: Conditions, row: Row) -> str:
    """What a row has of the bounded columns."""
    columns = dict.fromkeys(column for column, _, _ in _bounds(conditions))
    return " and ".join(amount(column, getattr(row, column)) for column in columns)


def _may_miss(conditions: Conditions, row: Row) -> str:
    """Said where an answer keeps a bound on the latency by less than the interval."""
    for column, operator, bound in _bounds(conditions):
        if column == "latency_ms" and operator in ("<", "<=") and row.high_ms is not None and row.high_ms > bound:
            return f"measuring may show more than {number(bound)} ms"
    return ""


def _ratio(best: Row, behind: Row, quotient: Quotient) -> str:
    one, other = quotient_value(quotient, best), quotient_value(quotient, behind)
    if not one or not other:
        return ""
    return f" ({max(one, other) / min(one, other):.2f}x)"


def _value(row: Row, quotient: Quotient) -> str:
    value = quotient_value(quotient, row)
    return "nothing" if value is None else quotient_amount(quotient, value)


def _ties_of(value: Value, cases: Sequence[tuple[Row, Row | None, list[Row]]], axis: str) -> str:
    tied = [ties for best, _, ties in cases if ties and axis_value(best, axis) == value]
    names = list(dict.fromkeys(str(axis_value(tie, axis)) for ties in tied for tie in ties))
    return f" ({len(tied)} a tie, with {listed(names)})" if tied else ""


def _size(row: Row, by: str) -> str:
    """By what a device is small, and how much it has of it."""
    value = getattr(row, by)
    named = {"board_power_w": "by board power", "peak_tflops": "by fp32 peak"}[by]
    return f"{named}, {amount(by, value)}" if value is not None else ""


def _called(axis: str) -> Callable[[Value], str]:
    return (lambda value: f"batch {value}") if axis == "batch" else str


def _spaced(text: str) -> str:
    return f" {text}" if text else ""
