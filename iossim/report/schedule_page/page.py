"""The page as text: a frame of HTML, the graph as SVG, and the rest as JSON that the script draws."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from iossim._version import __version__
from iossim.execution.engine import Engine
from iossim.execution.execution import Span
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.network import Network
from iossim.report.colours import kind_colour, kind_colours, text_on
from iossim.report.explanation import overview, short_lines
from iossim.report.figures.graph import graph_svg, short_name, unit_facts
from iossim.report.figures.timeline import stage_extents
from iossim.report.notebook import html_table
from iossim.report.schedule_words import headline, schedule_facts
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Schedule
from iossim.tasks.comparison import Comparison, comparison_table
from iossim.tasks.explain import Explanation

_FOLDER = "iossim.report.schedule_page"


def schedule_page(
    network: Network,
    schedule: Schedule,
    spans: Sequence[Span],
    said: Sequence[str] = (),
    explanation: Explanation | None = None,
    sequential_us: float | None = None,
    comparison: Comparison | None = None,
) -> str:
    """The page of a schedule whose kernels run as ``spans`` say; equal arguments give equal text.

    ``said`` are the sentences that the terminal prints. ``sequential_us``, if known, is the baseline latency of the
    speed-up. A ``comparison`` of which the schedule is the best is shown as a table.
    """
    kinds = kind_colours(main_kind(network, unit) for unit in network.units)
    between = Engine.named(schedule.engine or Engine.GRAPH).facts.between
    legend = [*kinds.items(), (between, "var(--gap)")]
    return Template(_file(_FOLDER, "page.html")).substitute(
        version=__version__,
        title=escape(f"{schedule.network} on {schedule.device}"),
        headline=escape(headline(schedule, sequential_us)),
        facts=escape(schedule_facts(schedule)),
        said="".join(f"<p>{escape(line)}</p>" for line in (*said, *(overview(explanation)[1:] if explanation else ()))),
        compared="" if comparison is None else _compared(comparison),
        legend="".join(
            f'<li><span class="swatch" style="background:{colour}"></span>{escape(name)}</li>'
            for name, colour in legend
        ),
        graph=graph_svg(network, schedule, background=False),
        style=_file("iossim.report", "page.css") + _file(_FOLDER, "page.css"),
        script=_file(_FOLDER, "page.js"),
        data=json.dumps(
            _data(network, schedule, spans, explanation), separators=(",", ":"), ensure_ascii=False
        ).replace("<", "\\u003c"),
    )


def _compared(comparison: Comparison) -> str:
    table = html_table(comparison_table("", comparison.rows))
    label = "Table of schedulers: latencies, stages and bounds"
    inside = f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{table}</div>'
    said = "".join(f"  <p>{escape(line)}</p>\n" for line in comparison.remarks)
    return f'  <h2 id="compared">Schedulers compared</h2>\n  {inside}\n{said}'


def _data(
    network: Network, schedule: Schedule, spans: Sequence[Span], explanation: Explanation | None
) -> dict[str, Any]:
    """Units by number, stages in order, and kernels; times in microseconds."""
    number_of = network.unit_index
    extents = {extent.number: extent for extent in stage_extents(schedule, spans)}
    why = (
        {one.number: [line.strip() for line in short_lines(one)[1:]] for one in explanation.stages}
        if explanation
        else {}
    )
    blocks = [block.name for block in schedule.blocks for _ in block.stages]
    stages = []
    for number, stage in enumerate(schedule.stages):
        extent = extents.get(number)
        stages.append(
            {
                "block": blocks[number],
                "start": None if extent is None else round(extent.start_us, 3),
                "end": None if extent is None else round(extent.end_us, 3),
                "takes": round(stage.latency_us, 1),
                "before": round(stage.boundary_us, 1),
                "merged": stage.strategy is Strategy.MERGE,
                "groups": [[number_of[name] for name in group] for group in stage.groups],
                "why": why.get(number, []),
            }
        )
    units = []
    for unit in network.units:
        colour = kind_colour(main_kind(network, unit))
        units.append(
            {
                "name": unit.name,
                "short": short_name(unit.name),
                "facts": unit_facts(network, unit),
                "colour": colour,
                "ink": text_on(colour),
            }
        )
    kernels = []
    for span in spans:
        stage = schedule.stages[span.stage]
        of = stage.units if stage.strategy is Strategy.MERGE else [span.unit]
        times = [round(span.start_us, 3), round(span.end_us, 3)]
        kernels.append([span.stage, span.stream, *times, span.name, [number_of[name] for name in of]])
    return {"units": units, "stages": stages, "kernels": kernels}


def _file(folder: str, name: str) -> str:
    return (resources.files(folder) / name).read_text(encoding="utf-8")
