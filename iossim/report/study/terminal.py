"""The figures of a report as tables of the terminal: the same data, below the sentence that says what it shows."""

from __future__ import annotations

from rich.console import Console

from iossim.base.tables import records_table
from iossim.report.figures.figure import Figure

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
