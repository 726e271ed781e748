"""What a figure is: data, pictures of it as Vega-Lite specifications, and words for who cannot see them.

A study's page draws the specifications in the browser, :mod:`iossim.report.figures.pictures` as SVG and PNG without
one, and :func:`print_figure` prints the same data as a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from iossim.base.tables import Cell, Column, records_table

Record = Mapping[str, Cell]
#: The data of every specification: the records of a panel and of the choices made. Whoever draws fills it in.
ROWS = "rows"
#: What columns that a reader chooses by are called; others by their key.
TITLES = {"cost_model": "cost model", "search": "search", "dtype": "data type", "batch": "batch size"}


def title_of(key: str) -> str:
    return TITLES.get(key, key)


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture of a figure: a Vega-Lite specification of one view whose width is its container's.

    It shows the records whose cells equal ``where``.
    """

    title: str
    spec: Mapping[str, Any]
    where: Mapping[str, Cell] = field(default_factory=dict)

    def shows(self, record: Record) -> bool:
        return all(record.get(key) == value for key, value in self.where.items())


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """What a colour or shape stands for; ``mark`` is bar, line, dashes, whisker, bound, outline, published, or a
    shape of Vega.
    """

    label: str
    colour: str
    mark: str = "bar"


@dataclass(frozen=True)
class Figure:
    """A figure; ``finding`` says in a sentence, or in a line each, what is to be seen.

    ``records`` are all its data. Of each column in ``choices`` one value is drawn at a time. Panels stand beside each
    other where there is room, or one under the other if ``stacked``. On the page of a study ``caption`` says how it
    is to be read, ``alt`` the same to who cannot see it, ``columns`` which cells a reader is shown, ``command`` how
    it is made.
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
    choices: tuple[Column, ...] = ()
    legend: tuple[LegendEntry, ...] = ()
    stacked: bool = False
    #: A panel is at least this wide, where the screen is; a panel of a stack, or alone, in a picture too.
    panel_pixels: int = 420
    #: What of the records a terminal prints; by default all.
    printed: tuple[Record, ...] | None = None

    def slices(self) -> Iterator[dict[str, Cell]]:
        """Every combination of choices that has records, in the order in which they come."""
        keys = [choice.key for choice in self.choices]
        for chosen in dict.fromkeys(tuple(record[key] for key in keys) for record in self.records):
            yield dict(zip(keys, chosen, strict=True))

    def records_of(self, panel: Panel, chosen: Mapping[str, Cell]) -> list[Record]:
        """The data that a panel draws."""
        return [
            record
            for record in self.records
            if panel.shows(record) and all(record[key] == value for key, value in chosen.items())
        ]


#: Lines of a table that a terminal shows.
MOST_LINES = 60


def print_figure(console: Console, figure: Figure) -> None:
    """Title, finding and table of a figure."""
    records = figure.records if figure.printed is None else figure.printed
    console.print(figure.title, style="bold", highlight=False, markup=False)
    if figure.finding:
        console.print(figure.finding, highlight=False, markup=False)
    console.print(records_table("", records[:MOST_LINES], figure.columns))
    if len(records) > MOST_LINES:
        console.print(f"... and {len(records) - MOST_LINES:,} lines more, which the report has", highlight=False)
    console.print()
