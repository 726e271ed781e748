"""Tables of Markdown that benchmarks print, each row as soon as it is known."""

from __future__ import annotations


def head(*columns: str) -> None:
    """The first row, and the rule below it."""
    row(*columns)
    row(*["---"] * len(columns))


def row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
