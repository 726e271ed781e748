"""``python -m evidence validate``: every quoted figure of accuracy, recomputed from data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iossim.cli.options import listed, with_flags
from iossim.cli.outputs import Part, Writer, check_drawing, pictures, present, text_file, wants_plot
from iossim.cli.progress import progress_bars

if TYPE_CHECKING:
    from evidence.validation.report import ValidationReport

Devices = Annotated[
    list[str] | None,
    typer.Option("--device", "-d", metavar="NAME", help="Only this device, or profile.yaml; may be repeated."),
]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="A folder or file of measurements; may be repeated. By default those beside the shipped profiles, and "
        "data/kernels*, data/framework_operators, data/operators and data/concurrency in $IOSSIM_SHARED or ../shared.",
    ),
]
Parts = Annotated[
    list[str] | None,
    typer.Option(
        "--part",
        metavar="NAME",
        help="Only operators, networks, measured, concurrency, shares or engines; may be repeated.",
    ),
]
Splits = Annotated[
    list[str] | None,
    typer.Option(
        "--split",
        metavar="NAME",
        help="What operators are held out by: hash, size (the largest fifth), device (each predicted from the others), "
        "family (of kernels); may be repeated. By default the first three.",
    ),
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Compare the engines on a sample of the stages, and hold operators out by hash alone: 90 seconds.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("validate", help="Recompute from data how wrong predictions are.")(validate)


def validate(
    device: Devices = None,
    data: Data = None,
    part: Parts = None,
    split: Splits = None,
    quick: Quick = False,
    out: Annotated[Path | None, listed("out")] = None,
    plot: Annotated[bool | None, listed("plot")] = None,
    as_json: Annotated[bool, listed("as_json")] = False,
) -> None:
    """Compare predictions with measured operators, with published and measured networks, with concurrent kernels and
    parts of a device, and one engine with the other.

    Operators are judged on held-out data: shapes by their hash, the largest shapes, and whole devices.
    """
    from evidence.validation.report import validate as recompute
    from iossim.base.errors import OptionError
    from iossim.base.user_files import check_writable
    from iossim.hardware.load import device as load_device

    if out is None and plot:
        raise OptionError("--plot needs a folder to write to; give --out DIR")
    if plot:
        check_drawing()
    if out is not None:
        check_writable(out)
    profiles = [load_device(name) for name in device] if device else None
    with progress_bars(quiet=as_json, unit="") as progress:
        report = recompute(profiles, data, part or None, quick=quick, progress=progress, splits=split or None)
    report = replace(report, notes=tuple(map(with_flags, report.notes)))
    present(report.to_json, _parts(report), as_json, out=out, files=lambda: _files(report, plot))


def _parts(report: ValidationReport) -> Iterator[Part]:
    from evidence.tables.accuracy_tables import accuracy_tables

    yield accuracy_tables(report)


def _files(report: ValidationReport, plot: bool | None) -> dict[str, Writer]:
    text = json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n"
    files = {"validation.json": text_file(text)}
    if wants_plot(plot):
        from evidence.tables.figures import accuracy_figures

        files |= pictures(*accuracy_figures(report))
    return files
