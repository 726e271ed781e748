"""One colour for each kind of op and each scheduler, in every picture of every network, study and trace.

A family of kinds (convolutions, products, pooling, ...) has a hue, and its kinds have shades of it. Convolutions and
products, which take most of the time, have the colours of Okabe and Ito (2008) that differ most. The colours of
schedulers have a contrast of 3 or more to white and to the dark page, as WCAG 2.2 asks of graphics (1.4.11).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle

from iossim.base.shipped_yaml import shipped

#: Colour of kinds that have none of their own.
REST = "#999999"


_DATA = shipped(__package__, "colours.yaml")
_FAMILIES = _DATA["families"]
_COLOURS: dict[str, str] = {
    kind: colour for family in _FAMILIES for kind, colour in zip(family["kinds"], cycle(family["shades"]), strict=False)
}
_RESERVED: dict[str, str] = {kind: family["reserved"] for family in _FAMILIES for kind in family["kinds"]}
#: Below this relative luminance, text on a colour is white (WCAG 2.2: white then has the higher contrast).
_DARK = 0.179


def kind_colour(kind: str) -> str:
    """Colour of a kind of ops; grey for one that has none of its own."""
    return _COLOURS.get(kind, REST)


def kind_colours(kinds: Iterable[str]) -> dict[str, str]:
    """Colour of each kind, family by family, whatever the order in which they are given."""
    wanted = set(kinds)
    known = [kind for kind in _COLOURS if kind in wanted]
    return {kind: kind_colour(kind) for kind in (*known, *sorted(wanted - set(known)))}


def legend_colours(colours: Mapping[str, str]) -> dict[str, str]:
    """Colours of kinds by the words of a legend: those of one colour share an entry, which names two."""
    named: dict[str, list[str]] = {}
    for kind, colour in colours.items():
        named.setdefault(colour, []).append(kind)
    more = [f" and {len(same) - 2} more" * (len(same) > 2) for same in named.values()]
    return {", ".join(same[:2]) + rest: colour for rest, (colour, same) in zip(more, named.items(), strict=True)}


def reserved_colour(kind: str) -> str:
    """Nearest of the colours that a Chrome trace event may name."""
    return _RESERVED.get(kind, "grey")


def text_on(colour: str) -> str:
    """Black or white, whichever is more legible on a colour (``#rrggbb``)."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "white" if luminance < _DARK else "black"


def scheduler_marks(schedulers: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and Vega shape of each scheduler by name, in the order given."""
    known, foreign = _DATA["schedulers"], sorted(name for name in schedulers if name not in _DATA["schedulers"])
    marks = known | distinct_marks(foreign, *zip(*_DATA["other_schedulers"], strict=True))
    return {name: (marks[name][0], marks[name][1]) for name in schedulers}


def distinct_marks(names: Iterable[str], colours: Sequence[str], shapes: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and shape of each name: no two share both, up to as many as there are pairs."""
    turned = [(*shapes[turn:], *shapes[:turn]) for turn in range(len(shapes))]
    pairs = cycle(pair for own in turned for pair in zip(colours, own, strict=False))
    return dict(zip(names, pairs, strict=False))
