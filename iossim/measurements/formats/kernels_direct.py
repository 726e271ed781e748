"""Tables of operators called directly and steadily: ``KIND.DEVICE.csv`` with the operator's columns and ``latency_us``.

Optional columns are those of iossim's own format, as ``algorithm``. Times are of one call among many, without the
host's overhead. It is what a hand-made table of a few samples is taken for, too.
"""

from __future__ import annotations

from pathlib import Path

from iossim.measurements.bare_table import is_table_of_operators, read_bare_table
from iossim.measurements.formats.format import Format
from iossim.measurements.measurement import MeasurementSet
from iossim.measurements.text_files import header_cells


def _recognises(path: Path, head: str) -> bool:
    return not head.startswith("#") and is_table_of_operators(head) and "row" not in header_cells(head)


def _read(path: Path, device: str | None) -> MeasurementSet:
    return read_bare_table(path, device, "table of operators called directly", None)


FORMAT = Format("table KIND.DEVICE.csv of operators called directly", _recognises, _read)
