"""Vega-Lite: specifications as plain data, the style that all figures share, the drawing libraries, and figures drawn
by them as SVG or PNG, without a browser, the same bytes each time.

Vega, Vega-Lite and Vega-Embed come from vl-convert as one text. Bundling takes seconds and is the same for each
version, so the text is kept in the user's cache folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, islice
from math import ceil, floor, log10
from pathlib import Path
from string import Template
from textwrap import wrap
from types import ModuleType
from typing import Literal

from iossim.base.errors import OptionError
from iossim.base.shipped_yaml import read_shipped, shipped
from iossim.base.tables import Cell
from iossim.base.user_files import write_atomically
from iossim.base.user_folders import own_folder, user_cache
from iossim.report.colours import scheduler_marks
from iossim.report.figures.figure import ROWS, Figure, LegendEntry, Spec, choice_words

_PACKAGE = "vl-convert-python"


def need_vl_convert() -> ModuleType:
    """The module vl_convert; raises OptionError where it is not installed."""
    return _needed("vl_convert", _PACKAGE)


def need_altair() -> ModuleType:
    """The module altair; raises OptionError where it is not installed."""
    return _needed("altair", "altair")


def _needed(name: str, package: str) -> ModuleType:
    try:
        return __import__(name)
    except ImportError:
        raise OptionError(f"a report needs {package}, which is not installed; pip install 'iossim[report]'") from None


def vega_lite_version() -> str:
    """Vega-Lite version of altair's specifications: ``6.4``."""
    return ".".join(need_altair().SCHEMA_VERSION.lstrip("v").split(".")[:2])


@cache
def libraries() -> str:
    """JavaScript that defines ``vegaEmbed``; raises OptionError where it is unavailable."""
    try:
        installed = version(_PACKAGE)
    except PackageNotFoundError:
        installed = ""
    kept = None
    with suppress(OSError):  # an unusable cache folder costs only time
        kept = own_folder(user_cache()) / f"vega-{installed}-{vega_lite_version()}.js"
        if installed and kept.is_file():
            return kept.read_text(encoding="utf-8")
    bundle: str = need_vl_convert().javascript_bundle(vl_version=vega_lite_version())
    with suppress(OSError):
        if kept is not None:
            write_atomically(kept, bundle)
    return bundle


#: The colours of Okabe and Ito (2008) are distinct under all common kinds of colour blindness.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
SCREEN_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Liberation Sans", sans-serif'
#: Style of the markers of published figures.
PUBLISHED = "published"
#: Style of a text's shadow in the page's colour, which keeps lines away from it.
HALO = "halo"
#: Pictures are drawn with fonts that come with the library, so that they look the same on every machine.
PAPER_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"


def light() -> Spec:
    return _theme("#1b1f24", "#4a5159", "#d9dde2", "#8b939c", "#ffffff", SCREEN_FONT, "transparent")


def dark() -> Spec:
    return _theme("#e8eaed", "#b4bac2", "#343a42", "#6f7781", "#15181d", SCREEN_FONT, "transparent")


def paper() -> Spec:
    return _theme("#111111", "#333333", "#dddddd", "#777777", "#ffffff", PAPER_FONT, "white")


def _theme(*values: str) -> Spec:
    names = ("ink", "soft", "grid", "line", "paper", "font", "background")
    text = (resources.files(__package__) / "theme.yaml").read_text("utf-8")
    config: Spec = read_shipped(Template(text).substitute(dict(zip(names, values, strict=True))))
    return config


def described(package: str, name: str, **values: object) -> Spec:
    """The specification of that name in a package's ``specs.yaml``, with its ``$names`` filled in, as wide as its
    container. What has the value None is left out, as is a layer ``when`` it is false.
    """
    spec = shipped(package, "specs.yaml")[name]
    layer, height = (_filled(spec[key], values) for key in ("layer", "height"))
    rest = {"height": height, "width": "container", "$schema": need_altair().SCHEMA_URL}
    return {"layer": layer, "data": {"name": ROWS}, **rest}


