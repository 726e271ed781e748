"""Pairs of concurrent kernels, alone and together: operators in CUDA graphs, a framework's kernels on two streams, a
language model's prefill and decode on two streams and on separate SMs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from evidence.concurrency.tables import read_rows
from iossim.measurements.text_files import NumberedRow, Row, RowError, number, optional_count, optional_number

GRAPHS_FILE, STREAMS_FILE, PREFILL_FILE = (
    "a5000_operator_pairs.csv",
    "gtx1080ti_stream_pairs.csv",
    "a100_prefill_beside_decode.csv",
)
GRAPHS_DEVICE, STREAMS_DEVICE, PREFILL_DEVICE = "rtx-a5000", "gtx-1080-ti", "a100-sxm-80gb"


@dataclass(frozen=True, slots=True)
class PairKernel:
    """One of two: its time alone, and until its end when both begin at once. In a chain of ``repeats`` these are per
    kernel.

    ``shape`` is that of an operator in the table; a grid of 0 blocks is unknown.
    """

    name: str
    alone_us: float
    together_us: float
    shape: str = ""
    blocks: int = 0
    threads: int = 0
    registers_per_thread: int | None = None
    shared_bytes: int | None = None

    @property
    def slowdown(self) -> float:
        return self.together_us / self.alone_us


@dataclass(frozen=True, slots=True)
class KernelPair:
    """Two kernels, or chains of ``repeats`` of each, that begin at once; the first was issued first.

    ``sms`` are those that each had exclusively, if so. ``batch`` is that of the second's operands.
    """

    device: str
    data_set: str
    line: int
    how: str
    kernels: tuple[PairKernel, PairKernel]
    makespan_us: float
    repeats: int = 1
    sms: tuple[int, int] | None = None
    batch: int | None = None
    #: Number of measurements; the times are medians.
    samples: int = 1

    @property
    def title(self) -> str:
        return " beside ".join(kernel.name for kernel in self.kernels)


def read_graph_pairs(path: Path) -> list[KernelPair]:
    """Operators in two CUDA graphs, each a chain of repeats; times per repeat. Raises MeasurementError."""

    def read(row: NumberedRow) -> KernelPair:
        cells = row.cells
        repeats = optional_count(cells, "repeats_of_each_op_in_its_cuda_graph")
        if not repeats:
            raise RowError("repeats_of_each_op_in_its_cuda_graph is empty")
        first, second = (
            PairKernel(
                str(cells[f"op_{side}"]),
                1e3 * number(cells, f"alone_{side}_ms"),
                1e3 * number(cells, f"together_{side}_completion_ms"),
                str(cells[f"shape_{side}_chw"] or ""),
            )
            for side in "ab"
        )
        makespan_us = 1e3 * number(cells, "makespan_ms_from_dilation")
        return KernelPair(GRAPHS_DEVICE, path.stem, row.line, "two graphs", (first, second), makespan_us, repeats)

    return read_rows(path, read)


def read_stream_pairs(path: Path) -> list[KernelPair]:
    """Kernels on two streams, the median of the runs of each pair; the second was issued right after the first.

    The first runs as alone until it ends; the second's time alone is known from pairs that it comes first in, else from
    its own duration, apart from its overlap with the other's last blocks. Raises MeasurementError.
    """
    runs: defaultdict[tuple[PairKernel, PairKernel], list[tuple[int, float, float, float, float]]] = defaultdict(list)

    def read(row: NumberedRow) -> None:
        cells = row.cells
        kernels = _grid(cells, "a"), _grid(cells, "b")
        start_us = number(cells, "a_start_us")
        durations = number(cells, "a_duration_us"), number(cells, "b_duration_us")
        begin_us = number(cells, "b_start_us") - start_us
        runs[kernels].append((row.line, *durations, begin_us + durations[1], number(cells, "makespan_us")))

    read_rows(path, read)
    first_us: defaultdict[PairKernel, list[float]] = defaultdict(list)
    for (first, _), several in runs.items():
        first_us[first] += [run[1] for run in several]
    found = []
    for (first, second), several in runs.items():
        a_us, b_us, b_end_us, makespan_us = (median(run[column] for run in several) for column in (1, 2, 3, 4))
        alone_us = median(first_us[second]) if second in first_us else b_us
        found.append(
            KernelPair(
                STREAMS_DEVICE,
                path.stem,
                several[0][0],
                "two streams",
                (
                    replace(first, alone_us=median(first_us[first]), together_us=a_us),
                    replace(second, alone_us=alone_us, together_us=b_end_us),
                ),
                makespan_us,
                samples=len(several),
            )
        )
    return found


def _grid(cells: Row, side: str) -> PairKernel:
    blocks, threads = (_product(cells, f"{side}_{name}") for name in ("grid", "block"))
    shared = sum(int(optional_number(cells, f"{side}_smem_{kind}_B") or 0) for kind in ("static", "dynamic"))
    registers = optional_count(cells, f"{side}_regs_per_thread")
    return PairKernel(str(cells[f"kernel_{side}"]), 0.0, 0.0, "", blocks, threads, registers, shared)


def _product(cells: Row, column: str) -> int:
    try:
        x, y, z = json.loads(str(cells[column]))
        return int(x) * int(y) * int(z)
    except (ValueError, TypeError):
        raise RowError(f"{column} is not three whole numbers") from None


def read_prefill_pairs(path: Path) -> list[KernelPair]:
    """A layer's prefill beside a step of decode. The step was issued first. Raises MeasurementError."""

    def read(row: NumberedRow) -> KernelPair:
        cells = row.cells
        how = str(cells["how_shared"])
        sms = optional_count(cells, "sm_a"), optional_count(cells, "sm_b")
        prefill, step = (
            PairKernel(
                str(next(cells[name] for name in cells if name.startswith(f"kernel_{side}("))),
                1e3 * number(cells, f"{side}_alone_ms"),
                1e3 * number(cells, f"{side}_together_ms"),
            )
            for side in "ab"
        )
        own = (sms[1], sms[0]) if "contexts" in how and sms[0] and sms[1] else None
        return KernelPair(
            PREFILL_DEVICE,
            path.stem,
            row.line,
            how,
            (step, prefill),
            1e3 * number(cells, "makespan_ms"),
            sms=own,
            batch=optional_count(cells, "decode_batch"),
        )

    return read_rows(path, read)
