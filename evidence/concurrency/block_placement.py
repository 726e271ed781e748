"""SM of each block of concurrently launched kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evidence.concurrency.tables import read_rows
from iossim.measurements.text_files import NumberedRow, RowError, number, optional_count

FILE = "rtx5090_block_placement.csv"
DEVICE = "rtx-5090"


@dataclass(frozen=True, slots=True)
class PlacedKernel:
    """A launch: ``sms[i]`` is the SM of its block ``i`` in the order of the file; times are us since the recording
    began.
    """

    name: str
    launch: int
    sms: tuple[int, ...]
    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class _Block:
    kernel: str
    launch: int
    order: int
    sm: int
    start_us: float
    end_us: float


def read_placements(path: Path) -> list[PlacedKernel]:
    """Launches in order; raises MeasurementError."""
    blocks: dict[tuple[int, str], list[_Block]] = {}
    for block in read_rows(path, _block):
        blocks.setdefault((block.launch, block.kernel), []).append(block)
    found = []
    for (launch, kernel), own in sorted(blocks.items()):
        own.sort(key=lambda block: block.order)
        sms = tuple(block.sm for block in own)
        found.append(PlacedKernel(kernel, launch, sms, min(b.start_us for b in own), max(b.end_us for b in own)))
    return found


def _block(row: NumberedRow) -> _Block:
    cells = row.cells
    launch, order, sm = (optional_count(cells, name) for name in ("launch_index", "block_order_in_file", "sm_id"))
    if launch is None or order is None or sm is None:
        raise RowError("launch_index, block_order_in_file or sm_id is empty")
    return _Block(str(cells["kernel"]), launch, order, sm, number(cells, "start_us"), number(cells, "end_us"))
