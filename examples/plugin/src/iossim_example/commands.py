"""A command of the command line: ``iossim hello``."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    @app.command("hello", help="Greet someone.")
    def hello(name: str = "world") -> None:
        typer.echo(f"hello, {name}")
