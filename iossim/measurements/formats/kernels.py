"""Tables recorded through a framework, call by call, in the order of the column ``row``.

``KIND.DEVICE.csv``, a row an operator: its columns, ``latency_us``, ``grid_x`` ... ``block_z`` of the main kernel, and
``kernels``, names with ``;`` between them. Times include the host's overhead; where a framework searches for the
fastest algorithm of each new shape, as it does for convolutions, that overhead grows with ``row``.
"""

from __future__ import annotations

from pathlib import Path

from iossim.measurements.bare_table import is_table_of_operators, read_bare_table
from iossim.measurements.formats.format import Format
from iossim.measurements.measurement import MeasurementSet
from iossim.measurements.text_files import header_cells

_DRIFTING = ("conv",)


def _recognises(path: Path, head: str) -> bool:
    return not head.startswith("#") and is_table_of_operators(head) and "row" in header_cells(head)


def _read(path: Path, device: str | None) -> MeasurementSet:
    return read_bare_table(path, device, "table of operators timed through a framework", _DRIFTING)


FORMAT = Format("table KIND.DEVICE.csv with rows in recording order", _recognises, _read)
