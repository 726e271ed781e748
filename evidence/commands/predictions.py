"""``python -m evidence predictions``: the checked-in table of predictions, recomputed, with the changes."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    app.command("predictions", help="Write the table of predictions anew, and print what moved.")(predictions)


def predictions() -> None:
    """Write evidence/predictions.csv and print each row that moved by more than 1%."""
    from evidence.predictions import TABLE, computed, moved, read, write

    now = computed()
    for line in moved(read() if TABLE.exists() else {}, now):
        typer.echo(line)
    write(now)
    typer.echo(f"wrote {TABLE}", err=True)
