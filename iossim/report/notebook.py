"""Results in a notebook, and when printed (:class:`iossim.base.display.Displayed`): one function per kind of result and
way to show it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import singledispatch
from hashlib import sha256
from html import escape
from io import StringIO

from rich.console import Console
from rich.table import Table

from iossim.base.display import Picture, counted
from iossim.base.errors import IossimError, OptionError
from iossim.base.tables import Cell, keyed_table, plain_text
from iossim.execution.execution import Execution
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.network import Network
from iossim.ir.shown_names import shown_names
from iossim.prediction.tables import NetworkTable
from iossim.report.explanation import overview, slowest_lines
from iossim.report.figures.bars import comparison_figure
from iossim.report.figures.figure import Figure
from iossim.report.figures.graph import graph_svg
from iossim.report.figures.schedule_timeline import stream_figure, timeline_figure
from iossim.report.figures.timeline import active_warps_figure
from iossim.report.figures.vega import svg_picture
from iossim.report.schedule_tables import heading, run_words, said, schedule_table, summary
from iossim.report.search_words import comparison_lines, comparison_notes
from iossim.report.time_tables import predicted_table, remarks
from iossim.schedule.schedule import Schedule, Stage, StreamSchedule
from iossim.tasks.comparison import Comparison, comparison_table
from iossim.tasks.explain import Explanation, StageExplanation
from iossim.tasks.own_prices import own_prices
from iossim.tasks.stream_explain import explain_streams
from iossim.transforms.replay import in_units_of, network_of

#: A larger graph is shown only on request; a table shows no more rows.
_MOST_UNITS, MOST_ROWS = 300, 40
#: Says how to see all rows where only the slowest are printed.
TO_ALL = "to_dataframe() has all"


@singledispatch
def parts(value: object) -> list[str | Table]:
    """Sentences and tables, as the command line prints them for a value; the first is or has a title."""
    raise TypeError(type(value))


def text(value: object) -> str:
    """A value as the command line prints it, without colour."""
    return "\n".join(part if isinstance(part, str) else plain_text(part) for part in parts(value))


@singledispatch
def html(value: object) -> str:
    """A value as HTML that stands alone: no scripts, nothing loaded."""
    first, *rest = parts(value)
    made = [lines(part) if isinstance(part, str) else html_table(part) for part in (first, *rest)]
    return whole(first, *made[1:]) if isinstance(first, str) else whole(str(first.title), *made)


@singledispatch
def picture(value: object) -> Picture:
    """A value as a picture; raises OptionError where it has none, or a library that draws it is not installed."""
    raise OptionError(f"there is no picture of a {type(value).__name__}; to_dataframe() has its rows")


@singledispatch
def records(value: object) -> list[dict[str, object]]:
    """A value as the rows of a data frame."""
    raise TypeError(type(value))


@html.register
def _(network: Network) -> str:
    counts = network.statistics()
    row = counts | {"macs": f"{counts['macs'] / 1e9:.2f} G", "parameters": f"{counts['parameters'] / 1e6:.2f} M"}
    title = f"{network.name}, batch {network.source.batch}, {network.precision}"
    if len(network.units) > _MOST_UNITS:
        graph = lines(f"The graph has {len(network.units)} units; .plot() draws it")
    else:
        graph = f"<div style='max-height:420px;overflow:auto'>{graph_svg(network)}</div>"
    return whole(title, html_table(keyed_table("", [row])), graph)


@picture.register
def _(network: Network, schedule: Schedule | None = None) -> Picture:
    return Picture(graph_svg(network, schedule))


@records.register
def _(network: Network) -> list[dict[str, object]]:
    block_of = {unit: block.name for block in network.blocks for unit in block.units}
    graph, shown = network.graph, shown_names(network)
    return [
        {
            "unit": unit.name,
            "shown_as": shown(unit.name),
            "block": block_of[number],
            "kind": unit.kind,
            "main_op": main_kind(network, unit),
            "ops": len(unit.nodes),
            "macs": network.multiply_adds(unit),
            "reads": [network.units[other].name for other in network.predecessors[number]],
            "outputs": [str(graph.types[value]) for value in unit.outputs],
        }
        for number, unit in enumerate(network.units)
    ]


@html.register
def _(schedule: Schedule) -> str:
    shown = schedule
    try:
        network = network_of(schedule)
        drawn = f"<div style='overflow-x:auto'>{_drawn(schedule, network, titled=False).svg}</div>"
        shown = shown_names(network)(schedule)
    except IossimError as error:  # a notebook still shows the rest
        drawn = lines(f"No picture: {error}")
    stages = folded(counted(len(schedule.stages), "stage"), html_table(schedule_table(shown)))
    return whole(heading(schedule), lines(*summary(schedule).split("\n")), drawn, stages)


@picture.register
def _(schedule: Schedule, network: Network | None = None) -> Picture:
    return _drawn(schedule, in_units_of(schedule, network))


def _drawn(schedule: Schedule, network: Network, titled: bool = True) -> Picture:
    """The timeline; the graph, with stages as bands, where prices do not determine when a kernel runs."""
    prices = own_prices(schedule)
    if prices is None:
        return Picture(graph_svg(network, schedule))
    return svg(timeline_figure(network, schedule, prices.timeline(network, schedule)), titled)


@records.register
def _(schedule: Schedule) -> list[dict[str, object]]:
    return [_stage_record(number, *each) for number, each in enumerate(schedule.named_stages)]


def _stage_record(number: int, block: str, stage: Stage) -> dict[str, object]:
    return {
        "stage": number,
        "block": block,
        "strategy": str(stage.strategy),
        "groups": len(stage.groups),
        "units": stage.units,
        "latency_us": stage.latency_us,
        "boundary_us": stage.boundary_us,
    }


@parts.register
def _(comparison: Comparison) -> list[str | Table]:
    if not comparison.schedules:
        return [comparison.title]
    table = comparison_table(comparison.rows)
    return [comparison.title, table, *comparison_notes(comparison), *comparison_lines(comparison)]


@picture.register
def _(comparison: Comparison) -> Picture:
    return svg(comparison_figure(comparison.title, {comparison.network.name: comparison.rows}))


@records.register
def _(comparison: Comparison) -> list[dict[str, object]]:
    names = ("gap_percent", "error_percent", "left_out_percent")
    return [{**asdict(row), **{name: getattr(row, name) for name in names}} for row in comparison.rows]


@html.register
def _(found: Explanation) -> str:
    first, *rest = overview(found)
    slowest = sorted(found.stages, key=lambda one: -one.share)[:MOST_ROWS]
    rows = [{name: cell for name, cell in _explained(one).items() if isinstance(cell, Cell)} for one in slowest]
    hidden = len(found.stages) - len(rows)
    more = [f"{hidden} more: {TO_ALL}"] if hidden else []
    return whole(first, lines(*rest), html_table(keyed_table("", rows, digits=3)), lines(*more))


@records.register
def _(found: Explanation) -> list[dict[str, object]]:
    return list(map(_explained, found.stages))


def _explained(one: StageExplanation) -> dict[str, object]:
    return {
        **_stage_record(one.number, one.block, one.stage),
        "share": one.share,
        "limited_by": one.facts and one.facts.bound and str(one.facts.bound),
        "saves_us": one.saves_us,
        "own_units_otherwise_us": one.own and one.own.more_us,
        "next_best_us": one.next_best and one.next_best.more_us,
    }


@picture.register
def _(found: StreamSchedule, network: Network | None = None) -> Picture:
    network, prices = in_units_of(found, network), own_prices(found)
    if prices is None:
        return Picture(graph_svg(network))
    return svg(stream_figure(network, explain_streams(found, network, prices)))


@records.register
def _(found: StreamSchedule) -> list[dict[str, object]]:
    return [{"stream": stream, **launch.model_dump()} for stream, own in enumerate(found.streams) for launch in own]


def svg(figure: Figure, titled: bool = True) -> Picture:
    """A figure as a picture: its first slice.

    Pictures of a notebook are parts of one document, so their ids must be distinct.
    """
    svg = svg_picture(figure, next(figure.slices(), {}), titled)
    own = sha256(svg.encode()).hexdigest()[:8]
    svg = svg.replace("<svg ", "<svg style='max-width:100%;height:auto' ", 1)  # no wider than the cell
    return Picture(re.sub(r"\b(clip|gradient_)(\d+)\b", rf"\g<1>{own}_\g<2>", svg))


parts.register(
    NetworkTable, lambda found: [predicted_table(found, TO_ALL), *(f"note: {one}" for one in remarks(found))]
)
parts.register(Explanation, lambda found: [*overview(found), *slowest_lines(found, TO_ALL)])
parts.register(StreamSchedule, lambda found: [schedule_table(found), *said(found)])
parts.register(Execution, lambda run: [run_words(run)])
picture.register(Explanation, lambda found: picture(found.schedule))
picture.register(Execution, lambda run: svg(active_warps_figure("Active warps over time", {"schedule": run})))
records.register(NetworkTable, lambda found: [row.cells(list) for row in found.rows])
records.register(Execution, lambda run: [asdict(span) for span in run.spans])


def html_table(table: Table) -> str:
    """A table of :mod:`iossim.base.tables` as HTML: numbers to the right, units below the titles."""
    written = StringIO()
    console = Console(file=written, width=10_000, no_color=True)

    def text(cell: object) -> str:
        written.seek(written.truncate(0))
        console.print(cell, end="", soft_wrap=True)
        return escape(written.getvalue().strip()).replace("\n", "<br>")

    columns = [(f" style='text-align:{column.justify}'", column) for column in table.columns]
    head = "".join(f"<th{style}>{text(column.header)}</th>" for style, column in columns)
    rows: Sequence[tuple[object, ...]] = list(zip(*(column.cells for column in table.columns), strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{style}>{text(cell)}</td>" for (style, _), cell in zip(columns, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def lines(*texts: str) -> str:
    return "".join(f"<div>{escape(text)}</div>" for text in texts)


def folded(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


def whole(title: str, *parts: str) -> str:
    return f"<div class='iossim'><b>{escape(title)}</b>{''.join(parts)}</div>"
