"""CSV of Nsight Systems: ``nsys stats --report cuda_gpu_trace --format csv report.nsys-rep``.

It has no bytes and no arithmetic, and shared memory in megabytes of three digits unless exported in other units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from iossim.measurements.profilers.kernels import MICROSECONDS, Profile, ProfiledKernel, number
from iossim.measurements.text_files import CsvError, csv_rows

_AXES = "XYZ"
_BYTES = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3}
#: A column, and its unit.
_WITH_UNIT = re.compile(r"(.*\S)\s*\((\w+)\)")
_COLUMNS = ("Start", "Duration", *(f"{of}{axis}" for of in ("Grd", "Blk") for axis in _AXES), "Strm", "Name")


def is_header(line: str) -> bool:
    columns = (cell.strip().strip('"') for cell in line.split(","))
    return {_name_and_unit(column)[0] for column in columns} >= {"Duration", "GrdX", "BlkX"}


def profile(text: str, header: int) -> Profile:
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
