"""``python -m evidence figures``: the figures that documents quote, computed, stored, and written into the
documents.
"""

from __future__ import annotations

from typing import Annotated

import typer

from iossim.cli.progress import progress_bars

Sections = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SECTION]...",
        help="What is computed anew before documents are written: 'first-example', 'networks', ..., or 'all'.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("figures", help="Write the figures that documents quote.")(figures)


def figures(section: Sections = None) -> None:
    """Compute these sections, store them in figures.json, and write all tables and sentences between markers in
    documents.

    Without a section the documents are written from the stored figures. The data is found as by 'validate'.
    """
    from evidence.quoted.blocks import read_results, write_documents, write_results
    from evidence.quoted.sections import SECTIONS, compute
    from iossim.base.errors import OptionError, did_you_mean

    names = list(SECTIONS) if section == ["all"] else section or []
    for name in names:
        if name not in SECTIONS:
            raise OptionError(f"no section of figures is called {name!r}; {did_you_mean(name, SECTIONS)}")
    with progress_bars(quiet=False, unit="") as start:
        for name in names:
            found = compute(name, start)  # takes minutes, in which another command may have stored another section
            write_results({**read_results(), name: found})
    for document in write_documents(read_results()):
        typer.echo(f"wrote {document}", err=True)
