"""``iossim predict``: the GPU time of each operator of a table, or of a model."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from iossim.base.errors import OptionError, did_you_mean
from iossim.cli.options import ModelOptions, command, make_ready
from iossim.cli.outputs import notes, present, tell_written

if TYPE_CHECKING:
    from iossim.hardware.lowering.residence import Weights
    from iossim.hardware.profile import DeviceProfile

#: Endings of models' file names.
_MODEL_ENDINGS = (".onnx", ".json")

#: The engine "calls" is no engine: operators are called one by one.
_CALLS = "calls"


@dataclass(frozen=True)
class OpByOp(ModelOptions):
    """Options for reading a model whose ops are priced one by one: ``--units`` fuses them."""

    units: str | None = "none"


@command
def predict(
    source: str,
    device: str | None = None,
    op: str | None = None,
    engine: str | None = None,
    weights: str = "auto",
    *,
    reading: OpByOp,
    out: Path | None = None,
    as_csv: bool = False,
    as_json: bool = False,
    whole: bool = False,
) -> None:
    """Add gpu_time_us, low_us, high_us, algorithm, weights and kernels to a table of operators, or list a model's."""
    from iossim.base.user_files import check_file, write_atomically
    from iossim.execution.engine import Engine
    from iossim.hardware.load import device as load_device
    from iossim.hardware.lowering.residence import Weights
    from iossim.hardware.names import device_names
    from iossim.prediction.tables import predict_network
    from iossim.report.time_tables import predicted_table, remarks

    if device is None:
        raise OptionError(f"predict needs a device; give --device NAME; known: {', '.join(device_names())}")
    if as_csv and as_json:
        raise OptionError("a table is CSV or JSON; give --csv or --json, not both")
    check_file(out, "--out")
    make_ready(device)
    profile, found = load_device(device), Weights.named(weights)
    if not _is_model(source):
        text = _of_table(Path(source), op, profile, engine or _CALLS, found, reading, as_json)
    else:
        if op is not None:
            raise OptionError(f"a model says what its ops are; leave --op out for {source}")
        network = reading.network(source)
        profile.require(network.precision)
        table = predict_network(network, profile, Engine.named(engine or "auto", profile), found)
        if out is None and not (as_csv or as_json):
            shown = predicted_table(table, "" if whole else "--all lists all")
            present(None, [shown, *notes(remarks(table))], as_json=False)
            return
        text = json.dumps(table.to_json(), indent=1) + "\n" if as_json else table.csv()
    if out is None:
        typer.echo(text, nl=False)
        return
    write_atomically(out, text)
    tell_written([out])


def _is_model(source: str) -> bool:
    """True for a model: the source ends as models' files do, or is a name of the zoo, without ending or file."""
    return source.lower().endswith(_MODEL_ENDINGS) or not (Path(source).suffix or os.path.exists(source))


def _of_table(
    path: Path, kind: str | None, profile: DeviceProfile, engine: str, weights: Weights, reading: OpByOp, as_json: bool
) -> str:
    from iossim.execution.engine import Engine
    from iossim.ir.types import Precision
    from iossim.prediction.predict import predict as predict_operators
    from iossim.prediction.tables import predicted_csv, predicted_json, read_operators

    for option in fields(OpByOp):
        if option.name != "dtype" and getattr(reading, option.name) != option.default:
            raise OptionError(f"`{option.name}` is for models; leave it out for the table {path}")
    table = read_operators(path, kind, Precision.named(reading.dtype or "fp32"))
    for precision in dict.fromkeys(operator.precision for operator in table.operators):
        profile.require(precision)
    if engine not in (known := [_CALLS, "auto", *map(str, Engine)]):
        raise OptionError(f"unknown engine {engine!r}; {did_you_mean(engine, known)}")
    if engine == _CALLS:
        predictions = predict_operators(table.operators, profile, weights=weights)
    else:
        named = Engine.named(engine, profile)
        libraries = named.libraries_on(profile.architecture)
        predictions = predict_operators(table.operators, profile, libraries, named.issue_alone, weights)
    return predicted_json(table, predictions) + "\n" if as_json else predicted_csv(table, predictions)
