"""Some rows of a table of samples, without lowering them again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from iossim.calibration.candidate_table import CandidateTable
from iossim.calibration.samples import OperatorSamples


def samples_where(samples: OperatorSamples, chosen: NDArray[np.bool_]) -> OperatorSamples:
    """The samples of the rows where ``chosen``, shape ``[samples]``, is True; they count together as all did."""
    return replace(
        samples,
        table=table_where(samples.table, chosen),
        latency_us=samples.latency_us[chosen],
        basis=samples.basis[chosen],
    )


def table_where(table: CandidateTable, chosen: NDArray[np.bool_]) -> CandidateTable:
    """The operators where ``chosen``, shape ``[operators]``, is True."""
    candidates = np.diff(table.operator_begin)
    keeps_candidate = np.repeat(chosen, candidates)
    keeps_kernel = np.repeat(keeps_candidate, np.diff(table.candidate_begin))
    return replace(
        table,
        kernels=table.kernels[keeps_kernel],
        candidate_begin=_begins(np.diff(table.candidate_begin)[keeps_candidate]),
        operator_begin=_begins(candidates[chosen]),
        kernel_count=table.kernel_count[keeps_candidate],
        is_library_call=table.is_library_call[keeps_candidate],
        is_recorded=table.is_recorded[keeps_candidate],
    )


def _begins(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
