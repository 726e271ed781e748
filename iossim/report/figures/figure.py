"""A figure: data, pictures of it as Vega-Lite specifications, and a description for those who cannot see them.

A study's page draws the specifications in the browser, and :mod:`iossim.report.figures.vega` as SVG and PNG without
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from iossim.base.tables import Cell, Column

Record = Mapping[str, Cell]
#: A Vega-Lite specification or a part of one: JSON, whose grammar only the schema of Vega-Lite defines.
Spec = dict[str, Any]
#: Names the data of every specification: the records of a panel and of the choices made, filled in when drawn.
ROWS = "rows"
#: Titles of the columns that a reader chooses by; others are titled by their key.
_TITLES = {"batch": "batch size", "cost_model": "cost model", "dtype": "data type", "rewrite": "network"}


def title_of(key: str) -> str:
    return _TITLES.get(key, key)


def choice_words(key: str, value: object) -> str:
    """A value of a column in words: ``batch size 8``; alone if it ends with the title, as ``any workspace``."""
    title = title_of(key)
    return str(value) if key == "point" or str(value).endswith(title) else f"{title} {value}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture of a figure: a Vega-Lite specification of one view whose width is its container's.

    It shows the records whose cells equal ``where``.
    """

    title: str
    spec: Spec
    where: Mapping[str, Cell] = field(default_factory=dict)

    def shows(self, record: Record) -> bool:
        return all(record.get(key) == value for key, value in self.where.items())


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """An entry of the legend: the meaning of a colour or shape; ``mark`` is bar, line, dashes, whisker, bound, outline,
    published, or a shape of Vega.
    """

    label: str
    colour: str
    mark: str = "bar"


@dataclass(frozen=True)
class Figure:
    """A figure; ``finding`` states the result in one sentence, or in one line each.

    ``records`` are all its data. One value at a time is drawn of each column in ``choices``. Panels are drawn beside
    each other where there is room, or one below the other if ``stacked``. On the page of a study ``caption`` says how
    to read it, ``alt`` describes it to those who cannot see it, ``columns`` are the cells shown to a reader, and
    ``command`` makes it. ``setup`` is what all its data have in common, for a picture that is shown alone.
    """

    name: str
    title: str
    finding: str
    records: tuple[Record, ...]
    panels: tuple[Panel, ...]
    caption: str = ""
    alt: str = ""
    columns: tuple[Column, ...] = ()
    command: str = ""
    setup: str = ""
    choices: tuple[Column, ...] = ()
    legend: tuple[LegendEntry, ...] = ()
    stacked: bool = False
    #: A panel is at least this wide if the screen is; in a picture, so is a panel that is stacked or alone.
    panel_pixels: int = 420

    def slices(self) -> Iterator[dict[str, Cell]]:
        """Every combination of choices that has records, in order of appearance."""
        keys = [choice.key for choice in self.choices]
        for chosen in dict.fromkeys(tuple(record[key] for key in keys) for record in self.records):
            yield dict(zip(keys, chosen, strict=True))

    def records_of(self, panel: Panel, chosen: Mapping[str, Cell]) -> list[Record]:
        """Records that a panel draws."""
        return [
            record
            for record in self.records
            if panel.shows(record) and all(record[key] == value for key, value in chosen.items())
        ]
