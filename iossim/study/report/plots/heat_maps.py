"""Heat maps: all points of a large study, the rules that rewrote each network (as in TASO, Jia et al., 2019), and the
specialisation matrix, the schedules of each batch size or device run at each of them (IOS, table 3).
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from iossim.base.tables import Cell, Column, number_of
from iossim.report.figures.figure import Figure, title_of
from iossim.report.figures.vega import heat_map
from iossim.study.axes import AXES, name_of
from iossim.study.report import layout
from iossim.study.report.plots import Plot, figure_of
from iossim.study.report.plots.bars import baseline_of, three_digits
from iossim.study.scenario import CrossAxis
from iossim.study.study_run import CrossPrice, StudyRun

#: The darkest colour means this often or more, so that rarely used rules remain visible.
_MOST = 20


def draw_rules(run: StudyRun) -> Figure | None:
    given = [rows[0] for rows in layout.points(run).values() if rows[0].status == "ok"]
    used = sum((Counter(row.rules) for row in given), Counter[str]())
    # Points whose networks no rule changed have nothing to show beside the others.
    kept = {row.rewrite for row in given if row.rules}
    rows = [row for row in given if row.rewrite in kept]
    if not rows:
        return None
    # The most used rules are at the top, and a network's rules below each other.
    names: list[Cell] = [name for name, _ in sorted(used.items(), key=lambda rule: (-rule[1], rule[0]))]
    others = [axis for axis in layout.varying(rows) if axis != "model"]
    titles = {"model": "network", "rule": "rule", "times": "times used", "text": "times used"}
    records: list[layout.Record] = [
        {**layout.coordinates(row, others), "model": row.model, "rule": name, "times": times, "text": str(times or "")}
        for row in rows
        for name in names
        for times in (row.rules.get(str(name), 0),)
    ]
    return figure_of(
        "rules",
        layout.layout(rows, ["model"], others),
        records,
        {"": heat_map(titles, layout.values_of(rows, "model"), names, most=_MOST, tooltips=("times",))},
        {"most": _MOST},
        finding=f"{names[0]} is used most: {used[str(names[0])]} times.",
    )


_FEW_POINTS = 12


def overview_fits(run: StudyRun) -> bool:
    """True for enough points: a few are clearer as bars."""
    rows = run.results.rows
    return (
        len(layout.varying(rows)) > 1
        and len(layout.points(run)) > _FEW_POINTS
        and len({row.scheduler for row in rows}) > 1
    )


def draw_overview(run: StudyRun) -> Figure | None:
    rows = run.results.rows
    axes = layout.varying(rows)
    if len(axes) < 2:
        return None
    # The axis of the shortest names runs along the top.
    x = min(axes, key=lambda axis: AXES[axis].column_rank)
    y = max((axis for axis in axes if axis != x), key=lambda axis: len(layout.values_of(rows, axis)))
    records: list[layout.Record] = []
    for number, members in layout.points(run).items():
        best, at = layout.best_of(members), layout.coordinates(members[0], axes)
        record: layout.Record = {
            "point": number,
            **at,
            "x": name_of(x, at[x]).removeprefix("batch "),
            "y": name_of(y, at[y]),
            "scheduler": None if best is None else best.scheduler,
            "speedup_x": None if best is None else best.speedup,
            "latency_ms": None if best is None else best.latency_ms,
            "text": "failed" if best is None or best.speedup is None else f"{best.speedup:.2f}",
            "latency": "failed" if best is None else f"{best.latency_ms:.4g} ms",
        }
        records.append(record)
    speedups = [float(record["speedup_x"]) for record in records if isinstance(record["speedup_x"], float)]
    if not speedups:
        return None
    baseline = baseline_of(run)
    titles = {
        "x": f"speed-up over {baseline}; {title_of(x)}",
        "y": title_of(y),
        "speedup_x": f"speed-up over {baseline} (×)",
        "text": "speed-up (×)",
        "scheduler": "best scheduler",
    }
    sides = (list(dict.fromkeys(record[key] for record in records)) for key in ("x", "y"))
    tooltips = ("text", "scheduler", "latency")
    return figure_of(
        "overview",
        layout.Layout(axes, layout.axis_columns(axis for axis in axes if axis not in (x, y))),
        records,
        {"": heat_map(titles, *sides, least=1.0, most=max(1.1, *speedups), tooltips=tooltips)},
        {"baseline": baseline},
        finding=layout.best_finding(run, "speedup"),
    )


#: The darkest colour means this or more: a few percent must not look large.
_LEAST_SCALE_PERCENT = 20.0


def _draw_specialisation(axis: CrossAxis, run: StudyRun) -> Figure | None:
    crossed = [price for price in run.results.cross if price.axis == axis]
    if not crossed:
        return None
    # The rows have the prices of schedules where they were made.
    concerned = {(point, price.scheduler) for price in crossed for point in (price.made_for, price.run_at)}
    own = [
        CrossPrice(axis=axis, made_for=row.point, run_at=row.point,
                   scheduler=row.scheduler, latency_ms=row.latency_ms, reason=row.reason)
        for row in run.results.rows
        if (row.point, row.scheduler) in concerned
    ]  # fmt: skip
    found = {(price.scheduler, price.made_for, price.run_at): price for price in (*own, *crossed)}
    # Rows and columns of the matrix follow the order of the points; the scheduler that searched most comes first.
    prices = sorted(found.values(), key=lambda price: (price.run_at, price.made_for))
    schedulers = list(dict.fromkeys(price.scheduler for price in prices))
    best_ms: dict[tuple[str, int], float] = {}
    for price in prices:
        if price.latency_ms is not None:
            key = (price.scheduler, price.run_at)
            best_ms[key] = min(best_ms.get(key, price.latency_ms), price.latency_ms)
    first = {number: rows[0] for number, rows in layout.points(run).items()}
    others = [other for other in layout.varying(run.results.rows) if other != axis]
    records: list[layout.Record] = []
    for price in sorted(prices, key=lambda price: -schedulers.index(price.scheduler)):
        latency_ms, best = price.latency_ms, best_ms.get((price.scheduler, price.run_at))
        slower = None if latency_ms is None or not best else 100 * (latency_ms / best - 1)
        is_own = price.made_for == price.run_at
        tie = price.tie and not is_own
        record: layout.Record = {
            **layout.coordinates(first[price.made_for], others),
            "scheduler": price.scheduler,
            "made_for": str(getattr(first[price.made_for], axis)),
            "run_at": str(getattr(first[price.run_at], axis)),
            "latency_ms": latency_ms,
            "slower_percent": slower,
            "text": "failed" if latency_ms is None else three_digits(latency_ms) + (" ≈" if tie else ""),
            "latency": "failed" if latency_ms is None else f"{latency_ms:.4g} ms",
            "slower": "" if slower is None else f"{slower:.1f} %",
            "own": is_own,
            "note": price.reason or ("tie" if tie else ""),
        }
        records.append(record)
    title = title_of(axis)
    titles = {
        "run_at": f"latency (ms), run {'on' if axis == 'device' else 'at'}: {title}",
        "made_for": f"made for: {title}",
        "slower_percent": "slower than the best (%)",
        "latency": "latency",
        "slower": "slower than the best there",
    }
    rows = [first[number] for number in dict.fromkeys(price.run_at for price in prices)]
    names: list[Cell] = [str(value) for value in layout.values_of(rows, axis)]
    most = max(_LEAST_SCALE_PERCENT, *(number_of(record["slower_percent"]) for record in records))
    worst = layout.most(records, "slower_percent")
    where = f"{layout.place_of(worst, others)}: " if others else ""
    return figure_of(
        f"{axis}_specialisation",
        layout.layout(rows, [axis], others, *([Column("scheduler")] if len(schedulers) > 1 else [])),
        records,
        {"": heat_map(titles, names, names, most=most, tooltips=("latency", "slower"), outlined="own")},
        {"axis": title},
        finding=(
            f"The worst mismatch costs {number_of(worst['slower_percent']):.0f} % ({where}{worst['scheduler']} made "
            f"for {worst['made_for']}, run at {worst['run_at']})."
        ),
    )


PLOTS = (
    Plot("overview", 5, overview_fits, draw_overview),
    Plot("batch_specialisation", 40, None, partial(_draw_specialisation, "batch")),
    Plot("device_specialisation", 41, None, partial(_draw_specialisation, "device")),
    Plot("rules", 45, None, draw_rules),
)
