"""Heat maps: the rules that rewrote each network (as in TASO, Jia et al., 2019), and all points of a large study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from iossim.base.tables import Cell, Column, number_of
from iossim.report.figures.figure import Figure, Panel, title_of
from iossim.report.figures.vega import heat_map
from iossim.report.study import layout
from iossim.report.study.plots import Plot
from iossim.report.study.plots.bars import baseline_of
from iossim.study.axes import AXES, name_of
from iossim.study.study_run import Row, StudyRun

#: The darkest colour stands for this often or more, so that what is used now and then still shows.
_MOST = 20

_RULES = "rules"


def draw_rules(run: StudyRun) -> Figure | None:
    given = [rows[0] for rows in layout.points(run).values() if rows[0].status == "ok"]
    used = sum((Counter(row.rules) for row in given), Counter[str]())
    # Points whose networks no rule changed have nothing to show beside the others.
    kept = {row.rewrite for row in given if row.rules}
    rows = [row for row in given if row.rewrite in kept]
    if not rows:
        return None
    # The rules that are used most stand on top, and a network's rules below each other.
    names: list[Cell] = [name for name, _ in sorted(used.items(), key=lambda rule: (-rule[1], rule[0]))]
    others = [axis for axis in layout.varying(rows) if axis != "model"]
    panel, choices = layout.panels_and_choices(rows, ["model"])
    titles = {"model": "network", "rule": "rule", "times": "times used", "text": "times used"}
    records = tuple(
        {**layout.coordinates(row, others), "model": row.model, "rule": name, "times": times, "text": str(times or "")}
        for row in rows
        for name in names
        for times in (row.rules.get(str(name), 0),)
    )
    spec = heat_map(
        "model", "rule", "times", "text", titles=titles, x_values=layout.values_of(rows, "model"), y_values=names,
        most=_MOST, tooltips=("times",),
    )  # fmt: skip
    return Figure(
        name=_RULES,
        title="Rules that were used, by network",
        finding=_finding(rows),
        caption=(
            "How often each rule was applied on the way from the network as given to the fastest one that the search "
            f"found: the number, and as colour, which is darkest from {_MOST} times on. Rules that were used most "
            "stand on top; an empty column is a network that no rule made faster. Splits of splits, and functions of "
            "splits, tidy up after merges."
        ),
        alt="Matrix of how often each rule was used, rules against networks.",
        columns=(
            *layout.axis_columns(others),
            Column("model", title_of("model")),
            Column("rule"),
            Column("times", "times used", digits=0),
        ),
        records=records,
        printed=tuple(record for record in records if record["times"]),
        panels=layout.panels(rows, panel, spec),
        choices=choices,
    )


def _finding(rows: Sequence[Row]) -> str:
    """The rule that made the most networks faster, and those that none did."""
    networks = {row.model for row in rows}
    readers: dict[str, set[str]] = {}
    for row in rows:
        for name in row.rules:
            readers.setdefault(name, set()).add(row.model)
    name, models = max(readers.items(), key=lambda rule: (len(rule[1]), rule[0]))
    untouched = sorted(networks - {row.model for row in rows if row.rules})
    said = f"{name} is used in {len(models)} of {len(networks)} networks, more than any other rule"
    return f"{said}; none makes {', '.join(untouched)} faster." if untouched else f"{said}."


_FEW_POINTS = 12
_OVERVIEW = "overview"


def overview_fits(run: StudyRun) -> bool:
    """A few points are seen better as bars."""
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
    # The axis of the shortest names stands along the top.
    x = min(axes, key=lambda axis: AXES[axis].column_rank)
    y = max((axis for axis in axes if axis != x), key=lambda axis: len(layout.values_of(rows, axis)))
    choices = tuple(Column(axis, title_of(axis)) for axis in axes if axis not in (x, y))
    records = []
    for number, members in layout.points(run).items():
        best = layout.best_of(members)
        record: dict[str, Cell] = {
            "point": number,
            **layout.coordinates(members[0], axes),
            "x": layout.panel_title(x, getattr(members[0], x)).removeprefix("batch "),
            "y": layout.panel_title(y, getattr(members[0], y)),
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
        "x": title_of(x),
        "y": title_of(y),
        "speedup_x": f"speed-up over {baseline} (×)",
        "text": "speed-up (×)",
        "scheduler": "best scheduler",
    }
    spec = heat_map(
        "x", "y", "speedup_x", "text", titles=titles, x_values=_ordered(records, "x"), y_values=_ordered(records, "y"),
        least=1.0, most=max(1.1, *speedups), tooltips=("text", "scheduler", "latency"),
    )  # fmt: skip
    top = max(records, key=lambda record: number_of(record["speedup_x"]))
    return Figure(
        name=_OVERVIEW,
        title="All points at a glance",
        finding=(
            f"Scheduling is worth most at {_place(top, axes)}: {float(top['speedup_x'] or 0.0):.2f} times as fast as "
            f"{baseline}, by {top['scheduler']}."
        ),
        caption=f"Speed-up (×) of the fastest schedule of each point over {baseline}: number and colour say the same.",
        alt="Matrix of the speed-up of the best schedule of each point.",
        columns=(
            *layout.axis_columns(axes),
            Column("scheduler", "best scheduler"),
            Column("speedup_x", "speed-up"),
            Column("latency_ms", digits=3),
        ),
        records=tuple(records),
        panels=(Panel("", spec),),
        choices=choices,
    )


def _ordered(records: list[dict[str, Cell]], key: str) -> list[Cell]:
    return list(dict.fromkeys(record[key] for record in records))


def _place(record: Mapping[str, Cell], axes: list[str]) -> str:
    return ", ".join(name_of(axis, record[axis]) for axis in axes)


PLOTS = (
    Plot(_OVERVIEW, 5, overview_fits, draw_overview),
    Plot(_RULES, 45, lambda run: any(row.rules for row in run.results.rows), draw_rules),
)
