"""``python -m evidence convert``: a public data set as measurements in the documented format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iossim.cli.options import listed

Source = Annotated[Path, typer.Argument(metavar="FILE", help="A table of a public data set.")]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="A .jsonl or .csv file that is written.")]


def register(app: typer.Typer) -> None:
    app.command("convert", help="Write a public data set as measurements that iossim reads.")(convert)


def convert(source: Source, out: Out, device: Annotated[str | None, listed("device")] = None) -> None:
    """Convert the rows of one device, chosen by --device if the file has several or names none."""
    from evidence.data.data_sets import read_measurements
    from iossim.measurements.measurement_set import write_measurements

    measured = read_measurements(source, device)
    write_measurements(measured, out)
    rows = len(measured.measurements) + len(measured.stages)
    typer.echo(f"wrote {out}: {rows:,} measurements of {measured.device}", err=True)
