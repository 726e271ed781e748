"""Products ``x[m, k] . w[n, k]`` as nodes of CUDA graphs: time of six nodes over their number, gaps included.

Columns are ``device``, ``library``, ``m``, ``n``, ``k`` and ``latency_us``. The nodes have their own weights, and those
of SGLang's rows their own inputs as well, while vLLM's share one (``collector/sglang/collect_gemm.py`` and
``collector/vllm/collect_gemm.py`` of aiconfigurator): in a replay, what six nodes own and half of L2 does not hold
comes from DRAM, as weights do. On an H100, products of 14 to 40 MB that are mostly input take 1.3 times as long by
SGLang.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from evidence.data.formats.tables_of_boards import Key, board_named, sets_of_boards, table_format
from iossim.hardware.load import device as load_device
from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.measurement import Measurement, MeasurementSet, Operator
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import Row, number

_TELLING = {"device", "library", "m", "n", "k", "latency_us"}
#: Number of nodes, and the part of L2 that retains what all of them own.
_NODES, _KEPT = 6, 0.5
#: Library whose nodes have their own inputs.
_OWN_INPUTS = "sglang"


def _measurement(cells: Row) -> tuple[Key, Measurement]:
    """A layer; its operands are weights where each node reads its own from DRAM."""
    board = board_named(cells["device"])
    m, n, k = (int(number(cells, name)) for name in "mnk")
    layer = read_record({"op": "linear", "batch": 1, "m": m, "n": k, "k": n}, Precision.BF16)
    owned = (0, 1) if str(cells["library"]).startswith(_OWN_INPUTS) else layer.weights
    kept_bytes = _KEPT * load_device(board).datasheet.l2_bytes.value
    is_kept = _NODES * sum(layer.inputs[index].bytes for index in owned) <= kept_bytes
    return (board, board), Measurement(replace(layer, weights=() if is_kept else owned), number(cells, "latency_us"))


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    """Sets with one row for each operator: the mean of those of equal operands."""
    sets = sets_of_boards(path, _measurement, issue=Issue.GRAPH, source="products in CUDA graphs, aiconfigurator")
    return tuple(replace(one, measurements=_means(one.measurements)) for one in sets)


def _means(rows: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
    latencies_us: dict[Operator, list[float]] = {}
    for row in rows:
        latencies_us.setdefault(row.operator, []).append(row.latency_us)
    return tuple(Measurement(layer, float(np.mean(several))) for layer, several in latencies_us.items())


FORMAT = table_format(
    "table of products in CUDA graphs, of several devices", lambda columns: columns == _TELLING, _read_sets
)
