"""What a notebook shows of networks, schedules, comparisons and studies (:class:`iossim.base.display.Displayed`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import singledispatch
from hashlib import sha256
from html import escape
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

from iossim.api import cost_model
from iossim.base.display import Picture
from iossim.base.errors import IossimError, OptionError
from iossim.base.tables import keyed_table, records_table
from iossim.cost.capabilities import DeviceCostModel
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.network import Network
from iossim.report.figures.bars import comparison_figure
from iossim.report.figures.figure import Figure
from iossim.report.figures.graph import graph_svg
from iossim.report.figures.pictures import svg_picture
from iossim.report.figures.schedule_timeline import timeline_figure
from iossim.report.schedule_words import schedule_table, summary
from iossim.report.study.layout import varying
from iossim.report.study.plots import figures
from iossim.report.study.report import row_columns, row_records
from iossim.schedule.fit import fit
from iossim.schedule.schedule import Schedule
from iossim.study.study_run import StudyRun
from iossim.tasks.comparison import Comparison, comparison_table
from iossim.transforms.replay import network_of

#: A graph of more units than these is not shown unless asked for, and of a table no more rows.
_MOST_UNITS, _MOST_ROWS = 300, 40


@singledispatch
def html(value: Any) -> str:
    """A value as HTML that stands alone: no scripts, nothing loaded."""
    raise TypeError(type(value))


@singledispatch
def picture(value: Any) -> Picture:
    """A value as a picture; raises OptionError where a library that draws it is not installed."""
    raise TypeError(type(value))


@singledispatch
def records(value: Any) -> list[dict[str, Any]]:
    """A value as the rows of a data frame."""
    raise TypeError(type(value))


@html.register
def _(network: Network) -> str:
    counts = network.statistics()
    row = {**counts, "macs": f"{counts['macs'] / 1e9:.2f} G", "parameters": f"{counts['parameters'] / 1e6:.2f} M"}
    title = f"{network.name}, batch {network.source.batch}, {network.precision}"
    if len(network.units) > _MOST_UNITS:
        graph = _lines(f"The graph has {len(network.units)} units; .plot() draws it")
    else:
        graph = f"<div style='max-height:420px;overflow:auto'>{graph_svg(network)}</div>"
    return _whole(title, html_table(keyed_table("", [row])), graph)


@picture.register
def _(network: Network, schedule: Schedule | None = None) -> Picture:
    return Picture(graph_svg(network, schedule))


@records.register
def _(network: Network) -> list[dict[str, Any]]:
    block_of = {unit: block.name for block in network.blocks for unit in block.units}
    graph = network.graph
    return [
        {
            "unit": unit.name,
            "block": block_of[number],
            "kind": unit.kind,
            "main_op": main_kind(network, unit),
            "ops": len(unit.nodes),
            "macs": sum(
                node.op.multiply_adds(graph.input_types(node), graph.output_types(node))
                for node in network.unit_nodes(unit)
            ),
            "reads": [network.units[other].name for other in network.predecessors[number]],
            "outputs": [str(graph.types[value]) for value in unit.outputs],
        }
        for number, unit in enumerate(network.units)
    ]


@html.register
def _(schedule: Schedule) -> str:
    title = f"{schedule.network} on {schedule.device}, batch {schedule.source.batch}, {schedule.scheduler}"
    try:
        drawn = f"<div style='overflow-x:auto'>{_drawn(schedule, network_of(schedule), titled=False).svg}</div>"
    except IossimError as error:  # a notebook shows the rest all the same
        drawn = _lines(f"No picture: {error}")
    stages = _folded(f"{len(schedule.stages)} stages", html_table(schedule_table(schedule)))
    return _whole(title, _lines(*summary(schedule).split("\n")), drawn, stages)


@picture.register
def _(schedule: Schedule, network: Network | None = None) -> Picture:
    if network is None:
        network = network_of(schedule)
    else:
        fit(schedule, network)
    return _drawn(schedule, network)


def _drawn(schedule: Schedule, network: Network, titled: bool = True) -> Picture:
    """The timeline; the graph, with stages as bands, where prices do not tell when a kernel runs."""
    if schedule.cost_model.get("name") != "simulator":
        return Picture(graph_svg(network, schedule))
    prices = cost_model("simulator", schedule.device, schedule.precision, schedule.engine)
    assert isinstance(prices, DeviceCostModel)
    return _svg(timeline_figure(network, schedule, prices.timeline(network, schedule)), titled)


@records.register
def _(schedule: Schedule) -> list[dict[str, Any]]:
    of_block = [(block.name, stage) for block in schedule.blocks for stage in block.stages]
    return [
        {
            "stage": number,
            "block": block,
            "strategy": str(stage.strategy),
            "groups": len(stage.groups),
            "units": stage.units,
            "latency_us": stage.latency_us,
            "boundary_us": stage.boundary_us,
        }
        for number, (block, stage) in enumerate(of_block)
    ]


@html.register
def _(comparison: Comparison) -> str:
    said = _lines(f"Best: {comparison.best_label}, {comparison.best_us / 1e3:.3f} ms", *comparison.remarks)
    return _whole(comparison.title, html_table(comparison_table("", comparison.rows)), said)


@picture.register
def _(comparison: Comparison) -> Picture:
    title = f"{comparison.network.name} on {comparison.device}, batch {comparison.batch}"
    return _svg(comparison_figure(title, {comparison.network.name: comparison.rows}))


@records.register
def _(comparison: Comparison) -> list[dict[str, Any]]:
    names = ("gap_percent", "error_percent", "left_out_percent")
    return [{**asdict(row), **{name: getattr(row, name) for name in names}} for row in comparison.rows]


@html.register
def _(run: StudyRun) -> str:
    scenario = run.results.scenario
    answers = [f"{answer.question} {answer.answer}" for answer in run.results.answers]
    shown, count = row_records(run)[:_MOST_ROWS], len(run.results.rows)
    table = records_table("", shown, row_columns(run, varying(run.results.rows) or ["model"]))
    name = f"the first {len(shown)} of {count:,} rows" if count > len(shown) else f"{count} rows"
    return _whole(scenario.title or scenario.name, _lines(*answers), _folded(name, html_table(table)))


@picture.register
def _(run: StudyRun, name: str | None = None) -> Picture:
    drawn = figures(run, None if name is None else [name])
    if not drawn:
        raise OptionError(f"study {run.results.scenario.name!r} has no figure; name one, as plot(name='latency')")
    return _svg(drawn[0])


@records.register
def _(run: StudyRun) -> list[dict[str, Any]]:
    return [row.model_dump() for row in run.results.rows]


def _svg(figure: Figure, titled: bool = True) -> Picture:
    """A figure as a picture, the first of its slices.

    Pictures of a notebook stand in one document, so that the ids of one must be no other's.
    """
    svg = svg_picture(figure, next(figure.slices(), {}), titled)
    own = sha256(svg.encode()).hexdigest()[:8]
    return Picture(re.sub(r"\b(clip|gradient_)(\d+)\b", rf"\g<1>{own}_\g<2>", svg))


def html_table(table: Table) -> str:
    """A table of :mod:`iossim.base.tables` as HTML: numbers to the right, units below the titles."""
    written = StringIO()
    console = Console(file=written, width=10_000, no_color=True)

    def text(cell: Any) -> str:
        written.seek(written.truncate(0))
        console.print(cell, end="", soft_wrap=True)
        return escape(written.getvalue().strip()).replace("\n", "<br>")

    columns = [(f" style='text-align:{column.justify}'", column) for column in table.columns]
    head = "".join(f"<th{style}>{text(column.header)}</th>" for style, column in columns)
    rows: Sequence[tuple[Any, ...]] = list(zip(*(column.cells for column in table.columns), strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{style}>{text(cell)}</td>" for (style, _), cell in zip(columns, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _lines(*texts: str) -> str:
    return "".join(f"<div>{escape(text)}</div>" for text in texts)


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


def _whole(title: str, *parts: str) -> str:
    return f"<div class='iossim'><b>{escape(title)}</b>{''.join(parts)}</div>"
