"""Microbenchmarks of concurrent kernels, with known grids and threads, and the purpose of each experiment.

There are two tables, of a V100 and of an RTX 5090. Times are medians; their different layouts are unified here. A third
one has the SM of each block of kernels on that RTX 5090.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from evidence.concurrency.tables import read_rows
from iossim.measurements.text_files import NumberedRow, Row, RowError, number, optional_count, optional_number

V100_FILE, RTX_5090_FILE = "v100_microbenchmarks.csv", "rtx5090_microbenchmarks.csv"
V100, RTX_5090 = "v100-sxm2", "rtx-5090"

_MS, _MIB, _KIB, _GIB = 1e3, 1 << 20, 1 << 10, 1 << 30


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """A kernel as its row describes it; a probe of a pair matrix has no grid."""

    name: str
    blocks: int | None = None
    threads: int | None = None
    #: Time alone; None where it was not measured.
    alone_us: float | None = None


@dataclass(frozen=True, slots=True)
class Microbenchmark:
    """One experiment: its concurrent kernels (or one alone), and their time.

    ``together_us`` is until the last of them ended, of a product beside a kernel until the product did. ``ratio`` is a
    slowdown of the first that was recorded without times. ``size_bytes`` are copied by a kernel in one iteration; a
    copy reads as much as it writes. ``bandwidth_gbps`` is the bandwidth of a copy, read and written, in 10^9 bytes per
    second.
    """

    device: str
    data_set: str
    line: int
    experiment: str
    how: str
    kernels: tuple[MicroKernel, ...]
    together_us: float | None = None
    ratio: float | None = None
    size_bytes: float | None = None
    iterations: int | None = None
    bandwidth_gbps: float | None = None
    note: str = ""


def read_v100(path: Path) -> list[Microbenchmark]:
    """The V100's experiments: rows alone, in sequence and together are joined. Raises MeasurementError."""
    times_us: dict[str, dict[tuple[str, ...], float]] = {"alone": {}, "sequential": {}, "together": {}}

    def time(row: NumberedRow) -> None:
        mode = str(row.cells["mode"])
        if mode not in times_us:
            raise RowError(f"mode {mode!r} is none of {', '.join(times_us)}")
        times_us[mode][_key(row.cells, "a" if mode == "alone" else "ab")] = _MS * number(row.cells, "median_ms")

    def experiment(row: NumberedRow) -> Microbenchmark | None:
        cells = row.cells
        if cells["mode"] != "together":
            return None
        sequential_us = times_us["sequential"].get(_key(cells, "ab"))
        half_us = None if sequential_us is None or cells["kernel_a"] != cells["kernel_b"] else sequential_us / 2.0
        kernels = tuple(_kernel(cells, side, times_us["alone"].get(_key(cells, side), half_us)) for side in "ab")
        for kernel in kernels:
            if kernel.alone_us is None:
                raise RowError(f"no row has {kernel.name} alone")
        return Microbenchmark(
            V100,
            path.stem,
            row.line,
            str(cells["experiment"]),
            str(cells["how_shared"]),
            kernels,
            _MS * number(cells, "median_ms"),
            size_bytes=optional_number(cells, "bytes_per_kernel_or_block"),
            iterations=_iterations(str(cells["iterations_in_kernel"]), str(cells["kernel_a"])),
        )

    read_rows(path, time)
    return [found for found in read_rows(path, experiment) if found is not None]


def _key(cells: Row, sides: str) -> tuple[str, ...]:
    """Key that rows of one experiment share; for a kernel alone its side does not count."""
    own = [str(cells[f"{name}_{side}"]) for side in sides for name in ("kernel", "blocks", "threads")]
    return (str(cells["experiment"]), str(cells["bytes_per_kernel_or_block"]), *own)


def _iterations(text: str, kernel: str) -> int | None:
    """Iterations: ``10000``, or by kernel: ``copy 40; fp32 20000000``."""
    for part in text.split(";"):
        words = part.split()
        if len(words) == 1 and words[0].isdigit():
            return int(words[0])
        if len(words) == 2 and kernel.startswith(words[0]):
            return int(words[1])
    return None


def _kernel(cells: Row, side: str, alone_us: float | None) -> MicroKernel:
    blocks, threads = (optional_count(cells, f"{name}_{side}") for name in ("blocks", "threads"))
    return MicroKernel(str(cells[f"kernel_{side}"]), blocks, threads, alone_us)


def read_rtx_5090(path: Path) -> list[Microbenchmark]:
    """The RTX 5090's experiments, one per row; times alone of some kernels have their own rows. Raises
    MeasurementError.
    """
    found = read_rows(path, lambda row: _rtx_5090(path, row))
    alone_us = {
        (kernel.name, kernel.blocks, kernel.threads): kernel.alone_us
        for one in found
        if one.how == "alone"
        for kernel in one.kernels
        if kernel.alone_us is not None
    }

    def timed(kernel: MicroKernel) -> MicroKernel:
        grid = (kernel.name, kernel.blocks, kernel.threads)
        return replace(kernel, alone_us=kernel.alone_us or alone_us.get(grid))

    return [replace(one, kernels=tuple(map(timed, one.kernels))) for one in found]


def _rtx_5090(path: Path, row: NumberedRow) -> Microbenchmark:
    cells = row.cells
    experiment = str(cells["experiment"])
    alone_ms, together_ms = (optional_number(cells, f"{how}_ms") for how in ("alone", "together"))
    alone_us = None if alone_ms is None else _MS * alone_ms
    first = _kernel(cells, "a", alone_us)
    kernels = [first]
    if cells["kernel_b"]:
        same = cells["kernel_b"] in ("same", cells["kernel_a"])
        second = _kernel(cells, "b", alone_us if same else None)
        kernels.append(replace(second, name=first.name) if same else second)
    elif experiment == "torch.mm_fp32_beside_fma":
        raise RowError("kernel_b is empty")
    size, reached = optional_number(cells, "size"), optional_number(cells, "achieved_bandwidth_GiB_per_s")
    unit = str(cells["size_unit"])
    scale = _KIB if unit.startswith("KiB") else _MIB if unit.startswith("MiB") else 1
    return Microbenchmark(
        RTX_5090,
        path.stem,
        row.line,
        experiment,
        str(cells["how_shared"]),
        tuple(kernels),
        None if together_ms is None else _MS * together_ms,
        number(cells, "ratio") if experiment == "pair_matrix_slowdown_of_a" else None,
        None if size is None else scale * size,
        bandwidth_gbps=None if reached is None else reached * _GIB / 1e9,
        note=str(cells["note"]),
    )


def percent_in(note: str, word: str) -> float | None:
    """Percentage after a word of a note, as a fraction: 0.43 in ``FMA pipe alone 43% of peak``."""
    told = re.search(rf"{re.escape(word)} (\d+(?:\.\d+)?)%", note)
    return None if told is None else float(told[1]) / 100.0
