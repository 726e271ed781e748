"""Products ``x[m, k] . w[n, k]`` as nodes of CUDA graphs: time of six nodes over their number, gaps included.

Columns are ``device``, ``library``, ``m``, ``n``, ``k`` and ``latency_us``. The nodes have their own weights, and those
of SGLang's rows their own inputs as well, while vLLM's share one (``collector/sglang/collect_gemm.py`` and
``collector/vllm/collect_gemm.py`` of aiconfigurator): in a replay, what six nodes own and half of L2 does not hold
comes from DRAM, as weights do. On an H100, products of 14 to 40 MB that are mostly input take 1.3 times as long by
SGLang.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from evidence.data.formats.sets_of_devices import set_of_device
from iossim.hardware.load import device as load_device
from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.formats import Format
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, Operator
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import Row, header_cells, number, parse_table, read_file

_TELLING = {"device", "library", "m", "n", "k", "latency_us"}
#: Profiles of boards in tables.
BOARDS = {"A100-SXM4-80GB": "a100-sxm-80gb", "H100-SXM5-80GB": "h100-sxm", "H200-SXM5-141GB": "h200-sxm"}
#: Number of nodes, and the part of L2 that retains what all of them own.
_NODES, _KEPT = 6, 0.5
#: Library whose nodes have their own inputs.
_OWN_INPUTS = "sglang"


def _read_sets(path: Path) -> tuple[MeasurementSet, ...]:
    found: defaultdict[str, defaultdict[Operator, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in parse_table(read_file(path), path).rows:
        board = BOARDS.get(name := str(row.cells["device"]), name)
        found[board][_operator(row.cells, board)].append(number(row.cells, "latency_us"))
    return tuple(_set(path, board, rows) for board, rows in sorted(found.items()))


def _operator(cells: Row, board: str) -> Operator:
    """A layer; its operands are weights where each node reads its own from DRAM."""
    m, n, k = (int(number(cells, name)) for name in "mnk")
    layer = read_record({"op": "linear", "batch": 1, "m": m, "n": k, "k": n}, Precision.BF16)
    owned = (0, 1) if str(cells["library"]).startswith(_OWN_INPUTS) else layer.weights
    kept_bytes = _KEPT * load_device(board).datasheet.l2_bytes.value
    is_kept = _NODES * sum(layer.inputs[index].bytes for index in owned) <= kept_bytes
    return replace(layer, weights=() if is_kept else owned)


def _set(path: Path, board: str, rows: dict[Operator, list[float]]) -> MeasurementSet:
    measurements = [Measurement(layer, float(np.mean(latencies_us))) for layer, latencies_us in rows.items()]
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
