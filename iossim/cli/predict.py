"""``iossim predict``: the GPU time of each operator in a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iossim.cli import options

Operators = Annotated[
    Path,
    typer.Argument(
        metavar="OPS.csv",
        help="A table with a row for each operator. conv: batch, in_channels, out_channels, kernel, in_size, stride, "
        "padding, each size also as _h and _w (in_h, kernel_w, pad_h ...); linear: batch, m, n, k; gemm: m, n, k, "
        "trans_a, trans_b; add, relu: rows, cols. Other columns are kept.",
    ),
]
Kind = Annotated[
    str | None,
    typer.Option("--op", metavar="KIND", help="The kind of all rows; without it, a column 'op' says each row's."),
]
OutFile = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to this file, not to standard output.")
]
JsonTable = Annotated[bool, typer.Option("--json", help="JSON instead of CSV.")]


def register(app: typer.Typer) -> None:
    app.command("predict", help="Predict the GPU time of each operator in a table.")(predict)


def predict(
    operators: Operators,
    device: options.Device = None,
    op: Kind = None,
    dtype: options.DataType = "fp32",
    out: OutFile = None,
    as_json: JsonTable = False,
) -> None:
    """Add gpu_time_us, low_us, high_us, algorithm and kernels to a table of operators.

    gpu_time_us is the steady device time of one call among many, without the host's overhead; low_us to high_us is
    where nine of ten measurements are expected. A column of the table that has one of these names goes on as input_NAME.
    """
    from iossim.devices.load import device as load_device
    from iossim.devices.load import device_names
    from iossim.errors import OptionError
    from iossim.ir.types import Precision
    from iossim.prediction.operator_table import predicted_csv, predicted_json, read_operators
    from iossim.prediction.predict import predict as predict_operators
    from iossim.user_files import write_atomically

    if device is None:
        raise OptionError(f"predict needs a device; give --device NAME; known: {', '.join(device_names())}")
    profile = load_device(device)
    precision = Precision.named(dtype)
    profile.require(precision)
    table = read_operators(operators, op, precision)
    predictions = predict_operators(table.operators, profile)
    text = predicted_json(table, predictions) + "\n" if as_json else predicted_csv(table, predictions)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        write_atomically(out, text)
    except OSError as error:
        raise OptionError(f"cannot write {out}: {error.strerror}; choose another with --out") from None
