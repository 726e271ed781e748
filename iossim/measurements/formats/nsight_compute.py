"""CSV of Nsight Compute: one row a kernel (``--page raw``), or one row a metric (``--page details``, or no page).

Nsight Compute sees kernels, not operators: name an NVTX range after the operator around each call, in the words of
``operator_kinds.describe``, and profile with ``--nvtx``::

    torch.cuda.nvtx.range_push("conv batch=1 in_channels=64 out_channels=64 in_size=56 kernel=3 stride=1 padding=1")
    torch.nn.functional.conv2d(x, w, padding=1)
    torch.cuda.nvtx.range_pop()

    ncu --nvtx --csv --page raw --metrics gpu__time_duration.sum,launch__grid_size python script.py > kernels.csv

The range may have other ranges around it; a word ``precision=fp16`` says the precision. An operator's call takes the sum
of its kernels' durations. Where kernels of equal ranges follow each other, each repetition of their names is one call.
Nsight Compute locks the clocks to their base unless run with ``--clock-control none``, which is what the profile's boost
clock needs.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from iossim.ir.types import Precision
from iossim.measurements.calls import Call, measurements_of_calls
from iossim.measurements.device_names import device_of
from iossim.measurements.formats.format import Format
from iossim.measurements.kinds.kind import RecordError
from iossim.measurements.measurement import Extent, Header, MeasurementError, MeasurementSet
from iossim.measurements.operator import Operator
from iossim.measurements.operator_kinds import ALIASES, KINDS, parse_description
from iossim.measurements.rows import RowError, Sieve
from iossim.measurements.text_files import read_file

_DURATIONS = ("gpu__time_duration.sum", "Duration")
_MICROSECONDS = {
    "ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6
}  # fmt: skip
_RANGE = re.compile(rf"(?<![\w.])({'|'.join([*KINDS, *ALIASES])})((?:[ ,]+[a-z_]+=\w+)+)")
_PRECISION = re.compile(r"[ ,]+precision=(\w+)")
_EXTENT = re.compile(r"\(?\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)?")


@dataclass(frozen=True, slots=True)
class _Kernel:
    line: int
    name: str
    range: str
    duration_us: float
    grid: Extent | None
    block: Extent | None


def _recognises(path: Path, head: str) -> bool:
    return any(_is_header(line) for line in head.splitlines())


def _is_header(line: str) -> bool:
    return line.startswith(('"ID",', "ID,")) and "Kernel Name" in line


def _read(path: Path, device: str | None) -> MeasurementSet:
    text = read_file(path)
    rows = list(_rows(text, path))
    if not rows:
        raise MeasurementError(f"measurements {path}: the profile has no kernels; record it again")
    columns = rows[0][1].keys()
    if not any("Range" in column or "nvtx" in column.lower() for column in columns):
        raise MeasurementError(
            f"measurements {path}: no NVTX ranges say which operator a kernel is of; name them and profile with --nvtx"
        )
    sieve = Sieve(path)
    is_long = "Metric Name" in columns
    missing = [name for name in ("Metric Unit", "Metric Value") if is_long and name not in columns]
    if missing:
        raise MeasurementError(f"measurements {path}: the column {missing[0]!r} is missing; record the profile again")
    kernels = list(_kernels_of_metrics(rows, path, sieve) if is_long else _kernels_of_rows(rows, path, sieve))
    operators: dict[str, Operator | None] = {}
    for kernel in kernels:
        if kernel.range not in operators:
            operators[kernel.range] = _operator(kernel, sieve)
        elif operators[kernel.range] is None and kernel.range:
            sieve.drop(kernel.line, f"the NVTX range {kernel.range!r} names no operator")
    outside = sum(not kernel.range for kernel in kernels)
    calls = []
    for name, run in groupby(kernels, key=lambda kernel: kernel.range):
        operator = operators[name]
        if operator is not None:
            calls += [_call(operator, own) for own in _repetitions(list(run))]
    notes = sieve.notes()
    if outside:
        notes = (*notes, f"{outside:,} of {len(kernels):,} kernels left out: in no NVTX range of an operator")
    header = Header(
        device=device_of(path, None, device),
        data_set=path.name,
        includes_gaps=False,
        source="Nsight Compute",
    )
    return MeasurementSet(header, measurements_of_calls(calls), (), notes)


def _rows(text: str, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines behind the header, which follows what the profiler and the program printed."""
    lines = text.splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if _is_header(line))
    reader = csv.reader(io.StringIO("".join(lines[first:]), newline=""))
    columns: Sequence[str] = next(reader)
    for cells in _checked(reader, path):
        line = first + reader.line_num
        if not cells or cells[0].startswith("=="):
            continue
        if len(cells) != len(columns):
            raise MeasurementError(
                f"measurements {path}: line {line} has {len(cells)} of {len(columns)} columns: cut short, or mixed with "
                "the program's output; record it again with --log-file"
            )
        yield line, dict(zip(columns, cells, strict=True))


