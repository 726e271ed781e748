"""Figures as SVG or PNG: drawn without a browser, the same bytes each time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from textwrap import wrap
from typing import Literal

from iossim.base.tables import Cell
from iossim.base.user_files import write_atomically
from iossim.report.figures.figure import ROWS, Figure, LegendEntry, Spec, choice_words
from iossim.report.figures.vega import need_vl_convert, paper, vega_lite_version

PictureFormat = Literal["svg", "png"]
#: Widths of a panel: alone or stacked, beside one other, beside two others.
_WIDTHS_PIXELS = {1: 640, 2: 330, 3: 230}
#: Further slices of one figure are drawn only on request, from the page.
MOST_SLICES = 12
_LETTER_PIXELS, _ENTRY_PIXELS, _LINE_PIXELS = 5.9, 34, 18
_PNG_SCALE = 2.0
_VEGA_SHAPES = {
    "bar": "square",
    "line": "stroke",
    "whisker": "stroke",
    "dashes": "stroke",
    "bound": "M0,-0.7L0,0.7",
    "published": "diamond",
    "outline": "square",
}
#: These shapes are drawn as outlines.
_OPEN = ("stroke", _VEGA_SHAPES["bound"])


def picture_files(
    figures: Sequence[Figure], *kinds: PictureFormat, titled: bool = False
) -> dict[str, Callable[[Path], None]]:
    """A writer for each picture by file name: one per slice of a figure, at most ``MOST_SLICES``, in each format.

    Pictures to be shown alone are ``titled``: the figure's title, finding and setup are above them.

    Raises OptionError where vl-convert-python is not installed.
    """
    need_vl_convert()
    files: dict[str, Callable[[Path], None]] = {}
    for figure in figures:
        for chosen in islice(figure.slices(), MOST_SLICES):
            name = "-".join([figure.name, *(_slug(value) for value in chosen.values())])
            drawn = cache(partial(svg_picture, figure, chosen, titled))
            for kind in kinds:
                files[f"{name}.{kind}"] = partial(_write, drawn, kind)
    return files


def svg_picture(figure: Figure, chosen: Mapping[str, Cell], titled: bool = False) -> str:
    """One slice of a figure as SVG: its panels below one legend."""
    spec = whole_specification(figure, chosen, titled)
    text: str = need_vl_convert().vegalite_to_svg(spec, vl_version=vega_lite_version())
    return _numbered(text)


def whole_specification(figure: Figure, chosen: Mapping[str, Cell], titled: bool = False) -> Spec:
    """Vega-Lite specification of a slice with its data; panels without data are left out."""
    shown = [(panel, rows) for panel in figure.panels if (rows := figure.records_of(panel, chosen))]
    columns = 1 if figure.stacked or len(shown) == 1 else 3 if figure.panel_pixels < 400 else 2
    width = _WIDTHS_PIXELS[columns] if columns > 1 else max(_WIDTHS_PIXELS[1], figure.panel_pixels)
    views: list[Spec] = []
    for panel, rows in shown:
        view = {key: value for key, value in panel.spec.items() if key != "$schema"}
        views.append({**view, "width": width, "data": {"name": f"{ROWS}{len(views)}", "values": rows}})
        if panel.title:
            views[-1]["title"] = panel.title
    told = _heading(figure, chosen, titled, columns * width)
    pictures: Spec = {"concat": views, "columns": columns, "spacing": {"row": 18, "column": 26}}
    # Kinds of ops that the slice lacks are left out of the legend.
    known, here = (
        {record.get("kind") for record in records} for records in (figure.records, chain(*(r for _, r in shown)))
    )
    legend = [entry for entry in figure.legend if entry.label not in known or entry.label in here]
    stack = [*([_legend(legend, columns * width)] if legend else []), pictures]
    return {
        "vconcat": stack,
        "spacing": 14,
        "config": {**paper(), "legend": {"disable": True}, "concat": {"spacing": 22}},
        **({"title": told} if told else {}),
    }


def _heading(figure: Figure, chosen: Mapping[str, Cell], titled: bool, width: int) -> Spec:
    """Heading of a whole picture: the choices made, and if shown alone its title, what all its data have in common and
    the finding, if that is not one of other choices; in lines of the given width.
    """
    told = ", ".join(choice_words(key, value) for key, value in chosen.items())
    if not titled:
        return {"text": told, "fontSize": 11, "fontWeight": 400} if told else {}
    is_whole = len(list(islice(figure.slices(), 2))) == 1
    lines = [*(figure.finding.split("\n") if is_whole else ()), ", ".join(filter(None, (told, figure.setup)))]
    letters = int(width / _LETTER_PIXELS)
    return {"text": figure.title, "fontSize": 15, "subtitle": [part for line in lines for part in wrap(line, letters)]}


def _legend(entries: Sequence[LegendEntry], width: int) -> Spec:
    """A view of marks and labels, broken into lines of the given width."""
    placed: list[dict[str, Cell]] = []
    x, line = 0.0, 0
    for entry in entries:
        wide = _ENTRY_PIXELS + _LETTER_PIXELS * len(entry.label)
        if x and x + wide > width:
            x, line = 0.0, line + 1
        placed.append({"x": x, "line": line, "label": entry.label, **_mark(entry)})
        x += wide
    height = _LINE_PIXELS * (line + 1)
    at = {
        channel: {"field": field, "type": "quantitative", "axis": None, "scale": {"domain": domain, "nice": False}}
        for channel, field, domain in (("x", "x", [0, width]), ("y", "line", [line + 0.5, -0.5]))
    }
    point = {"type": "point", "size": 75, "xOffset": 6, "strokeWidth": 1.5}
    marks: list[Spec] = [
        {
            "transform": [{"filter": f"datum.shape == '{shape}' && datum.colour == '{colour}'"}],
            "mark": {**point, "shape": shape, "color": colour, "filled": filled},
            "encoding": at,
        }
        for shape, colour, filled in dict.fromkeys((mark["shape"], mark["colour"], mark["filled"]) for mark in placed)
    ]
    label = {"type": "text", "align": "left", "baseline": "middle", "dx": 16, "fontSize": 11}
    return {
        "width": width,
        "height": height,
        "data": {"name": "legend", "values": placed},
        "layer": [*marks, {"mark": label, "encoding": {**at, "text": {"field": "label", "type": "nominal"}}}],
    }


def _mark(entry: LegendEntry) -> dict[str, Cell]:
    colour = "#111111" if entry.colour == "currentColor" else entry.colour
    shape = _VEGA_SHAPES.get(entry.mark, entry.mark)
    filled = shape not in _OPEN and entry.mark not in ("published", "outline")
    return {"shape": shape, "colour": colour, "filled": filled}


def _write(drawn: Callable[[], str], kind: PictureFormat, path: Path) -> None:
    svg = drawn()
    write_atomically(path, svg if kind == "svg" else need_vl_convert().svg_to_png(svg, scale=_PNG_SCALE))


def _numbered(svg: str) -> str:
    """SVG whose ids of clips and gradients are counted from 0 in each picture, not across the process."""
    found: dict[str, str] = {}

    def renamed(match: re.Match[str]) -> str:
        return found.setdefault(match[0], f"{match[1]}{len(found)}")

    return re.sub(r"\b(clip|gradient_)\d+\b", renamed, svg)


def _slug(value: Cell) -> str:
    kept = "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in str(value))
    return "-".join(filter(None, kept.split("-")))
