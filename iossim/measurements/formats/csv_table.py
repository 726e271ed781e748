"""iossim's own format as CSV: the header as ``# key: value`` lines, then a table. See ``measurement_set``."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from iossim.base.user_files import read_json
from iossim.measurements.formats import Format
from iossim.measurements.formats.json_lines import (
    header_record,
    measured_rows,
    measurement_record,
    parse_header,
    stage_record,
)
from iossim.measurements.measurement import SCHEMA, MeasurementError, MeasurementSet, unusable
from iossim.measurements.operator_kinds import KINDS, describe
from iossim.measurements.text_files import MEASUREMENT, STAGE, parse_table, read_file

_EXTENTS = {name: [f"{name}_{axis}" for axis in "xyz"] for name in ("grid", "block")}
_OF_STAGES = ("stage", "precision", *STAGE)
_OWN_COLUMNS = (*_OF_STAGES[:-1], *(column for name in MEASUREMENT for column in _EXTENTS.get(name, [name])))


def _recognises(path: Path, head: str) -> bool:
    return head.startswith("#") and f"schema: {SCHEMA}" in head.partition("\n")[0]


def _read(path: Path, device: str | None) -> MeasurementSet:
    table = parse_table(read_file(path), path)
    header, promised = parse_header({key: _value(text) for key, text in table.preamble.items()}, path, device)
    if "latency_us" not in table.columns:
        raise unusable(path, "the column latency_us is missing; add it")
    # An empty cell belongs to a column of another kind: it is removed from the row.
    rows = [type(row)(row.line, {name: cell for name, cell in row.cells.items() if cell != ""}) for row in table.rows]
    return measured_rows(header, promised, rows, table.sieve)


def _value(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        return text


def to_csv(measured: MeasurementSet) -> str:
    """The text of a set, as :data:`FORMAT` reads it. Raises MeasurementError for a kernel's name with ``;``."""
    rows: list[dict[str, Any]] = []
    for measurement in measured.measurements:
        record = measurement_record(measurement, measured.header.precision)
        if any(";" in name for name in measurement.kernels):
            raise MeasurementError(
                f"kernel {measurement.kernels[0]!r} has ';' in its name, which CSV cannot hold; write JSON lines"
            )
        for name, columns in _EXTENTS.items():
            record |= dict(zip(columns, record.pop(name, ()), strict=False))
        if measurement.kernels:
            record["kernels"] = ";".join(measurement.kernels)
        rows.append(record)
    for stage in measured.stages:
        groups = "|".join(";".join(map(describe, group)) for group in stage.groups)
        known = stage_record(stage, measured.header.precision)
        rows.append({**dict.fromkeys(_OF_STAGES, ""), "stage": groups, **known})
    used = {name for row in rows for name in row}
    order = dict.fromkeys(["op", *(column.name for kind in KINDS.values() for column in kind.columns), *_OWN_COLUMNS])
    stream = io.StringIO()
    for key, value in sorted(header_record(measured).items(), key=lambda item: item[0] != "schema"):
        stream.write(f"# {key}: {value if key == 'schema' else json.dumps(value)}\n")
    writer = csv.DictWriter(stream, [name for name in order if name in used | {"op", "latency_us"}])
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


FORMAT = Format("iossim measurements as CSV", _recognises, _read)
