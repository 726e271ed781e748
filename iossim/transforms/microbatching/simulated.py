"""Benchmarks of a kernel from a model of the device instead of the device: the rows that configurations are made of.

As cuDNN's own benchmark does, each algorithm is timed alone at each batch size. Where an algorithm's kernels differ in workspace
(sums of parts, say), it has a row for each that no other of them beats in both time and workspace.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iossim.cost.model import PricesCandidates
from iossim.hardware.lowering.target import step_algorithms
from iossim.transforms.microbatching.configuration import BenchmarkRow
from iossim.transforms.microbatching.conv_kernel import ConvKernel


def simulated_rows(kernel: ConvKernel, batches: Sequence[int], cost: PricesCandidates) -> tuple[BenchmarkRow, ...]:
    """Rows of all algorithms that the device and its libraries have, batch by batch, the fastest first."""
    return tuple(row for batch in batches for row in _rows(kernel.of_batch(batch), cost))


def _rows(kernel: ConvKernel, cost: PricesCandidates) -> list[BenchmarkRow]:
    algorithms = step_algorithms(kernel.step(), cost.profile)
    candidates = [one for found in algorithms.values() for one in found]
    names = [name for name, found in algorithms.items() for _ in found]
    prices = cost.price_candidates(candidates)
    workspace = np.array([one.workspace_bytes for one in candidates], dtype=np.int64)
    least: dict[str, int] = {}
    rows: list[BenchmarkRow] = []
    for place in np.lexsort((workspace, prices)).tolist():
        name, size = names[place], candidates[place].workspace_bytes
        if np.isfinite(prices[place]) and size < least.get(name, size + 1):
            least[name] = size
            rows.append(BenchmarkRow(kernel.batch, name, float(prices[place]), size))
    return rows
