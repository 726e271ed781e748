"""Heat maps: cells with a number each, and a colour that says the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iossim.base.tables import Cell
from iossim.report.figures.vega import layer, need_altair, specification

#: From nothing to the most; and the texts on them, dark up to ``_TURN`` of the range, light above: contrast 4.5 on each.
COLOURS = ("#eef4fa", "#0b4a8f")
TEXTS = ("#000000", "#ffffff")
TURN = 0.725
_CELL_PIXELS = 34
#: What a letter takes, and what the cells of a matrix have together on a phone.
_LETTER_PIXELS, _LEAST_PIXELS = 7, 240


def heat_map(
    x: str,
    y: str,
    colour: str,
    text: str,
    *,
    titles: Mapping[str, str],
    x_values: Sequence[Cell],
    y_values: Sequence[Cell],
    most: float,
    least: float = 0.0,
    tooltips: Sequence[str] = (),
    outlined: str | None = None,
) -> dict[str, Any]:
    """The specification: columns of records for both axes, the colour (``least`` to ``most``) and the text of a cell.

    ``outlined`` is a column that is true in cells to be framed.
    """
    alt = need_altair()
    turn = least + TURN * (most - least)
    horizontal = alt.X(
        f"{x}:N", sort=list(x_values), title=titles[x],
        axis=alt.Axis(orient="top", labelAngle=_angle(x_values), labelLimit=110, labelOverlap=False), scale=alt.Scale(padding=0),
    )  # fmt: skip
    vertical = alt.Y(
        f"{y}:N", sort=list(y_values), title=titles[y], axis=alt.Axis(labelLimit=150), scale=alt.Scale(padding=0)
    )
    tooltip = [alt.Tooltip(f"{key}:N", title=titles.get(key, key)) for key in (y, x, *tooltips)]
    base = layer().encode(x=horizontal, y=vertical)
    cells = base.mark_rect(stroke="#ffffff", strokeWidth=1.5).encode(
        color=alt.Color(
            f"{colour}:Q",
            title=titles[colour],
            scale=alt.Scale(domain=[least, most], range=list(COLOURS), clamp=True, interpolate="rgb"),
        ),
        tooltip=tooltip,
    )
    light_or_dark = alt.condition(f"datum.{colour} > {turn}", alt.value(TEXTS[1]), alt.value(TEXTS[0]))
    if outlined is None:
        layers = [cells, base.mark_text(fontSize=11).encode(text=f"{text}:N", color=light_or_dark)]
    else:
        inside, outside = (base.transform_filter(rule) for rule in (f"datum.{outlined}", f"!datum.{outlined}"))
        layers = [
            cells,
            inside.mark_rect(fillOpacity=0, stroke="#10151a", strokeWidth=1.6),
            outside.mark_text(fontSize=11).encode(text=f"{text}:N", color=light_or_dark),
            inside.mark_text(fontSize=11, fontWeight="bold").encode(text=f"{text}:N", color=light_or_dark),
        ]
    return specification(*layers, height={"step": _CELL_PIXELS})


def _angle(values: Sequence[Cell]) -> int:
    """Names that have room beside each other level, others on end: aslant they would leave the picture."""
    longest = max((len(str(value)) for value in values), default=0)
    return 0 if longest * len(values) * _LETTER_PIXELS < _LEAST_PIXELS else -90
