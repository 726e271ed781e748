"""The graph of a network as SVG, from top to bottom, without Graphviz: one box per unit in the colour of its kind.

With a schedule each stage is a band, each group a column, and the boxes of a merged stage are hatched. Without one, a
unit's row is its longest path from the inputs. Boxes have the attribute ``data-unit``, edges ``data-from`` and
``data-to``: the numbers of units, by which a page finds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from iossim.hardware.lowering.unit import main_kind
from iossim.ir.network import Network, Unit
from iossim.report.colours import kind_colour, text_on
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Schedule

_BOX_PIXELS, _BOX_HEIGHT_PIXELS, _GAP_PIXELS, _ROW_PIXELS, _BAND_PIXELS, _LABEL_PIXELS = 108, 22, 14, 34, 12, 92
#: Number of letters that fit in a box.
_LETTERS = 17
_FONT = "font-family='Liberation Sans, Arial, Helvetica, sans-serif'"


@dataclass(frozen=True, slots=True)
class _Band:
    """Columns of units (numbers) beside each other."""

    columns: list[list[int]]
    label: str = ""
    merged: bool = False


class _Place(NamedTuple):
    """Middle of a box, in pixels."""

    x: float
    y: float


def graph_svg(network: Network, schedule: Schedule | None = None, *, background: bool = True) -> str:
    """The picture as text; equal arguments give equal text. On a page of its own it has a white ``background``."""
    bands = _stages(network, schedule) if schedule is not None else _layers(network)
    width = max((len(band.columns) for band in bands), default=1) * (_BOX_PIXELS + _GAP_PIXELS) + _GAP_PIXELS
    left = _LABEL_PIXELS if schedule is not None else 0
    places, tops = _places(network, bands, left + width / 2)
    height = tops[-1]
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' class='graph' width='{left + width}' height='{height:g}' "
        f"viewBox='0 0 {left + width} {height:g}' {_FONT} font-size='10'>",
        "<defs><pattern id='hatch' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
        "<path d='M0 0V6' stroke='#fff' stroke-opacity='.45' stroke-width='2.5'/></pattern></defs>",
        *([f"<rect width='{left + width}' height='{height:g}' fill='#fff'/>"] if background else []),
        *(_band_lines(bands, tops, left + width) if schedule is not None else ()),
        *_edge_lines(network, places),
        *_unit_lines(network, bands, places),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def short_name(name: str, letters: int = _LETTERS) -> str:
    """Last part of a unit's name, as the others repeat the block; only its end if it is long."""
    last = name.replace("/", ".").rsplit(".", 1)[-1] or name
    return last if len(last) <= letters else f"…{last[1 - letters :]}"


def unit_facts(network: Network, unit: Unit) -> str:
    """Kind and output shapes of a unit, in words."""
    return f"{unit.kind}, {', '.join(str(network.graph.types[value]) for value in unit.outputs)}"


def _stages(network: Network, schedule: Schedule) -> list[_Band]:
    bands = []
    for number, stage in enumerate(schedule.stages):
        merged = stage.strategy is Strategy.MERGE
        groups = [[network.unit_index[name] for name in group] for group in stage.groups]
        columns = [[unit] for group in groups for unit in group] if merged else groups
        bands.append(_Band(columns, f"{number} · {stage.latency_us:.1f} us", merged))
    return bands


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

    Columns are ordered by the mean place of their predecessors, which keeps most edges from crossing.
    """
    places: dict[int, _Place] = {}
    tops = [float(_BAND_PIXELS)]
    for band in bands:

        def mean_place(column: list[int]) -> float:
            read = [places[other].x for unit in column for other in network.predecessors[unit] if other in places]
            return sum(read) / len(read) if read else middle

        ordered = sorted(band.columns, key=mean_place)
        first = middle - (len(ordered) - 1) * (_BOX_PIXELS + _GAP_PIXELS) / 2
        for number, column in enumerate(ordered):
            for row, unit in enumerate(column):
                y = tops[-1] + _BAND_PIXELS / 2 + row * _ROW_PIXELS + _BOX_HEIGHT_PIXELS / 2
                places[unit] = _Place(first + number * (_BOX_PIXELS + _GAP_PIXELS), y)
        rows = max(map(len, band.columns), default=0)
        tops.append(tops[-1] + rows * _ROW_PIXELS - _ROW_PIXELS + _BOX_HEIGHT_PIXELS + 2 * _BAND_PIXELS)
    return places, tops


def _band_lines(bands: Sequence[_Band], tops: Sequence[float], width: int) -> Iterator[str]:
    for number, (band, top) in enumerate(zip(bands, tops, strict=False)):
        height = tops[number + 1] - top - _BAND_PIXELS
        label = escape(f"{band.label}{' ≡' if band.merged else ''}")
        yield (
            f"<g class='band' data-stage='{number}'><rect x='2' y='{top:g}' width='{width - 4}' height='{height:g}' "
            f"rx='4' fill='#808890' fill-opacity='.13'/><text x='8' y='{top + height / 2:g}' "
            f"dominant-baseline='central' fill='currentColor'>{label}</text></g>"
        )


def _edge_lines(network: Network, places: dict[int, _Place]) -> Iterator[str]:
    yield "<g fill='none' stroke='#7d8791' stroke-width='1.1'>"
    for unit, before in enumerate(network.predecessors):
        for other in before:
            if unit in places and other in places:
                x0, y0 = places[other].x, places[other].y + _BOX_HEIGHT_PIXELS / 2
                x1, y1 = places[unit].x, places[unit].y - _BOX_HEIGHT_PIXELS / 2
                bend = max(8.0, min(40.0, (y1 - y0) / 2))
                # An edge that skips boxes of its own column goes round them.
                aside = _BOX_PIXELS * 0.8 if x0 == x1 and y1 - y0 > 2 * _ROW_PIXELS else 0
                path = f"M{x0:g} {y0:g}C{x0 + aside:g} {y0 + bend:g} {x1 + aside:g} {y1 - bend:g} {x1:g} {y1:g}"
                yield f"<path class='edge' data-from='{other}' data-to='{unit}' d='{path}'/>"
    yield "</g>"


def _unit_lines(network: Network, bands: Sequence[_Band], places: dict[int, _Place]) -> Iterator[str]:
    merged = {unit for band in bands if band.merged for column in band.columns for unit in column}
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
            f"dominant-baseline='central' fill='{text_on(colour)}'>{escape(short_name(unit.name))}</text></g>"
        )
