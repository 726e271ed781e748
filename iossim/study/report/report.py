"""The report of a study as a page of HTML, with the data of its scripts as JSON; and a study in a notebook."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from rich.table import Table

from iossim._version import __version__
from iossim.base.display import Picture, counted
from iossim.base.errors import OptionError
from iossim.base.tables import Cell, Column, records_table
from iossim.base.user_files import write_atomically
from iossim.report import notebook
from iossim.report.figures.figure import Figure, title_of
from iossim.report.figures.vega import dark, libraries, light
from iossim.study.axes import METRICS, ROW_AXES
from iossim.study.report import layout
from iossim.study.report.plots import columns_of, figures, study_command
from iossim.study.study_run import Answer, StudyRun

#: Significant digits of numbers on the page; results.csv has all.
_DIGITS = 6
#: Columns of the table of rows after the axes, shown where any row has a value.
ROW_COLUMNS = columns_of("rows", *(metric.column for metric in METRICS.values() if metric.column is not None))
#: Columns that distinguish a rewritten network from the original.
OF_REWRITTEN = ("kernels", "gmacs", "traffic_mib")


def page_data(run: StudyRun, figures: Sequence[Figure]) -> str:
    """The JSON, safe inside a script element."""
    data = {
        "themes": {"light": light(), "dark": dark()},
        "table": {
            **_table(row_columns(run), row_records(run)),
            "filters": [*layout.varying(run.results.rows), "scheduler"],
        },
        "figures": {figure.name: _figure(figure) for figure in figures},
    }
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def row_records(run: StudyRun) -> list[dict[str, Cell]]:
    """Rows as a reader sees them: one record each."""
    return [
        {
            **{axis: getattr(row, axis) for axis in ROW_AXES},
            **{metric.column.key: getattr(row, name) for name, metric in METRICS.items() if metric.column is not None},
            "gap_percent": None if row.gap is None else 100 * row.gap,
            "rules": ", ".join(f"{name} ({times})" if times > 1 else name for name, times in row.rules.items()),
            "search_s": run.search_s.get((row.point, row.scheduler)),
            "ties": ", ".join(row.ties),
            "schedule": row.schedule,
            "reason": row.reason,
        }
        for row in run.results.rows
    ]


def row_columns(run: StudyRun) -> list[Column]:
    """The varying axes, the scheduler, and every column with values; some only if rules rewrote a network."""
    records = row_records(run)
    hidden = () if any(row.rules for row in run.results.rows) else OF_REWRITTEN
    filled = {key for record in records for key, cell in record.items() if cell not in (None, "") and key not in hidden}
    return [
        *layout.axis_columns(layout.varying(run.results.rows) or ["model"]),
        Column("scheduler"),
        *(column for column in ROW_COLUMNS if column.key in filled),
    ]


def _figure(figure: Figure) -> dict[str, object]:
    # Marks and filters of the panels read cells that no column shows.
    keys = dict.fromkeys(key for record in figure.records for key in record)
    hidden = [Column(key) for key in keys if key not in {column.key for column in figure.columns}]
    return {
        **_table((*figure.columns, *hidden), figure.records),
        "shown": len(figure.columns),
        "choices": [choice.key for choice in figure.choices],
        "panels": [{"where": dict(panel.where), "spec": panel.spec} for panel in figure.panels],
    }


def _table(columns: Sequence[Column], records: Sequence[Mapping[str, Cell]]) -> dict[str, object]:
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


def _packed(cells: Sequence[Cell]) -> dict[str, object]:
    """Numbers unchanged; words each once, with the index of each cell."""
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


_FOLDER = "iossim.study.report"
_SCRIPTS = ("columns.js", "table.js", "charts.js", "page.js")
_BESIDE = (
    "Beside this file: results.csv and results.json (all rows, all digits), schedules/ (every schedule), scenario.yaml."
)
#: These subjects of a study are at the top of its page even if they do not vary.
_SUBJECT = ("model", "device", "dtype", "batch", "scheduler")
#: The most lines of a list that are shown.
_MOST_FAILURES = 12


def write_report(run: StudyRun, path: Path) -> None:
    """Write the page; the same run gives the same bytes.

    Raises OptionError where altair, vl-convert-python or jinja2 is not installed, or where the scenario names a plot
    that is not known.
    """
    write_atomically(path, report(run))


def report(run: StudyRun) -> str:
    """The page as text; raises the errors of :func:`write_report`."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise OptionError("a report needs jinja2, which is not installed; pip install 'iossim[report]'") from None
    scripts = libraries()
    drawn = figures(run)
    results = run.results
    scenario = results.scenario
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(_file("page/page.html.j2"))
    text: str = page.render(
        version=__version__,
        title=scenario.title or scenario.name,
        name=scenario.name,
        description=scenario.description,
        axes=_axes(run),
        headline=next((each for each in results.answers if not each.source and len(each.cases) <= 1), None),
        answers=[answer for answer in results.answers if not answer.source],
        published=_published(run),
        failures=_failures(run),
        figures=drawn,
        remark=layout.remarks_in_words(results.rows),
        same=layout.fixed_in_words(results.rows),
        command=study_command(run),
        beside=_BESIDE,
        environment=json.dumps(run.environment, indent=1),
        scenario=scenario.model_dump_json(indent=1, exclude_defaults=True),
        style=_file("page.css", "iossim.report"),
        scripts="\n".join(_file(f"page/{name}") for name in _SCRIPTS),
        libraries=scripts,
        data=page_data(run, drawn),
    )
    return text


