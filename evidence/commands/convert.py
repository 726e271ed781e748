"""``python -m evidence convert``: a public data set as measurements in the documented format."""

from __future__ import annotations

from pathlib import Path

import typer

from iossim.cli.options import command


@command
def convert(source: Path, out: Path, device: str | None = None) -> None:
    """Convert the rows of one device, chosen by --device if the file has several or names none."""
    from evidence.data.data_sets import read_measurements
    from iossim.measurements.measurement_set import write_measurements

    measured = read_measurements(source, device)
    write_measurements(measured, out)
    rows = len(measured.measurements) + len(measured.stages)
    typer.echo(f"wrote {out}: {rows:,} measurements of {measured.device}", err=True)
