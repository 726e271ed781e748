"""Products ``x[m, k] . w[n, k]`` as nodes of CUDA graphs: time of up to six nodes over their number, gaps included.

Columns are ``device``, ``library``, ``m``, ``n``, ``k`` and ``latency_us``; two libraries timed the same shapes, whose
mean counts. Each node has its own weights: if six of them fit into half of L2, they stay there, and the row is of a
product of two activations (``gemm``), otherwise of a layer (``linear``).
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from evidence.data.formats.sets_of_devices import set_of_device
from iossim.hardware.load import device as load_device
from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.formats.format import Format
from iossim.measurements.measurement import Header, Measurement, MeasurementSet
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.rows import number
from iossim.measurements.text_files import header_cells, parse_table, read_file

_TELLING = {"device", "library", "m", "n", "k", "latency_us"}
#: Profiles of boards in tables.
BOARDS = {"A100-SXM4-80GB": "a100-sxm-80gb", "H100-SXM5-80GB": "h100-sxm", "H200-SXM5-141GB": "h200-sxm"}
#: Number of nodes with their own weights, and the part of L2 that retains those of all.
_NODES, _KEPT = 6, 0.5


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    found: defaultdict[str, defaultdict[tuple[int, int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in parse_table(read_file(path), path).rows:
        m, n, k = (int(number(row.cells, name)) for name in "mnk")
        board = str(row.cells["device"])
        found[BOARDS.get(board, board)][m, n, k].append(number(row.cells, "latency_us"))
    return tuple(_set(path, board, rows) for board, rows in sorted(found.items()))


def _set(path: Path, board: str, rows: dict[tuple[int, int, int], list[float]]) -> MeasurementSet:
    kept_bytes = _KEPT * load_device(board).datasheet.l2_bytes.value
    measurements = []
    for (m, n, k), latencies_us in rows.items():
        if _NODES * n * k * Precision.BF16.storage.bytes <= kept_bytes:
            record = {"op": "gemm", "m": n, "n": m, "k": k, "trans_a": "T", "trans_b": "N"}
        else:
            record = {"op": "linear", "batch": 1, "m": m, "n": k, "k": n}
        measurements.append(Measurement(read_record(record, Precision.BF16), float(np.mean(latencies_us))))
    header = Header(
        device=board,
        data_set=f"{path.name.removesuffix('.csv')}.{board}",
        precision=Precision.BF16,
        issue=Issue.GRAPH,
        source="products in CUDA graphs, aiconfigurator",
    )
    return MeasurementSet(header, tuple(measurements))


FORMAT = Format(
    "table of products in CUDA graphs, of several devices",
    lambda path, head: not head.startswith(("#", "{", "[")) and set(header_cells(head)) == _TELLING,
    lambda path, device: set_of_device(path, _read_sets(path), device),
    _read_sets,
)
