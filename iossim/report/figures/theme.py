"""What all figures look like, as Vega-Lite's configuration: on a light page, on a dark one, and on paper."""

from __future__ import annotations

from typing import Any

#: The colours of Okabe and Ito (2008), told apart under all common kinds of colour blindness.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
SCREEN_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Liberation Sans", sans-serif'
#: The style of markers of published figures.
PUBLISHED = "published"
#: The style of a text's shadow in the page's colour, which keeps lines away from it.
HALO = "halo"
#: Pictures are drawn with fonts that come with the library, so that they look the same on every machine.
PAPER_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"


def light() -> dict[str, Any]:
    return _config("#1b1f24", "#4a5159", "#d9dde2", "#8b939c", "#ffffff", SCREEN_FONT, "transparent")


def dark() -> dict[str, Any]:
    return _config("#e8eaed", "#b4bac2", "#343a42", "#6f7781", "#15181d", SCREEN_FONT, "transparent")


def paper() -> dict[str, Any]:
    return _config("#111111", "#333333", "#dddddd", "#777777", "#ffffff", PAPER_FONT, "white")


def _config(ink: str, soft: str, grid: str, line: str, paper: str, font: str, background: str) -> dict[str, Any]:
    return {
        "background": background,
        "font": font,
        "view": {"stroke": None},
        "axis": {
            "labelColor": soft,
            "titleColor": ink,
            "labelFontSize": 11,
            "titleFontSize": 11.5,
            "titleFontWeight": 500,
            "titlePadding": 8,
            "labelPadding": 5,
            "gridColor": grid,
            "gridWidth": 0.8,
            "domainColor": line,
            "tickColor": line,
            "tickSize": 4,
            "labelOverlap": "greedy",
            "labelSeparation": 5,
            "labelFlush": False,
            "tickCount": {"signal": "max(3, ceil(width / 120))"},
            "labelLimit": 220,
        },
        "axisBand": {"domain": False, "ticks": False, "grid": False},
        "axisPoint": {"grid": False},
        "text": {"color": ink, "fontSize": 10.5, "font": font},
        "rule": {"color": ink, "strokeWidth": 1.1},
        "tick": {"color": ink, "thickness": 1.6},
        "style": {
            PUBLISHED: {
                "color": paper,
                "fill": paper,
                "filled": True,
                "stroke": ink,
                "shape": "diamond",
                "size": 105,
                "strokeWidth": 1.3,
            },
            HALO: {"fill": paper, "stroke": paper, "strokeWidth": 5, "strokeJoin": "round"},
        },
        "line": {"strokeWidth": 2},
        "point": {"size": 46, "filled": True, "opacity": 1},
        "title": {"color": ink, "fontSize": 12, "fontWeight": 600, "anchor": "start", "frame": "group", "offset": 8},
        "header": {"labelColor": ink, "titleColor": ink},
        "legend": {
            "labelColor": soft,
            "titleColor": ink,
            "labelFontSize": 11,
            "titleFontSize": 11.5,
            "symbolSize": 90,
        },
    }
