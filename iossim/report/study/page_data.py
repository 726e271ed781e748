"""The data of the page's scripts as JSON: figures and the table of rows, by column so that it stays small."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from iossim.base.tables import Cell, Column
from iossim.report.figures.figure import Figure, title_of
from iossim.report.figures.vega import dark, light
from iossim.report.study.layout import varying
from iossim.study.axes import ROW_AXES
from iossim.study.metrics import METRICS
from iossim.study.study_run import Row, StudyRun

#: Significant digits of numbers on the page; results.csv has all.
_DIGITS = 6
#: Columns of the table of rows behind the axes, where any row has a value.
ROW_COLUMNS = (
    *(metric.column for metric in METRICS.values() if metric.column is not None),
    Column("rules", "rewritten by"),
    Column("search_s", "search", digits=3),
    Column("meets"),
    Column("ties", "ties with"),
    Column("schedule", "file"),
    Column("reason", "failed because"),
)
#: Columns that tell a rewritten network from the one that was given.
OF_REWRITTEN = ("kernels", "gmacs", "traffic_mib")


def page_data(run: StudyRun, figures: Sequence[Figure]) -> str:
    """The JSON, safe to stand in a script element."""
    axes = varying(run.results.rows) or ["model"]
    data = {
        "themes": {"light": light(), "dark": dark()},
        "table": {
            **_table(row_columns(run, axes), row_records(run)),
            "filters": [*varying(run.results.rows), "scheduler"],
        },
        "figures": {figure.name: _figure(figure) for figure in figures},
    }
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def row_records(run: StudyRun) -> list[dict[str, Cell]]:
    """The rows as a reader sees them: a record for each."""
    return [_row_record(row, run) for row in run.results.rows]


def row_columns(run: StudyRun, axes: Iterable[str]) -> list[Column]:
    """The axes that vary, the scheduler, and every column with values; some only if rules rewrote a network."""
    records = row_records(run)
    hidden = () if any(row.rules for row in run.results.rows) else OF_REWRITTEN
    kept = [
        column
        for column in ROW_COLUMNS
        if column.key not in hidden and any(record[column.key] not in (None, "") for record in records)
    ]
    return [*(Column(axis, title_of(axis)) for axis in axes), Column("scheduler"), *kept]


def _row_record(row: Row, run: StudyRun) -> dict[str, Cell]:
    return {
        **{axis: getattr(row, axis) for axis in ROW_AXES},
        **{metric.column.key: getattr(row, name) for name, metric in METRICS.items() if metric.column is not None},
        "gap_percent": None if row.gap is None else 100 * row.gap,
        "rules": ", ".join(f"{name} ({times})" if times > 1 else name for name, times in row.rules.items()),
        "search_s": run.search_s.get((row.point, row.scheduler)),
        "meets": None if row.meets is None else "yes" if row.meets else "no",
        "ties": ", ".join(row.ties),
        "schedule": row.schedule,
        "reason": row.reason,
    }


def _figure(figure: Figure) -> dict[str, Any]:
    # Marks and filters of the panels read cells that no column shows.
    keys = dict.fromkeys(key for record in figure.records for key in record)
    hidden = [Column(key) for key in keys if key not in {column.key for column in figure.columns}]
    return {
        **_table((*figure.columns, *hidden), figure.records),
        "shown": len(figure.columns),
        "choices": [choice.key for choice in figure.choices],
        "panels": [{"where": dict(panel.where), "spec": panel.spec} for panel in figure.panels],
    }


def _table(columns: Sequence[Column], records: Sequence[Mapping[str, Cell]]) -> dict[str, Any]:
    return {
        "columns": [
            {
                "key": column.key,
                "title": column.header.split("\n")[0],
                "unit": column.header.partition("\n")[2],
                "digits": column.digits,
                **_packed([record.get(column.key) for record in records]),
            }
            for column in columns
        ],
        "count": len(records),
    }


def _packed(cells: Sequence[Cell]) -> dict[str, Any]:
    """Numbers as they are; of words each one once, and which cell has which."""
    if all(cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool)) for cell in cells):
        numbers = [_rounded(cell) for cell in cells]
        return {"same": numbers[0]} if numbers and len(set(numbers)) == 1 else {"numbers": numbers}
    words = list(dict.fromkeys(cells))
    place = {word: index for index, word in enumerate(words)}
    return {"words": words, "codes": [place[cell] for cell in cells]}


def _rounded(cell: Cell) -> Cell:
    if not isinstance(cell, float):
        return cell
    short = float(f"{cell:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
