"""What is known of a kernel at a batch size: the rows that configurations are made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BenchmarkRow:
    """One algorithm at one batch size."""

    batch: int
    algorithm: str
    time_us: float
    workspace_bytes: int
