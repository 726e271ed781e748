"""The page as text: a frame of HTML, the graph as SVG, and the rest as JSON that the script draws."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import NamedTuple

from iossim._version import __version__
from iossim.execution.engine import Engine
from iossim.execution.execution import Span
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.network import Network
from iossim.ir.shown_names import shown_names
from iossim.report.colours import kind_colour, kind_colours, legend_colours, text_on
from iossim.report.explanation import overview, short_lines
from iossim.report.figures.graph import NAME_PARTS, WAIT, graph_svg, unit_facts, unit_names
from iossim.report.figures.timeline import stage_extents
from iossim.report.notebook import html_table
from iossim.report.schedule_tables import headline, path_lines, repeats, schedule_facts, wait_words
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.tasks.comparison import Comparison, comparison_table
from iossim.tasks.explain import Explanation
from iossim.tasks.stream_explain import StreamExplanation

_FOLDER = "iossim.report.schedule_page"
#: Begin of the sentence on the other engine, which stands above the timeline.
_OTHER_ENGINE = "With --engine "


class Recording(NamedTuple):
    """Kernels of a recorded run, those of no unit with an empty ``unit``, and what was recorded."""

    title: str
    spans: tuple[Span, ...]


#: Title of the table, and of its columns beside the time: of stages, and of streams.
_STAGES = "Stages", "stage", "units, a line for each stream"
_LAUNCHES = "Launches", "stream", "launches in the order of their starts"


def schedule_page(
    network: Network,
    schedule: AnySchedule,
    spans: Sequence[Span],
    said: Sequence[str] = (),
    explanation: Explanation | StreamExplanation | None = None,
    sequential_us: float | None = None,
    comparison: Comparison | None = None,
    recorded: Recording | None = None,
) -> str:
    """The page of a schedule whose kernels run as ``spans`` say; equal arguments give equal text.

    ``said`` are the sentences that the terminal prints. ``sequential_us``, if known, is the baseline latency of the
    speed-up. A ``comparison`` of which the schedule is the best is shown as a table. Streams need their explanation.
    What was ``recorded`` of a run is drawn below the simulated timeline.
    """
    shown = shown_names(network)
    network, schedule, spans, explanation = shown((network, schedule, tuple(spans), explanation))
    kinds = kind_colours(main_kind(network, unit) for unit in network.units)
    swatches = {name: f"background:{colour}" for name, colour in legend_colours(kinds).items()}
    lines = list(said)
    if isinstance(schedule, Schedule):
        assert not isinstance(explanation, StreamExplanation), "a schedule of stages has stages to explain"
        (title, label, content), rows = _STAGES, _stage_rows(network, schedule, spans, explanation)
        swatches[Engine.named(schedule.engine or Engine.GRAPH).facts.between] = "background:var(--gap)"
        lines += overview(explanation)[1:] if explanation else []
        waits, row_of = [], {}
    else:
        assert isinstance(explanation, StreamExplanation), "a schedule of streams is drawn as its explanation"
        (title, label, content), rows = _LAUNCHES, _launch_rows(network, explanation)
        swatches |= {"critical path": "border:2px solid var(--ink)", "wait": f"height:2px;background:{WAIT}"}
        lines += path_lines(explanation)
        waits, row_of = _waits(explanation), {one.unit: row for row, one in enumerate(explanation.launches)}
    data = {
        "label": label,
        "content": content,
        "units": _units(network),
        "stages": rows,
        "kernels": _kernels(network, schedule, spans, row_of),
        "waits": waits,
        "recorded": {
            "title": "" if recorded is None else recorded.title,
            # Recorded kernels are in no row of the table; one of no known unit has none.
            "kernels": [] if recorded is None else [_kernel(network, -1, one, [one.unit]) for one in recorded.spans],
        },
    }
    lines = [
        line for line in lines if comparison is None or line not in comparison.remarks
    ]  # these are below its table
    first = [line.removeprefix("note: ") for line in lines if line.removeprefix("note: ").startswith(_OTHER_ENGINE)]
    return Template(_file(_FOLDER, "page.html")).substitute(
        version=__version__,
        title=escape(f"{schedule.network} on {schedule.device}"),
        headline=escape(headline(schedule, sequential_us)),
        facts="".join(f'<p class="lead">{escape(line)}</p>' for line in (schedule_facts(schedule), *first)),
        rows=title,
        said="".join(f"<p>{escape(line)}</p>" for line in lines if line.removeprefix("note: ") not in first),
        compared="" if comparison is None else _compared(comparison),
        legend="".join(
            f'<li><span class="swatch" style="{style}"></span>{escape(name)}</li>' for name, style in swatches.items()
        ),
        graph=graph_svg(network, schedule, background=False),
        style=_file("iossim.report", "page.css") + _file(_FOLDER, "page.css"),
        script=_file(_FOLDER, "page.js"),
        data=json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"),
    )


def _compared(comparison: Comparison) -> str:
    table = html_table(comparison_table(comparison.rows))
    label = "Table of schedulers: latencies, stages and bounds"
    inside = f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{table}</div>'
    said = "".join(f"  <p>{escape(line)}</p>\n" for line in comparison.remarks)
    return f'  <h2 id="compared">Schedulers compared</h2>\n  {inside}\n{said}'


def _stage_rows(
    network: Network, schedule: Schedule, spans: Sequence[Span], explanation: Explanation | None
) -> list[dict[str, object]]:
    """Stages in order, with their times in microseconds; ``repeats`` of a stage are folded into one row."""
    extents = {extent.number: extent for extent in stage_extents(schedule, spans)}
    explained = explanation.stages if explanation else ()
    why = {one.number: [line.strip() for line in short_lines(one)[1:]] for one in explained}
    folds = {fold.first: fold for fold in repeats(schedule)}
    rows: list[dict[str, object]] = []
    for number, (block, stage) in enumerate(schedule.named_stages):
        extent = extents.get(number)
        before = f" + {stage.boundary_us:.1f}" if round(stage.boundary_us, 1) else ""
        rows.append(
            {
                "label": str(number),
                "block": block,
                "start": None if extent is None else round(extent.start_us, 3),
                "end": None if extent is None else round(extent.end_us, 3),
                "takes": f"{stage.latency_us:.1f}{before}",
                "merged": stage.strategy is Strategy.MERGE,
                "groups": [_numbers(network, group) for group in stage.groups],
                "why": why.get(number, []),
                **(
                    {"fold": [folds[number].count, f"{folds[number].blocks}: {folds[number].words}"]}
                    if number in folds
                    else {}
                ),
            }
        )
    return rows


def _launch_rows(network: Network, found: StreamExplanation) -> list[dict[str, object]]:
    """Launches in the order of their starts."""
    return [
        {
            "label": str(one.stream),
            "start": round(one.start_us, 3),
            "end": round(one.end_us, 3),
            "takes": f"{one.end_us - one.start_us:.1f}",
            "merged": len(found.units_of[one.unit]) > 1,
            "critical": one.is_critical,
            "groups": [_numbers(network, found.units_of[one.unit])],
            "why": wait_words(one),
        }
        for one in found.launches
    ]


def _numbers(network: Network, units: Iterable[str]) -> list[int]:
    return [network.unit_index[unit] for unit in units]


def _units(network: Network) -> list[dict[str, str]]:
    (short, shortest), found = [unit_names(network, apart) for apart in NAME_PARTS], []
    for unit in network.units:
        colour = kind_colour(main_kind(network, unit))
        facts = {"facts": unit_facts(network, unit), "colour": colour, "ink": text_on(colour)}
        found.append({"name": unit.name, "short": short[unit.name], "shortest": shortest[unit.name], **facts})
    return found


def _kernels(
    network: Network, schedule: AnySchedule, spans: Sequence[Span], row_of: Mapping[str, int]
) -> list[list[object]]:
    """Each kernel as :func:`_kernel`; ``row_of`` are the rows of launches."""
    members = {} if isinstance(schedule, Schedule) else {"+".join(one.units): one.units for one in schedule.launches}
    found: list[list[object]] = []
    for span in spans:
        of = members.get(span.unit, [span.unit])
        if isinstance(schedule, Schedule) and (stage := schedule.stages[span.stage]).strategy is Strategy.MERGE:
            of = stage.units
        found.append(_kernel(network, row_of.get(span.unit, span.stage), span, of))
    return found


def _kernel(network: Network, row: int, span: Span, units: Iterable[str]) -> list[object]:
    """Row, lane, start and end in microseconds, name and units of a kernel."""
    times = round(span.start_us, 3), round(span.end_us, 3)
    return [row, span.stream, *times, span.name, _numbers(network, filter(None, units))]


def _waits(found: StreamExplanation) -> list[list[float]]:
    """Lanes and times of each wait for another stream, from the end of one launch to the start of another; and whether
    it is on the critical path.
    """
    lines: list[list[float]] = []
    for source, one in found.waits:
        critical = one.is_critical and one.behind == source.unit
        lines.append([source.stream, round(source.end_us, 3), one.stream, round(one.start_us, 3), int(critical)])
    return lines


def _file(folder: str, name: str) -> str:
    return (resources.files(folder) / name).read_text(encoding="utf-8")
