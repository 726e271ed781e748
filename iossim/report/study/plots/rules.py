"""The rules that rewrote each network, and how often, as TASO shows them (Jia et al., 2019)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from iossim.base.tables import Cell, Column
from iossim.report.figures.figure import Figure, title_of
from iossim.report.figures.heat_map import heat_map
from iossim.report.study.layout import (
    axis_columns,
    coordinates,
    panels,
    panels_and_choices,
    points,
    values_of,
    varying,
)
from iossim.report.study.plots import Plot
from iossim.study.study_run import Row, StudyRun

#: The darkest colour stands for this often or more, so that what is used now and then still shows.
_MOST = 20

_NAME = "rules"


def fits(run: StudyRun) -> bool:
    return any(row.rules for row in run.results.rows)


def draw(run: StudyRun) -> Figure | None:
    given = [rows[0] for rows in points(run).values() if rows[0].status == "ok"]
    used = sum((Counter(row.rules) for row in given), Counter[str]())
    # Points whose networks no rule changed have nothing to show beside the others.
    kept = {row.rewrite for row in given if row.rules}
    rows = [row for row in given if row.rewrite in kept]
    if not rows:
        return None
    # The rules that are used most stand on top, and a network's rules below each other.
    names: list[Cell] = [name for name, _ in sorted(used.items(), key=lambda rule: (-rule[1], rule[0]))]
    others = [axis for axis in varying(rows) if axis != "model"]
    panel, choices = panels_and_choices(rows, ["model"])
    titles = {"model": "network", "rule": "rule", "times": "times used", "text": "times used"}
    records = tuple(
        {**coordinates(row, others), "model": row.model, "rule": name, "times": times, "text": str(times or "")}
        for row in rows
        for name in names
        for times in (row.rules.get(str(name), 0),)
    )
    spec = heat_map(
        "model", "rule", "times", "text", titles=titles, x_values=values_of(rows, "model"), y_values=names, most=_MOST,
        tooltips=("times",),
    )  # fmt: skip
    return Figure(
        name=_NAME,
        title="Rules that were used, by network",
        finding=_finding(rows),
        caption=(
            "How often each rule was applied on the way from the network as given to the fastest one that the search found: the "
            f"number, and as colour, which is darkest from {_MOST} times on. Rules that were used most stand on top; an empty column "
            "is a network that no rule made faster. Splits of splits, and functions of splits, tidy up after merges."
        ),
        alt="Matrix of how often each rule was used, rules against networks.",
        columns=(
            *axis_columns(others),
            Column("model", title_of("model")),
            Column("rule"),
            Column("times", "times used", digits=0),
        ),
        records=records,
        printed=tuple(record for record in records if record["times"]),
        panels=panels(rows, panel, spec),
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


PLOTS = (Plot(_NAME, 45, fits, draw),)