def _checked(reader: Iterator[list[str]], path: Path) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise MeasurementError(f"measurements {path}: not CSV: {error}; record the profile again") from None


def _kernels_of_rows(rows: list[tuple[int, dict[str, str]]], path: Path, sieve: Sieve) -> Iterator[_Kernel]:
    """A kernel a row; the row behind the header holds the units."""
    (line, units), body = rows[0], rows[1:]
    column = next((name for name in _DURATIONS if name in units), None)
    if column is None or units.get("ID", "").strip():
        missing = f"no row of units at line {line}" if column else f"no column {_DURATIONS[0]}"
        raise MeasurementError(f"measurements {path}: {missing}; profile with --page raw --metrics {_DURATIONS[0]}")
    scale = _scale(units[column], path, line)
    for line, row in body:
        yield from _kernel(line, row, row[column], scale, sieve)


def _kernels_of_metrics(rows: list[tuple[int, dict[str, str]]], path: Path, sieve: Sieve) -> Iterator[_Kernel]:
    """A metric a row: those of the duration are the kernels, one for each ID."""
    seen: set[tuple[str | None, str | None]] = set()
    for line, row in rows:
        key = row.get("Process ID"), row.get("ID")
        if row["Metric Name"] in _DURATIONS and key not in seen:
            seen.add(key)
            yield from _kernel(line, row, row["Metric Value"], _scale(row["Metric Unit"], path, line), sieve)
    if not seen:
        raise MeasurementError(
            f"measurements {path}: no metric {_DURATIONS[0]}; profile with --metrics {_DURATIONS[0]}"
        )


def _scale(unit: str, path: Path, line: int) -> float:
    if unit.strip() not in _MICROSECONDS:
        raise MeasurementError(
            f"measurements {path}: line {line}: the unit of the duration is {unit!r}; known: {', '.join(_MICROSECONDS)}"
        )
    return _MICROSECONDS[unit.strip()]


def _kernel(line: int, row: Mapping[str, str], duration: str, scale: float, sieve: Sieve) -> Iterator[_Kernel]:
    """The kernel, or nothing if its duration cannot be read."""
    sieve.total += 1
    try:
        microseconds = _number(duration) * scale
    except RowError as error:
        sieve.drop(line, str(error))
        return
    ranges = [cell for column, cell in row.items() if "Range" in column or "nvtx" in column.lower()]
    found = [match.group(0) for cell in ranges for match in _RANGE.finditer(cell)]
    # The innermost range is the last.
    name = found[-1].replace(",", " ") if found else ""
    yield _Kernel(line, row["Kernel Name"], name, microseconds, _extent(row, "Grid Size"), _extent(row, "Block Size"))


def _number(text: str) -> float:
    """A number with commas between thousands; raises RowError where the comma may be another locale's point."""
    text = text.strip()
    if "," in text and not re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d*)?", text):
        raise RowError("the duration is in another locale's digits; profile with LC_ALL=C")
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise RowError("the duration is not a positive number")
    return value


def _extent(row: Mapping[str, str], column: str) -> Extent | None:
    match = _EXTENT.fullmatch(row.get(column, "").strip())
    return Extent(*map(int, match.groups())) if match else None


def _operator(kernel: _Kernel, sieve: Sieve) -> Operator | None:
    if not kernel.range:
        return None
    match = _PRECISION.search(kernel.range)
    try:
        precision = Precision(match.group(1)) if match else Precision.FP32
        return parse_description(_PRECISION.sub("", kernel.range), precision)
    except (RecordError, ValueError):
        sieve.drop(kernel.line, f"the NVTX range {kernel.range!r} names no operator")
        return None


def _repetitions(run: list[_Kernel]) -> Iterator[list[_Kernel]]:
    """The calls in a run of kernels of one operator: the shortest sequence of names that, repeated, is the run."""
    names = [kernel.name for kernel in run]
    count = len(names)
    period = next(
        size for size in range(1, count + 1) if count % size == 0 and names == names[:size] * (count // size)
    )
    return (run[start : start + period] for start in range(0, count, period))


def _call(operator: Operator, kernels: list[_Kernel]) -> Call:
    longest = max(kernels, key=lambda kernel: kernel.duration_us)
    return Call(
        operator,
        math.fsum(kernel.duration_us for kernel in kernels),
        tuple(kernel.name for kernel in kernels),
        longest.grid,
        longest.block,
    )


FORMAT = Format("CSV of Nsight Compute", _recognises, _read)
