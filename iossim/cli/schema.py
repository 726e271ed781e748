"""``iossim schema``: JSON schemas of the files that people write, and of what commands print with ``--json``."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from iossim.base.errors import OptionError
from iossim.cli.options import command
from iossim.cli.outputs import text_file, write_files


@command
def print_schema(name: str | None = None, out: Path | None = None) -> None:
    """Print a schema, or write NAME.json of all of them into a folder."""
    from iossim.report.schemas import SCHEMAS, schema

    if (name is None) is (out is None):
        known = ", ".join(SCHEMAS.names())
        raise OptionError(f"schema needs a NAME, or --out DIR for all of them, not both; known: {known}")
    if name is not None:
        typer.echo(_text(name, schema(name)), nl=False)
        return
    assert out is not None
    texts = {f"{each}.json": _text(each, schema(each)) for each in SCHEMAS.names()}
    write_files(out, {file: text_file(text) for file, text in texts.items()})


def _text(name: str, made: dict[str, object]) -> str:
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"
