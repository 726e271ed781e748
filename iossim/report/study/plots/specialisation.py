"""The specialisation matrix: the schedules of each batch size or device, run at each of them (IOS, table 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from iossim.base.tables import Cell, Column, number_of
from iossim.report.figures.figure import Figure, title_of
from iossim.report.figures.vega import heat_map
from iossim.report.study import layout
from iossim.report.study.plots import Plot
from iossim.report.study.plots.bars import three_digits
from iossim.study.row_comparison import axis_value
from iossim.study.study_run import CrossPrice, Row, StudyRun

#: The darkest colour stands for this or more: a few percent must not look large.
_LEAST_SCALE_PERCENT = 20.0
#: Two equal latencies may differ by this much through rounding.
_FASTEST_PERCENT = 1e-4


def _plot(axis: Literal["device", "batch"], order: int) -> Plot:
    name = f"{axis}_specialisation"
    return Plot(
        name,
        order,
        lambda run: any(price.axis == axis for price in run.results.cross),
        lambda run: _draw(run, axis, name),
    )


def _draw(run: StudyRun, axis: Literal["device", "batch"], name: str) -> Figure | None:
    prices = _with_own(run, axis)
    if not prices:
        return None
    first = {number: rows[0] for number, rows in layout.points(run).items()}
    others = [other for other in layout.varying(run.results.rows) if other != axis]
    records = tuple(_records(prices, first, others))
    crossed = [first[number] for number in dict.fromkeys(price.run_at for price in prices)]
    names: list[Cell] = [str(value) for value in layout.values_of(crossed, axis)]
    panel, choices = layout.panels_and_choices(crossed, [axis])
    titles = {
        "run_at": f"run at: {title_of(axis)}",
        "made_for": f"made for: {title_of(axis)}",
        "slower_percent": "slower than the best (%)",
        "latency": "latency",
        "slower": "slower than the best there",
    }
    spec = heat_map(
        "run_at", "made_for", "slower_percent", "text", titles=titles, x_values=names, y_values=names,
        most=max(_LEAST_SCALE_PERCENT, *(number_of(record["slower_percent"]) for record in records)),
        tooltips=("latency", "slower"), outlined="own",
    )  # fmt: skip
    several = len({record["scheduler"] for record in records}) > 1
    return Figure(
        name=name,
        title=f"Specialisation for the {title_of(axis)}",
        finding=_finding(records, others),
        caption=(
            "The schedule that was made for the row's setting, run at the column's: its latency in ms, and as colour "
            "how much slower it is than the fastest schedule of that column, in percent. Framed and bold are schedules "
            "run where they were made for; ≈ marks ties with that one: the difference is within the noise."
        ),
        alt=f"Matrix of latencies: schedules by the {title_of(axis)} that they were made for, against the one they run "
        "at.",
        columns=(
            *layout.axis_columns(others),
            Column("scheduler"),
            Column("made_for", "made for"),
            Column("run_at", "run at"),
            Column("latency_ms", digits=3),
            Column("slower_percent", "slower than the best", digits=1),
            Column("note"),
        ),
        records=records,
        panels=layout.panels(crossed, panel, spec),
        choices=(*((Column("scheduler"),) if several else ()), *choices),
    )


def _with_own(run: StudyRun, axis: Literal["device", "batch"]) -> list[CrossPrice]:
    """The prices of an axis, and those of the schedules where they were made, which the rows have."""
    prices = [price for price in run.results.cross if price.axis == axis]
    concerned = {(point, price.scheduler) for price in prices for point in (price.made_for, price.run_at)}
    copied = ("scheduler", "latency_ms", "reason")
    own = [
        CrossPrice(axis=axis, made_for=row.point, run_at=row.point, **{name: getattr(row, name) for name in copied})
        for row in run.results.rows
        if (row.point, row.scheduler) in concerned
    ]
    found = {(price.scheduler, price.made_for, price.run_at): price for price in (*own, *prices)}
    # The order is that of the points, so that rows and columns of the matrix have it.
    return sorted(found.values(), key=lambda price: (price.run_at, price.made_for))


def _records(prices: Sequence[CrossPrice], first: Mapping[int, Row], others: Sequence[str]) -> list[dict[str, Cell]]:
    """A record for each cell; those of the scheduler that searched most come first."""
    best_ms: dict[tuple[str, int], float] = {}
    for price in prices:
        if price.latency_ms is not None:
            key = (price.scheduler, price.run_at)
            best_ms[key] = min(best_ms.get(key, price.latency_ms), price.latency_ms)
    schedulers = list(dict.fromkeys(price.scheduler for price in prices))
    ordered = sorted(prices, key=lambda price: -schedulers.index(price.scheduler))
    return [_record(price, first, others, best_ms.get((price.scheduler, price.run_at))) for price in ordered]


def _record(price: CrossPrice, first: Mapping[int, Row], others: Sequence[str], best: float | None) -> dict[str, Cell]:
    made_for, run_at = first[price.made_for], first[price.run_at]
    latency_ms = price.latency_ms
    slower = None if latency_ms is None or not best else 100 * (latency_ms / best - 1)
    own = price.made_for == price.run_at
    tie = price.tie and not own
    written = "failed" if latency_ms is None else three_digits(latency_ms)
    return {
        **layout.coordinates(made_for, others),
        "scheduler": price.scheduler,
        "made_for": str(axis_value(made_for, price.axis)),
        "run_at": str(axis_value(run_at, price.axis)),
        "latency_ms": latency_ms,
        "slower_percent": slower,
        "text": f"{written} ≈" if tie else written,
        "latency": "failed" if latency_ms is None else f"{latency_ms:.4g} ms",
        "slower": "" if slower is None else f"{slower:.1f} %",
        "own": own,
        "note": price.reason or ("tie" if tie else ""),
    }


def _finding(records: Sequence[Mapping[str, Cell]], others: Sequence[str]) -> str:
    """The number of settings whose own schedule is the best there, and the cost of the worst mismatch."""
    scheduler = records[0]["scheduler"]
    priced = [r for r in records if r["scheduler"] == scheduler and r["slower_percent"] is not None]
    own = [record for record in priced if record["own"]]
    rivals = [record for record in priced if record["note"] == "tie" and not record["slower_percent"]]
    # A schedule that is the fastest where it was made for, or ties with another that is.
    same = ("run_at", *others)
    tied = {tuple(record[key] for key in same) for record in rivals}
    best = sum(
        number_of(record["slower_percent"]) < _FASTEST_PERCENT or tuple(record[key] for key in same) in tied
        for record in own
    )
    worst = max(priced, key=lambda record: number_of(record["slower_percent"]), default=None)
    said = f"In {best} of {len(own)} settings the {scheduler} schedule made for it is the fastest, or ties with it"
    if worst is None or not number_of(worst["slower_percent"]):
        return f"{said}, and every other is as fast."
    where = ", ".join(layout.panel_title(axis, worst[axis]) for axis in others)
    places = f"{f'{where}: ' if where else ''}made for {worst['made_for']}, run at {worst['run_at']}"
    return f"{said}; the worst mismatch costs {number_of(worst['slower_percent']):.0f} % ({places})."


PLOTS = (_plot("batch", 40), _plot("device", 41))
