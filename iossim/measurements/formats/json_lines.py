"""iossim's own format as JSON lines: the header, then a measurement or a stage per line. See ``measurement_set``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from iossim.base.user_files import read_json
from iossim.base.values import first_problem
from iossim.ir.types import Precision
from iossim.measurements.formats import Format
from iossim.measurements.measurement import (
    SCHEMA,
    VERSION,
    Header,
    Measurement,
    MeasurementError,
    MeasurementSet,
    StageMeasurement,
    device_of,
    unusable,
)
from iossim.measurements.operator_kinds import record_of
from iossim.measurements.text_files import NumberedRow, RowReader, Sieve, read_file, written

#: Header fields with the number of following lines of each sort: fewer lines mean that the file was truncated.
COUNTS = ("measurements", "stages")


def _header(fields: dict[str, Any], path: Path, device: str | None) -> tuple[Header, dict[str, int]]:
    """The header and the counts that it announces; raises MeasurementError naming the invalid field."""
    counts = {name: fields.pop(name) for name in COUNTS if name in fields}
    if any(isinstance(count, bool) or not isinstance(count, int) for count in counts.values()):
        raise unusable(path, "line 1: counts are not whole numbers; correct the header")
    version = fields.get("version")
    if isinstance(version, int) and version > VERSION:
        raise unusable(path, f"version {version} of the format, this iossim reads {VERSION}; update iossim")
    fields["device"] = device_of(path, fields.get("device"), device)
    try:
        return Header.model_validate_json(json.dumps(fields)), counts
    except ValidationError as error:
        raise unusable(path, f"header: {first_problem(error)}; correct the header") from None


def _measured(header: Header, promised: dict[str, int], rows: Sequence[NumberedRow], sieve: Sieve) -> MeasurementSet:
    """The set of a file's rows, some of which ``sieve`` dropped; raises MeasurementError if rows are missing."""
    expected, found = sum(promised.values()), sieve.total + len(rows)
    if promised and found != expected:
        problem = f"the header says {expected:,} rows, the file has {found:,}: it is cut short or was edited"
        raise unusable(sieve.path, f"{problem}; copy or record it again, or correct the header")
    reader = RowReader(header)
    measurements = tuple(sieve.keep((row for row in rows if "stage" not in row.cells), reader.measurement))
    stages = tuple(sieve.keep((row for row in rows if "stage" in row.cells), reader.stage))
    return MeasurementSet(header, measurements, stages, sieve.notes())


def _recognises(path: Path, head: str) -> bool:
    first = head.lstrip().partition("\n")[0]
    return first.startswith("{") and f'"{SCHEMA}"' in first


def _read(path: Path, device: str | None) -> MeasurementSet:
    sieve = Sieve(path)
    records: list[NumberedRow] = []
    lines = read_file(path).splitlines()
    last = max(index for index, line in enumerate(lines) if line.strip())
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            record = read_json(line)
        except ValueError:
            if index in (0, last):
                where = "the header is not JSON" if index == 0 else f"cut short at line {index + 1}"
                raise unusable(path, f"{where}; copy or record the file again") from None
            record = None
        if isinstance(record, dict):
            records.append(NumberedRow(index + 1, record))
        else:
            sieve.total += 1
            sieve.drop(index + 1, "the line is not a JSON object")
    header, promised = _header(dict(records[0].cells), path, device)
    return _measured(header, promised, records[1:], sieve)


def _measurement(measurement: Measurement, precision: Precision) -> dict[str, object]:
    """A measurement as JSON values, without unknown values and without the set's own precision."""
    own = measurement.operator.precision
    other = {} if own is precision else {"precision": str(own)}
    return {**record_of(measurement.operator), **other, **written(measurement)}


def _stage(stage: StageMeasurement, precision: Precision) -> dict[str, object]:
    """The known properties of a stage besides its operators; raises MeasurementError for several precisions."""
    own, *others = {operator.precision for group in stage.groups for operator in group}
    if others:
        raise MeasurementError("a stage of several precisions cannot be written; write operators of one precision")
    return ({} if own is precision else {"precision": str(own)}) | written(stage)


def to_json_lines(measured: MeasurementSet) -> str:
    """The text of a set, as :data:`FORMAT` reads it."""
    precision = measured.header.precision
    header = measured.header.model_dump(mode="json", by_alias=True)
    lines = [header | {"measurements": len(measured.measurements), "stages": len(measured.stages)}]
    lines += [_measurement(measurement, precision) for measurement in measured.measurements]
    for stage in measured.stages:
        groups = [[record_of(operator) for operator in group] for group in stage.groups]
        lines.append({"stage": groups} | _stage(stage, precision))
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


FORMAT = Format("iossim measurements as JSON lines", _recognises, _read)
