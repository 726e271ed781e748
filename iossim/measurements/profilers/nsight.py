"""CSV of Nvidia's two profilers, Nsight Compute and Nsight Systems.

*Compute*: a kernel per row (``--page raw``), or a metric per row (``--page details``, or no page). It runs kernels one
by one, so that their durations are times alone (with ``--clock-control none``: otherwise it locks clocks to their
base), and has bytes and arithmetic if their metrics were recorded. Tensor cores are not counted.

*Systems*: ``nsys stats --report cuda_gpu_trace --format csv report.nsys-rep``. It has no bytes and no arithmetic, and
shared memory in megabytes of three digits unless exported in other units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from iossim.measurements.profilers.kernels import DURATION, MICROSECONDS, Profile, ProfiledKernel, number
from iossim.measurements.text_files import CsvCells, CsvError, CsvRows, csv_rows

_DURATIONS = ("gpu__time_duration.sum", "Duration")
_TIME_UNITS = MICROSECONDS | {"nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3, "second": 1e6}
#: A count and its unit, in powers of 1000.
_UNIT = re.compile(r"([KMGT]?)(byte|inst|register|thread|block)?\b.*")
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
#: The metrics whose sum is a column: the first of these lists that was recorded.
_METRICS = {
    "registers_per_thread": (("launch__registers_per_thread",),),
    "shared_bytes": (("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic"),),
    "dram_bytes": (("dram__bytes.sum",), ("dram__bytes_read.sum", "dram__bytes_write.sum")),
    "l2_bytes": (("lts__t_bytes.sum",),),
}
#: Instructions of each arithmetic pipe, by the letter of their metrics.
_PIPES = {"fp32": "f", "fp64": "d"}
_INSTRUCTIONS = "smsp__sass_thread_inst_executed_op_{}{}_pred_on.sum"
#: Columns of a kernel's launch configuration and stream.
_NEEDED = ("Grid Size", "Block Size", "Stream")


def is_compute_header(line: str) -> bool:
    return {"ID", "Kernel Name"} <= {cell.strip().strip('"') for cell in line.split(",")}


def compute_profile(text: str) -> Profile:
    """The kernels of a file; raises CsvError."""
    table, header = _table(text)
    kernels, product = [], ""
    for order, (metrics, row) in enumerate(
        _rows_of_metrics(table, header) if "Metric Name" in table.columns else _rows(table, header)
    ):
        faults = {
            name: CsvError(
                f"the column {name!r} is missing", f"profile with --page raw --metrics {_DURATIONS[0]}", header
            )
            for name in _NEEDED
            if name not in table.columns
        }
        product = product or str(metrics.cells.get("device__attribute_display_name", ""))
        duration_us = metrics.amount(next(name for name in _DURATIONS if name in metrics.cells), DURATION, faults)
        cells = {
            "name": str(row["Kernel Name"]),
            "blocks": str(row.get("Grid Size", "")),
            "threads": str(row.get("Block Size", "")),
            **_held_and_asked(metrics, faults),
        }
        kernels.append(
            ProfiledKernel(
                metrics.line,
                float(order),  # kernels ran one by one, in the order of the rows
                math.nan if duration_us is None else duration_us,
                str(row.get("Device", "")),
                (str(row.get("Context", "")), str(row.get("Stream", ""))),
                cells,
                faults,
                tuple(str(cell) for column, cell in row.items() if "Range" in column or "nvtx" in column.lower()),
            )
        )
    return Profile(tuple(kernels), one_by_one=True, product=product)


def _table(text: str) -> tuple[CsvRows, int]:
    """The table after the output of the profiler and the program, and the line of its header."""
    lines = text.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if is_compute_header(line))
    # Printed lines before the header, and between rows, become empty lines, so that line numbers are preserved.
    kept = ["\n" if line.startswith("==") else line for line in lines[first:]]
    if not any(line.strip() for line in kept[1:]):
        raise CsvError("the profile has no kernels", "record it again")
    try:
        return csv_rows("\n" * first + "".join(kept)), first + 1
    except CsvError as error:
        if error.line in (None, first + 1):
            raise
        remedy = "it is cut short, or mixed with the program's output: record it again with --log-file"
        raise CsvError(error.reason, remedy, error.line) from None


@dataclass(frozen=True, slots=True)
class _Metrics:
    """The metrics of a kernel by name, and their units, with the line numbers of both."""

    line: int
    cells: CsvCells
    units: CsvCells
    unit_line: int

    def amount(self, metric: str, column: str, faults: dict[str, CsvError]) -> float | None:
        """A metric in microseconds, bytes or a count; None if it was not recorded, or is invalid."""
        text, unit = (str(cells.get(metric, "")).strip() for cells in (self.cells, self.units))
        if metric in _DURATIONS and unit not in _TIME_UNITS:
            known = f"known: {', '.join(_TIME_UNITS)}"
            raise CsvError(f"the unit of {metric!r} is {unit!r}", known, self.unit_line)
        if not text:
            return None
        # Commas separate thousands, or in other locales are decimal points: then three digits do not always follow.
        if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d*)?", text):
            text = text.replace(",", "")
        try:
            value = number(text, metric, self.line)
        except CsvError as error:
            faults[column] = error
            return None
        if metric in _DURATIONS:
            return value * _TIME_UNITS[unit]
        found = _UNIT.fullmatch(unit)
        if found is None:
            reason = f"the unit of {metric!r} is {unit!r}"
            faults[column] = CsvError(reason, "profile with --print-units base", self.unit_line)
            return None
        return value * _PREFIXES[found[1]]


def _rows(table: CsvRows, header: int) -> Iterator[tuple[_Metrics, CsvCells]]:
    """One kernel per row; the row after the header has the units."""
    if not set(_DURATIONS) & set(table.columns):
        remedy = f"profile with --page raw --metrics {_DURATIONS[0]}"
        raise CsvError(f"the column {_DURATIONS[0]!r} is missing", remedy, header)
    units, *rows = table.rows
    if str(units.cells["ID"]).strip():
        raise CsvError("has no units", "profile with --page raw", units.line)
    for row in rows:
        yield _Metrics(row.line, row.cells, units.cells, units.line), row.cells


def _rows_of_metrics(table: CsvRows, header: int) -> Iterator[tuple[_Metrics, CsvCells]]:
    """One metric per row: those of one process and ID belong to one kernel; those without a duration to none."""
    for name in ("Metric Unit", "Metric Value"):
        if name not in table.columns:
            raise CsvError(f"the column {name!r} is missing", "record the profile again", header)
    of_kernel: dict[tuple[str | None, str], tuple[dict[str, str], dict[str, str]]] = {}
    timed: dict[tuple[str | None, str], tuple[int, CsvCells]] = {}
    for row in table.rows:
        key, metric = (row.cells.get("Process ID"), row.cells["ID"]), str(row.cells["Metric Name"])
        values, units = of_kernel.setdefault(key, ({}, {}))
        if metric not in values:
            values[metric], units[metric] = row.cells["Metric Value"], row.cells["Metric Unit"]
        if metric in _DURATIONS and key not in timed:
            timed[key] = row.line, row.cells
    if not timed:
        raise CsvError(f"has no metric {_DURATIONS[0]}", f"profile with --metrics {_DURATIONS[0]}", header)
    for key, (line, cells) in timed.items():
        yield _Metrics(line, *of_kernel[key], line), cells


def _held_and_asked(metrics: _Metrics, faults: dict[str, CsvError]) -> Mapping[str, str]:
    """Recorded resources of an SM and traffic of a kernel."""
    found: dict[str, str] = {}
    for column, alternatives in _METRICS.items():
        for names in alternatives:
            amounts = [metrics.amount(name, column, faults) for name in names]
            known = [amount for amount in amounts if amount is not None]
            if len(known) == len(names):
                found[column] = f"{math.fsum(known):.17g}"
                break
    counts: dict[str, float] = {}
    for pipe, letter in _PIPES.items():
        each = [metrics.amount(_INSTRUCTIONS.format(letter, what), "flops", faults) for what in ("add", "mul", "fma")]
        counts[pipe] = math.fsum(count for count in each if count is not None)
    pipe = max(counts, key=lambda name: counts[name])
    if counts[pipe]:
        # A separate addition counts as a multiply-add, which is two operations.
        found |= {"flops": f"{2 * counts[pipe]:.17g}", "pipe": pipe}
    return found


_AXES = "XYZ"
_BYTES = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3}
#: A column, and its unit.
_WITH_UNIT = re.compile(r"(.*\S)\s*\((\w+)\)")
_COLUMNS = ("Start", "Duration", *(f"{of}{axis}" for of in ("Grd", "Blk") for axis in _AXES), "Strm", "Name")


def is_systems_header(line: str) -> bool:
    columns = (cell.strip().strip('"') for cell in line.split(","))
    return {_name_and_unit(column)[0] for column in columns} >= {"Duration", "GrdX", "BlkX"}


def systems_profile(text: str, header: int) -> Profile:
    """The kernels of a file whose header is line ``header``, counted from 0; raises CsvError."""
    lines = text.splitlines(keepends=True)
    # Output before the header becomes empty lines, so that line numbers are preserved.
    table = csv_rows("\n" * header + "".join(lines[header:]))
    units = dict(map(_name_and_unit, table.columns))
    columns = {_name_and_unit(column)[0]: column for column in table.columns}
    for name in _COLUMNS:
        if name not in columns:
            raise CsvError(f"the column {name!r} is missing", "export the report cuda_gpu_trace", header + 1)
    start_us, duration_us = (_scale(units, name, MICROSECONDS, "ns", header) for name in ("Start", "Duration"))
    shared = [name for name in ("StcSMem", "DymSMem") if name in columns]
    scales = {name: _scale(units, name, _BYTES, "MB", header) for name in shared}
    kernels: list[ProfiledKernel] = []
    for row in table.rows:
        told = {name: str(row.cells[column]).strip() for name, column in columns.items()}
        if not told["GrdX"]:
            continue
        start = number(told["Start"], "Start", row.line) * start_us
        duration = number(told["Duration"], "Duration", row.line) * duration_us
        held = [number(told[name], name, row.line) * scales[name] for name in shared if told[name]]
        cells = {
            "name": told["Name"],
            "blocks": "x".join(told[f"Grd{axis}"] for axis in _AXES),
            "threads": "x".join(told[f"Blk{axis}"] for axis in _AXES),
            "registers_per_thread": told.get("Reg/Trd", ""),
            "shared_bytes": str(round(sum(held))) if held else "",
        }
        queue = told.get("Ctx", ""), told["Strm"]
        kernels.append(ProfiledKernel(row.line, start, duration, told.get("Device", ""), queue, cells))
    notes = []
    if any(float(kernel.cells["shared_bytes"] or 0) for kernel in kernels) and max(scales.values()) > 1e3:
        notes.append("Nsight Systems rounds shared memory to three decimals of its unit")
    # ``NVIDIA A100-SXM4-80GB (0)``, the number last; ``GPU (0)`` names none.
    product = re.sub(r"\s*\(\d+\)$", "", kernels[0].device) if kernels else ""
    product = "" if product == "GPU" else product
    return Profile(tuple(kernels), "", len(table.rows) - len(kernels), tuple(notes), product=product)


def _scale(units: Mapping[str, str], name: str, known: Mapping[str, float], default: str, header: int) -> float:
    unit = units[name] or default
    if unit not in known:
        raise CsvError(f"the unit of {name!r} is {unit!r}", f"known: {', '.join(known)}", header + 1)
    return known[unit]


def _name_and_unit(column: str) -> tuple[str, str]:
    found = _WITH_UNIT.fullmatch(column)
    return (found[1], found[2]) if found else (column, "")
