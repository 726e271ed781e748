"""SM of each block of concurrently launched kernels."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from evidence.concurrency.tables import read_table

FILE = "rtx5090_block_placement.csv"
DEVICE = "rtx-5090"


class PlacedKernel(NamedTuple):
    """A launch: ``sms[i]`` is the SM of its block ``i`` in the order of the file."""

    name: str
    sms: tuple[int, ...]


def read_placements(path: Path) -> list[PlacedKernel]:
    """Launches in order; raises MeasurementError."""
    blocks = read_table(path, ["launch_index", "block_order_in_file", "sm_id"]).sort_values("block_order_in_file")
    return [
        PlacedKernel(kernel, tuple(own["sm_id"].tolist()))
        for (_, kernel), own in blocks.groupby(["launch_index", "kernel"])
    ]
