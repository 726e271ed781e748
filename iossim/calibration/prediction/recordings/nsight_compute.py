"""CSV of Nsight Compute, a kernel a row: ``ncu --csv --page raw --clock-control none --metrics ...``.

It runs kernels one by one, so that their durations are times alone, and tells bytes and arithmetic where their metrics were
recorded. Tensor cores have no count of operations there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

from iossim.calibration.prediction.recordings.recording import MICROSECONDS, Recorded, Recording, number, recording
from iossim.measurements.rows import NumberedRow
from iossim.measurements.text_files import CsvError, csv_rows

#: A count and its unit, in powers of 1000.
_UNIT = re.compile(r"([KMGT]?)(byte|inst|register|thread|block)?\b.*")
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TIME = "gpu__time_duration.sum"
_TIME_UNITS = MICROSECONDS | {"nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3, "second": 1e6}
#: The metrics whose sum a column is: the first of these lists that was recorded.
_METRICS = {
    "registers_per_thread": (("launch__registers_per_thread",),),
    "shared_bytes": (("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic"),),
    "dram_bytes": (("dram__bytes.sum",), ("dram__bytes_read.sum", "dram__bytes_write.sum")),
    "l2_bytes": (("lts__t_bytes.sum",),),
}
#: Instructions of each arithmetic pipe, by the letter of their metrics.
_PIPES = {"fp32": "f", "fp64": "d"}
_INSTRUCTIONS = "smsp__sass_thread_inst_executed_op_{}{}_pred_on.sum"


def is_header(columns: Collection[str]) -> bool:
    """Whether a line of these cells is the header."""
    return {"ID", "Kernel Name"} <= set(columns)


def read(lines: Sequence[str], header: int) -> Recording:
    """The kernels of a file whose header is line ``header``, counted from 0; raises CsvError. Behind it stand the units."""
    # What was told before the header, and between rows, becomes empty lines, so that lines keep their numbers.
    table = csv_rows("\n" * header + "".join("\n" if line.startswith("==") else line for line in lines[header:]))
    for name in ("Grid Size", "Block Size", "Stream", _TIME):
        if name not in table.columns:
            raise CsvError(
                f"the column {name!r} is missing", f"profile with --page raw --metrics {_TIME}", header + 1
            )
    units, *rows = table.rows
    if str(units.cells["ID"]).strip():
        raise CsvError("has no units", "profile with --page raw", units.line)
    kernels: list[Recorded] = []
    for order, row in enumerate(rows):
        cells = {
            "name": str(row.cells["Kernel Name"]),
            "blocks": str(row.cells["Grid Size"]),
            "threads": str(row.cells["Block Size"]),
            **_amounts(row, units),
        }
        told_us = _amount(row, units, _TIME)
        duration_us = math.nan if told_us is None else told_us
        queue = str(row.cells.get("Context", "")), str(row.cells["Stream"])
        # They ran one by one, in the order of the rows.
        kernels.append(Recorded(row.line, float(order), duration_us, str(row.cells.get("Device", "")), queue, cells))
    return recording(kernels, "", 0, [], one_by_one=True)


def _amounts(row: NumberedRow, units: NumberedRow) -> dict[str, str]:
    """What a kernel held and asked for, as far as it was recorded."""
    found: dict[str, str] = {}
    for column, alternatives in _METRICS.items():
        for metrics in alternatives:
            amounts = [_amount(row, units, metric) for metric in metrics]
            known = [amount for amount in amounts if amount is not None]
            if len(known) == len(metrics):
                found[column] = f"{math.fsum(known):.17g}"
                break
    counts: dict[str, float] = {}
    for pipe, letter in _PIPES.items():
        each = [_amount(row, units, _INSTRUCTIONS.format(letter, what)) for what in ("add", "mul", "fma")]
        counts[pipe] = math.fsum(count for count in each if count is not None)
    pipe = max(counts, key=lambda name: counts[name])
    if counts[pipe]:
        # An addition by itself takes the place of a multiply-add, which is two operations.
        found |= {"flops": f"{2 * counts[pipe]:.17g}", "pipe": pipe}
    return found


def _amount(row: NumberedRow, units: NumberedRow, metric: str) -> float | None:
    """A metric in microseconds, bytes or a count; None where it was not recorded."""
    text, unit = (str(cells.get(metric, "")).strip() for cells in (row.cells, units.cells))
    if not text:
        return None
    # Commas stand between thousands, or in other locales for the point: then three digits do not always follow.
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d*)?", text):
        text = text.replace(",", "")
    value = number(text, metric, row.line)
    if metric == _TIME:
        if unit not in _TIME_UNITS:
            raise CsvError(f"the unit of {metric!r} is {unit!r}", f"known: {', '.join(_TIME_UNITS)}", units.line)
        return value * _TIME_UNITS[unit]
    found = _UNIT.fullmatch(unit)
    if found is None:
        raise CsvError(f"the unit of {metric!r} is {unit!r}", "profile with --print-units base", units.line)
    return value * _PREFIXES[found[1]]
