"""The graph of a network as SVG, from top to bottom, without Graphviz: one box per unit in the colour of its kind.

With a schedule of stages each stage is a band, each group a column, and the boxes of a merged stage are hatched; the
bands of neighbouring blocks differ in tint. Of streams each is a column, in the order of its launches, and waits are
lines of their own. Without a schedule a unit's row is its longest path from the inputs. Boxes have the attribute
``data-unit``, edges ``data-from`` and ``data-to``: the numbers of units, by which a page finds them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import NamedTuple

from iossim.base.display import counted
from iossim.hardware.lowering.unit import main_kind
from iossim.ir.network import Network, Unit
from iossim.ir.shown_names import shown_names
from iossim.report.colours import kind_colour, kind_colours, legend_colours, text_on
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import AnySchedule, Schedule, StreamSchedule
from iossim.schedule.streams import issue_order

_BOX_PIXELS, _BOX_HEIGHT_PIXELS, _GAP_PIXELS, _ROW_PIXELS, _BAND_PIXELS, _LABEL_PIXELS = 108, 22, 14, 34, 12, 92
#: Number of letters that fit in a box.
_LETTERS = 17
_FONT = "font-family='Liberation Sans, Arial, Helvetica, sans-serif'"
#: Colour of waits between streams.
WAIT = "#c0392b"
_LEGEND_LINE_PIXELS, _LETTER_PIXELS = 18, 5.6


@dataclass(frozen=True, slots=True)
class _Band:
    """Columns of units (numbers) beside each other."""

    columns: list[list[int]]
    label: str = ""
    merged: bool = False
    block: str = ""
    tint: float = 0.13


class _Place(NamedTuple):
    """Middle of a box, in pixels."""

    x: float
    y: float


def graph_svg(network: Network, schedule: AnySchedule | None = None, *, background: bool = True) -> str:
    """The picture as text; equal arguments give equal text. On a page of its own it has a white ``background``, and a
    legend.
    """
    waits: list[tuple[int, int]] = []
    network, schedule = shown_names(network)((network, schedule))
    if isinstance(schedule, StreamSchedule):
        left, columns = 0, len(schedule.streams)
        places, merged, bands, waits = _in_lanes(network, schedule)
        height = max((place.y for place in places.values()), default=0.0) + _BOX_HEIGHT_PIXELS / 2 + _BAND_PIXELS
    else:
        rows = _stages(network, schedule) if schedule is not None else _layers(network)
        left = _LABEL_PIXELS if schedule is not None else 0
        columns = max((len(band.columns) for band in rows), default=1)
        places, tops = _places(network, rows, left + (columns * (_BOX_PIXELS + _GAP_PIXELS) + _GAP_PIXELS) / 2)
        merged = {unit for band in rows if band.merged for column in band.columns for unit in column}
        width = left + columns * (_BOX_PIXELS + _GAP_PIXELS) + _GAP_PIXELS
        bands = list(_band_lines(rows, tops, width)) if schedule is not None else []
        height = tops[-1]
    width = left + columns * (_BOX_PIXELS + _GAP_PIXELS) + _GAP_PIXELS
    legend = _legend_lines(network, schedule, bool(merged), bool(waits), width) if background else []
    above = _LEGEND_LINE_PIXELS * len(legend)
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' class='graph' width='{width}' height='{above + height:g}' "
        f"viewBox='0 {-above} {width} {above + height:g}' {_FONT} font-size='10'>",
        "<defs><pattern id='hatch' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
        "<path d='M0 0V6' stroke='#fff' stroke-opacity='.45' stroke-width='2.5'/></pattern></defs>",
        *([f"<rect y='{-above}' width='{width}' height='{above + height:g}' fill='#fff'/>"] if background else []),
        *legend,
        *bands,
        *_edge_lines(places, network, waits),
        *_unit_lines(network, merged, places),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _legend_lines(network: Network, schedule: AnySchedule | None, merged: bool, waits: bool, width: float) -> list[str]:
    """Legend above the picture, a line each, from the lowest; ``merged`` and ``waits`` say whether there are some."""
    kinds = kind_colours(main_kind(network, unit) for unit in network.units)
    entries = [("■", colour, kind) for kind, colour in legend_colours(kinds).items()]
    entries += [("■", "#c9ccd1", "stage, tinted by block")] if isinstance(schedule, Schedule) else []
    entries += [("▨", "#555b61", "merged into one kernel")] if merged else []
    entries += [("┅", WAIT, "wait for another stream")] if waits else []
    lines, room = [""], 0.0
    for mark, colour, name in reversed(entries):
        room -= _LETTER_PIXELS * (len(name) + 4)
        if room < 0 and lines[-1]:
            lines.append("")
        if not lines[-1]:
            room = width - _LETTER_PIXELS * (len(name) + 6)
        drawn = f"<tspan fill='{colour}' font-size='13'>{mark}</tspan> {escape(name)}"
        lines[-1] = f"{drawn}\u2003{lines[-1]}"
    return [
        f"<text class='legend' x='8' y='{-_LEGEND_LINE_PIXELS * row - 5}'>{line}</text>"
        for row, line in enumerate(lines)
    ]


#: Separators of the parts of a unit's name, for its short name and for the shortest.
NAME_PARTS = r"\.", r"\.|_(?=\w{4})"


def unit_names(network: Network, apart: str = NAME_PARTS[0]) -> dict[str, str]:
    """Names of units by which each is known in its block: the fewest last parts that no other has there."""
    found: dict[str, str] = {}
    for block in network.blocks:
        ends: dict[str, list[str]] = {}
        for name in (network.units[unit].name for unit in block.units):
            parts = re.finditer(apart, name.replace("/", "."))
            ends[name] = [name[start:].replace("/", ".") for start in sorted([0, *(each.end() for each in parts)])]
        times = Counter(chain.from_iterable(ends.values()))
        found |= {name: next((end for end in own[::-1] if times[end] == 1), own[0]) for name, own in ends.items()}
    return found


def short_name(name: str) -> str:
    """A name, or only its end if it is long."""
    return name if len(name) <= _LETTERS else f"…{name[1 - _LETTERS :]}"


def unit_facts(network: Network, unit: Unit) -> str:
    """Kind and output shapes of a unit, in words."""
    return f"{unit.kind}, {', '.join(str(network.graph.types[value]) for value in unit.outputs)}"


def _stages(network: Network, schedule: Schedule) -> list[_Band]:
    bands = []
    of_block = [(number, block.name) for number, block in enumerate(schedule.blocks) for _ in block.stages]
    for number, stage in enumerate(schedule.stages):
        merged = stage.strategy is Strategy.MERGE
        groups = [[network.unit_index[name] for name in group] for group in stage.groups]
        columns = [[unit] for group in groups for unit in group] if merged else groups
        place, block = of_block[number]
        bands.append(_Band(columns, f"{number} · {stage.latency_us:.1f} us", merged, block, (0.11, 0.24)[place % 2]))
    return bands


def _in_lanes(
    network: Network, schedule: StreamSchedule
) -> tuple[dict[int, _Place], set[int], list[str], list[tuple[int, int]]]:
    """Places of units in a column for each stream, each below all that it reads, waits for and follows; the units that
    are merged; the lanes; and the waits.
    """
    places: dict[int, _Place] = {}
    merged: set[int] = set()
    waits: list[tuple[int, int]] = []
    ends = [0] * len(schedule.streams)
    row_of: dict[int, int] = {}
    for stream, launch in issue_order(schedule):
        units = [network.unit_index[unit] for unit in launch.units]
        waited = [network.unit_index[unit] for unit in launch.after]
        reads = [other for unit in units for other in network.predecessors[unit] if other not in units]
        row = max([ends[stream], *(row_of[other] + 1 for other in (*waited, *reads))])
        for offset, unit in enumerate(units):
            row_of[unit] = row + offset
            x = _GAP_PIXELS + _BOX_PIXELS / 2 + stream * (_BOX_PIXELS + _GAP_PIXELS)
            places[unit] = _Place(x, 3 * _BAND_PIXELS + row_of[unit] * _ROW_PIXELS + _BOX_HEIGHT_PIXELS / 2)
        ends[stream] = row + len(units)
        merged |= set(units) if len(units) > 1 else set()
        waits += [(other, units[0]) for other in waited]
    height = 4 * _BAND_PIXELS + max(ends, default=0) * _ROW_PIXELS
    lanes = []
    for stream, own in enumerate(schedule.streams):
        x = _GAP_PIXELS / 2 + stream * (_BOX_PIXELS + _GAP_PIXELS) + 1
        wide = _BOX_PIXELS + _GAP_PIXELS - 2
        lanes.append(
            f"<g class='lane'><rect x='{x:g}' y='2' width='{wide}' height='{height - 4:g}' rx='4' fill='#808890' "
            f"fill-opacity='.13'/><text x='{x + 8:g}' y='16' fill='currentColor'>stream {stream} · "
            f"{counted(len(own), 'launch')}</text></g>"
        )
    return places, merged, lanes, waits


def _layers(network: Network) -> list[_Band]:
    layer: list[int] = []
    for before in network.predecessors:
        layer.append(1 + max((layer[other] for other in before), default=-1))
    rows: list[list[list[int]]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for unit, row in enumerate(layer):
        rows[row].append([unit])
    return [_Band(row) for row in rows]


def _places(network: Network, bands: Sequence[_Band], middle: float) -> tuple[dict[int, _Place], list[float]]:
    """Middle of each unit's box, and the top of each band followed by the end of the last one.

    Columns are ordered by the mean place of their predecessors, and branches lie below theirs as far as the widest band
    reaches, which keeps most edges from crossing each other and boxes.
    """
    places: dict[int, _Place] = {}
    tops = [float(_BAND_PIXELS)]
    step = _BOX_PIXELS + _GAP_PIXELS
    widest = max((len(band.columns) for band in bands), default=0)
    for band in bands:

        def mean_place(column: list[int]) -> float:
            read = [places[other].x for unit in column for other in network.predecessors[unit] if other in places]
            return sum(read) / len(read) if read else middle

        ordered = sorted(band.columns, key=mean_place)
        room = (widest - len(ordered)) * step / 2
        branches = [mean_place(column) for column in ordered if len(network.predecessors[column[0]]) == 1]
        aside = sum(branches) / len(branches) - middle if branches else 0.0
        first = middle + min(max(aside, -room), room) - (len(ordered) - 1) * step / 2
        for number, column in enumerate(ordered):
            for row, unit in enumerate(column):
                y = tops[-1] + _BAND_PIXELS / 2 + row * _ROW_PIXELS + _BOX_HEIGHT_PIXELS / 2
                places[unit] = _Place(first + number * step, y)
        rows = max(map(len, band.columns), default=0)
        tops.append(tops[-1] + rows * _ROW_PIXELS - _ROW_PIXELS + _BOX_HEIGHT_PIXELS + 2 * _BAND_PIXELS)
    return places, tops


def _band_lines(bands: Sequence[_Band], tops: Sequence[float], width: int) -> Iterator[str]:
    for number, (band, top) in enumerate(zip(bands, tops, strict=False)):
        height = tops[number + 1] - top - _BAND_PIXELS
        label = escape(f"{band.label}{' ≡' if band.merged else ''}")
        yield (
            f"<g class='band' data-stage='{number}'><rect x='2' y='{top:g}' width='{width - 4}' height='{height:g}' "
            f"rx='4' fill='#808890' fill-opacity='{band.tint}'><title>{escape(band.block)}</title></rect>"
            f"<text x='8' y='{top + height / 2:g}' "
            f"dominant-baseline='central' fill='currentColor'>{label}</text></g>"
        )


def _edge_lines(places: dict[int, _Place], network: Network, waits: Sequence[tuple[int, int]]) -> Iterator[str]:
    edges = [(other, unit) for unit, before in enumerate(network.predecessors) for other in before]
    yield "<g fill='none' stroke='#7d8791' stroke-width='1.1'>"
    yield from _paths("edge", edges, places)
    yield f"</g><g fill='none' stroke='{WAIT}' stroke-width='1.4' stroke-dasharray='5 3'>"
    yield from _paths("edge wait", waits, places)
    yield "</g>"


def _paths(name: str, edges: Sequence[tuple[int, int]], places: dict[int, _Place]) -> Iterator[str]:
    for other, unit in edges:
        if unit in places and other in places:
            x0, y0 = places[other].x, places[other].y + _BOX_HEIGHT_PIXELS / 2
            x1, y1 = places[unit].x, places[unit].y - _BOX_HEIGHT_PIXELS / 2
            bend = max(8.0, min(40.0, (y1 - y0) / 2))
            # An edge that skips boxes of its own column goes round them.
            aside = _BOX_PIXELS * 0.8 if x0 == x1 and y1 - y0 > 2 * _ROW_PIXELS else 0
            path = f"M{x0:g} {y0:g}C{x0 + aside:g} {y0 + bend:g} {x1 + aside:g} {y1 - bend:g} {x1:g} {y1:g}"
            yield f"<path class='{name}' data-from='{other}' data-to='{unit}' d='{path}'/>"


def _unit_lines(network: Network, merged: set[int], places: dict[int, _Place]) -> Iterator[str]:
    names = unit_names(network)
    for number, unit in enumerate(network.units):
        if number not in places:
            continue
        x, y = places[number]
        colour = kind_colour(main_kind(network, unit))
        box = f"x='{x - _BOX_PIXELS / 2:g}' y='{y - _BOX_HEIGHT_PIXELS / 2:g}' width='{_BOX_PIXELS}' height='22' rx='4'"
        hatch = f"<rect {box} fill='url(#hatch)'/>" if number in merged else ""
        yield (
            f"<g class='unit' data-unit='{number}'><title>{escape(f'{unit.name}: {unit_facts(network, unit)}')}</title>"
            f"<rect {box} fill='{colour}'/>{hatch}<text x='{x:g}' y='{y:g}' text-anchor='middle' "
            f"dominant-baseline='central' fill='{text_on(colour)}'>{escape(short_name(names[unit.name]))}</text></g>"
        )