def _filled(part: object, values: Mapping[str, object]) -> object:
    if isinstance(part, dict):
        known = {key: _filled(each, values) for key, each in part.items() if key != "when"}
        return {key: each for key, each in known.items() if each is not None or part[key] is None}
    if isinstance(part, list):
        drawn = (each for each in part if not isinstance(each, dict) or _filled(each.get("when", True), values))
        return [_filled(each, values) for each in drawn]
    return values[part[1:]] if isinstance(part, str) and part.startswith("$") else part


def colour_scale(colours: Mapping[str, str]) -> dict[str, list[str]]:
    """Scale of colours by name."""
    return {"domain": list(colours), "range": list(colours.values())}


def scheduler_scale(schedulers: Sequence[str]) -> dict[str, list[str]]:
    return colour_scale({name: colour for name, (colour, _) in scheduler_marks(schedulers).items()})


def scheduler_legend(schedulers: Sequence[str], lines: bool = False) -> tuple[LegendEntry, ...]:
    """Legend of the schedulers' colours; with ``lines``, of their shapes too."""
    marks = scheduler_marks(schedulers).items()
    return tuple(LegendEntry(name, colour, shape if lines else "bar") for name, (colour, shape) in marks)


def names_axis(key: str, title: str, names: Sequence[object]) -> Spec:
    """Horizontal channel of a column of names, evenly spaced, with room to put markers of one name side by side."""
    scale = {"paddingInner": 0.7, "paddingOuter": 0.3}
    axis = {"grid": False, "labelAngle": 0}
    return {"axis": axis, "field": key, "scale": scale, "sort": list(names), "title": title, "type": "ordinal"}


def log_ticks(values: Iterable[float]) -> list[float]:
    """Ticks of a logarithmic axis: powers of ten, and 2 and 5 times those if there are few."""
    known = [value for value in values if value > 0]
    if not known:
        return []
    low, high = floor(log10(min(known))), ceil(log10(max(known)))
    steps = (1,) if high - low > 3 else (1, 2, 5)
    return [float(f"{step}e{power}") for power in range(low, high + 1) for step in steps]


#: From zero to the maximum; texts are dark up to ``_TURN`` of the range and light above it: contrast 4.5 on each.
COLOURS = ("#eef4fa", "#0b4a8f")
TEXTS = ("#000000", "#ffffff")
TURN = 0.725
#: Width of a letter, and the width shared by the cells of a matrix on a phone.
_TICK_LETTER_PIXELS, _LEAST_PIXELS = 7, 240


def heat_map(
    titles: Mapping[str, str],
    x_values: Sequence[Cell],
    y_values: Sequence[Cell],
    *,
    most: float,
    least: float = 0.0,
    tooltips: Sequence[str],
    outlined: str | None = None,
) -> Spec:
    """Heat map of records: ``titles`` of their cells, the first three for both axes and the colour (``least`` to
    ``most``); the cell ``text`` is shown. Those that are true in the column ``outlined`` are framed.
    """
    x, y, colour = list(titles)[:3]
    return described(
        __package__,
        "heat_map" if outlined is None else "framed_heat_map",
        colour=colour,
        colour_title=titles[colour],
        domain=[least, most],
        shades=list(COLOURS),
        tooltip=[{"field": key, "title": titles.get(key, key), "type": "nominal"} for key in (y, x, *tooltips)],
        angle=_angle(x_values),
        x=x,
        x_title=titles[x],
        x_values=list(x_values),
        y=y,
        y_title=titles[y],
        y_values=list(y_values),
        is_dark=f"datum.{colour} > {least + TURN * (most - least)}",
        dark=TEXTS[0],
        light=TEXTS[1],
        inside=f"datum.{outlined}",
        outside=f"!datum.{outlined}",
    )


def _angle(values: Sequence[Cell]) -> int:
    """Angle of names: level if they have room beside each other, else vertical; aslant they would leave the picture."""
    longest = max((len(str(value)) for value in values), default=0)
    return 0 if longest * len(values) * _TICK_LETTER_PIXELS < _LEAST_PIXELS else -90


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
