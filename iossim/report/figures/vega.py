"""Vega-Lite: specifications as plain data, the style that all figures share, and the drawing libraries.

Vega, Vega-Lite and Vega-Embed come from vl-convert as one text. Bundling takes seconds and is the same for each
version, so the text is kept in the user's cache folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from math import ceil, floor, log10
from string import Template
from types import ModuleType

from iossim.base.errors import OptionError
from iossim.base.shipped_yaml import read_shipped, shipped
from iossim.base.tables import Cell
from iossim.base.user_files import write_atomically
from iossim.base.user_folders import own_folder, user_cache
from iossim.report.colours import scheduler_marks
from iossim.report.figures.figure import ROWS, LegendEntry, Spec

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
_LETTER_PIXELS, _LEAST_PIXELS = 7, 240


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
    return 0 if longest * len(values) * _LETTER_PIXELS < _LEAST_PIXELS else -90