def _file(name: str, folder: str = _FOLDER) -> str:
    return (resources.files(folder) / name).read_text(encoding="utf-8")


def _axes(run: StudyRun) -> list[dict[str, str]]:
    """Values of the study's subject and of each varying axis, and the resulting numbers of points and schedules."""
    rows, varied = run.results.rows, layout.varying(run.results.rows)
    failed = sum(row.status == "failed" for row in rows)
    axes: list[dict[str, str]] = []
    for axis in ROW_AXES:
        if axis in varied or axis in _SUBJECT:
            values = list(map(str, layout.values_of(rows, axis)))
            said = ", ".join(values) if len(", ".join(values)) <= 48 else f"{values[0]} … {values[-1]} ({len(values)})"
            title = title_of(axis)
            plural = title if title.endswith("s") else f"{title}{'es' if title.endswith('ch') else 's'}"
            axes.append({"name": plural if len(values) > 1 else title, "value": said})
    made = f"{len(rows) - failed:,}" + (f" ({failed:,} failed)" if failed else "")
    return [*axes, {"name": "points", "value": f"{len(layout.points(run)):,}"}, {"name": "schedules", "value": made}]


def _published(run: StudyRun) -> list[tuple[str, str, Answer | None]]:
    """Published findings and their sources, with the answer found; None without a claim."""
    found = {(answer.question, answer.source): answer for answer in run.results.answers if answer.source}
    said = ((each.says, each.source) for each in run.results.scenario.published)
    return [(*place, found.get(place)) for place in said]


def _failures(run: StudyRun) -> list[tuple[int, str, str]]:
    """Number of failed rows by reason, the most frequent first; the reason, and the first of the rows."""
    failed = [row for row in run.results.rows if row.status == "failed"]
    axes = layout.varying(run.results.rows)
    first = {row.reason: f"{layout.point_label(row, axes)}, {row.scheduler}" for row in reversed(failed)}
    counts = Counter(row.reason for row in failed).most_common(_MOST_FAILURES)
    return [(count, reason, first[reason]) for reason, count in counts]


#: Rows of the table on the terminal; results.csv and the report have all.
_ROWS_SHOWN = 40


def printed(run: StudyRun) -> Iterator[tuple[str | Table, str]]:
    """A run as the terminal has it: sentences and tables, and the style of each."""
    results = run.results
    yield results.scenario.title or results.scenario.name, "bold"
    if same := layout.fixed_in_words(results.rows):
        yield same, ""
    for answer in results.answers:
        # A claim is its authors'; this study's finding is printed below it.
        yield f"published: {answer.question} ({answer.source})" if answer.source else answer.question, "bold"
        if len(answer.cases) > 1:
            keys = list(dict.fromkeys(key for case in answer.cases for key in case))
            told = [{key: case.get(key, "") for key in keys} for case in answer.cases]
            yield records_table("", told, [Column(key, key, wraps=True) for key in keys]), ""
        else:
            yield f"  {answer.answer}", ""
    rows = [row for row in results.rows if row.status == "ok"]
    if rows:
        axes = [*(layout.varying(rows) or ["model"]), "scheduler"]
        figures = [METRICS[name].column for name in ("latency_ms", "speedup", "stages", "published_ms")]
        records = [record for record in row_records(run) if record["latency_ms"] is not None]
        yield records_table("", records[:_ROWS_SHOWN], [*map(Column, axes), *filter(None, figures)]), ""
    if sentence := layout.remarks_in_words(rows):
        yield sentence, "dim"
    if len(rows) > _ROWS_SHOWN:
        yield f"{len(rows) - _ROWS_SHOWN} more rows are in results.csv", ""
    failed = Counter(row.reason for row in results.rows if row.status == "failed")
    yield from ((f"failed, {counted(count, 'row')}: {reason}", "red") for reason, count in failed.items())


@notebook.parts.register
def _(run: StudyRun) -> list[str | Table]:
    return [part for part, _ in printed(run)]


@notebook.picture.register
def _(run: StudyRun, name: str | None = None) -> Picture:
    drawn = figures(run, None if name is None else [name])
    if not drawn:
        raise OptionError(f"study {run.results.scenario.name!r} has no figure; name one, as plot(name='latency')")
    return notebook.svg(drawn[0])


@notebook.records.register
def _(run: StudyRun) -> list[dict[str, object]]:
    return [row.model_dump() for row in run.results.rows]
