"""A study in a notebook (:mod:`iossim.report.notebook`)."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from iossim.base.display import Picture
from iossim.base.errors import OptionError
from iossim.base.tables import records_table
from iossim.report.notebook import (
    MOST_ROWS,
    TO_ALL,
    folded,
    html,
    html_table,
    lines,
    parts,
    picture,
    records,
    svg,
    whole,
)
from iossim.study.report.layout import varying
from iossim.study.report.plots import figures
from iossim.study.report.report import row_columns, row_records
from iossim.study.study_run import StudyRun


@parts.register
def _(run: StudyRun) -> list[str | Table]:
    scenario, count = run.results.scenario, len(run.results.rows)
    answers = [f"{answer.question} {answer.answer}" for answer in run.results.answers]
    shown = row_records(run)[:MOST_ROWS]
    table = records_table("", shown, row_columns(run, varying(run.results.rows) or ["model"]))
    name = f"the first {len(shown)} of {count:,} rows ({TO_ALL})" if count > len(shown) else f"{count} rows"
    return [scenario.title or scenario.name, *answers, name, table]


@html.register
def _(run: StudyRun) -> str:
    title, *answers, name, table = parts(run)
    assert isinstance(table, Table)
    return whole(str(title), lines(*map(str, answers)), folded(str(name), html_table(table)))


@picture.register
def _(run: StudyRun, name: str | None = None) -> Picture:
    drawn = figures(run, None if name is None else [name])
    if not drawn:
        raise OptionError(f"study {run.results.scenario.name!r} has no figure; name one, as plot(name='latency')")
    return svg(drawn[0])


@records.register
def _(run: StudyRun) -> list[dict[str, Any]]:
    return [row.model_dump() for row in run.results.rows]
