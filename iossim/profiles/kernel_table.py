"""Tables of kernels, one per row, which :func:`iossim.profiles.corun.corun` runs concurrently.

========================  ==========================================================================================
column                    what
========================  ==========================================================================================
``stream``                number of the stream; rows of a stream run in order
``name``                  any name of the kernel; by default ``kernel`` and its number, from 0
``blocks``, ``threads``   of the grid, and of a block: a number, or an extent as profilers write it (``5000x1x1``,
                          ``"[5000,1,1]"``)
``registers_per_thread``  and ``shared_bytes`` of a block: its resources of an SM, besides threads
``alone_us``              time of the kernel on an idle device
``dram_bytes``            moved to and from DRAM
``l2_bytes``              moved between the SMs and L2
``footprint_bytes``       touched, each byte counted once: its footprint in L2
``flops``, ``pipe``       operations, and their units: fp32, fp64, tensor or int
``op``                    in place of all after ``name``: an operator, with columns of its shape and ``precision``
                          (:mod:`iossim.measurements.operator_kinds`); it runs as its fastest kernels alone
========================  ==========================================================================================

Cells may be empty, and columns left out: missing demands are inferred from the others. A kernel needs a stream, a grid,
and a time alone, bytes or operations. Recordings of profilers are read as well (:mod:`iossim.measurements.profilers`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.raw_kernels import Pipe, RawKernel, raw_kernel_work
from iossim.base.errors import DeviceError, IossimError, OptionError, did_you_mean
from iossim.base.user_files import LARGEST, NumberError, read_number, read_text
from iossim.base.values import LONGEST_US
from iossim.execution.engine import Engine
from iossim.hardware.load import device as load_device
from iossim.hardware.lowering.kernel import Libraries, resident_blocks
from iossim.hardware.lowering.target import step_candidates, target_of
from iossim.hardware.names import device_names
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.kinds import LARGEST_SIZE, RecordError
from iossim.measurements.operator_kinds import PRECISION_COLUMNS, SHAPE_COLUMNS, OperatorReader
from iossim.measurements.profilers import profile_of
from iossim.measurements.profilers.kernels import KernelRows, side_by_side
from iossim.measurements.text_files import CsvCells, CsvError, binary_export, csv_rows, text_export

#: Columns of the SM resources that a kernel holds.
_HELD = ("blocks", "threads", "registers_per_thread", "shared_bytes")
#: Columns of the demands of a kernel, and their units.
_MOVED = ("dram_bytes", "l2_bytes", "footprint_bytes")
_ASKED = {"alone_us": "microseconds", **dict.fromkeys(_MOVED, "bytes"), "flops": "operations"}
_OWN = ("stream", "name", *_HELD, *_ASKED, "pipe")
#: Any one of these determines a kernel's time.
_SAYS_TIME = ("alone_us", "dram_bytes", "l2_bytes", "flops")
_OF_OPERATORS = frozenset({"op", *PRECISION_COLUMNS, *SHAPE_COLUMNS})

#: Larger grids take the simulator minutes.
_MOST_BLOCKS = 1 << 24
_EXTENT = re.compile(r"\d{1,18}(?:\s*x\s*\d{1,18}){0,2}|[\[(]\s*\d{1,18}(?:[\s,]+\d{1,18}){0,2}\s*[\])]")


class KernelTableError(IossimError):
    """A table of kernels that cannot be read: ``FILE:LINE: COLUMN: reason; remedy``."""


class _RowError(ValueError):
    """A fault of a row, and the remedy."""


def _cell_error(column: str, reason: str, remedy: str) -> _RowError:
    return _RowError(f"{column}: {reason}; {remedy}")


@dataclass(frozen=True)
class KernelTable:
    """Kernels of a table in order, those of an operator in sequence, and notes on reading it."""

    kernels: tuple[RawKernel, ...]
    notes: tuple[str, ...] = ()


def read_rows(path: Path) -> KernelRows:
    """Rows of a table or of a profiler's recording, gzipped or not; raises KernelTableError."""
    remedy = "give a CSV file with a row for each kernel, or a trace of PyTorch's profiler"
    text = read_text(path, "kernels", remedy, KernelTableError, binary_export)
    try:
        if (recorded := profile_of(text)) is not None:
            return side_by_side(recorded)
        if other := text_export(text, remedy):
            raise KernelTableError(f"{path} is {other}")
        written = csv_rows(text)
        _check_columns(written.columns, path)
        return KernelRows(written.rows)
    except CsvError as error:
        where = f"{path}" if error.line is None else f"{path}:{error.line}"
        raise KernelTableError(f"{where}: {error.reason}; {error.remedy}") from None


def profile_for(rows: KernelRows, path: Path, device: DeviceProfile | str | Path | None) -> DeviceProfile:
    """The requested device, or else that of the recording; raises OptionError if neither is known."""
    if device is None and not rows.device:
        raise OptionError(f"corun needs a device; give `device` NAME; known: {', '.join(device_names())}")
    if device is None and rows.device not in device_names():
        raise OptionError(f"{path} was recorded on {rows.device}, which has no profile; give another with `device`")
    chosen = rows.device if device is None else device
    return load_device(chosen)


def kernels_of(rows: KernelRows, path: Path, profile: DeviceProfile, engine: Engine = Engine.GRAPH) -> KernelTable:
    """Kernels of rows; operators run as the libraries of ``engine`` implement them.

    Raises KernelTableError for a line that is invalid or does not fit ``profile``, and DeviceError for a CPU.
    """
    if not target_of(profile).has_warps:
        raise DeviceError(f"device {profile.name!r} is not a GPU, and kernels run on nothing else; choose one")
    elsewhere = rows.device if rows.device != profile.name.partition("+")[0] else ""
    read = _RowReader(profile, engine, elsewhere)
    kernels: list[RawKernel] = []
    for row in rows.rows:
        try:
            kernels += read(row.cells, len(kernels))
        except _RowError as error:
            where = f"{path}: {rows.place} {row.line}" if rows.place else f"{path}:{row.line}"
            raise KernelTableError(f"{where}: {error}") from None
    told = f"recorded on {elsewhere}, not on {profile.name}: times alone are those of the recording"
    return KernelTable(tuple(kernels), (told, *rows.notes) if elsewhere else rows.notes)


def _check_columns(columns: Sequence[str], path: Path) -> None:
    for name in columns:
        if name not in _OWN and name not in _OF_OPERATORS:
            known = [*_OWN, *(_OF_OPERATORS if "op" in columns else ("op",))]
            what = f"column {name!r} is unknown" if name else "a column has no name"
            raise KernelTableError(f"{path}:1: {what}; {did_you_mean(name, known)}")
    if set(PRECISION_COLUMNS) <= set(columns):
        raise KernelTableError(f"{path}: columns {' and '.join(PRECISION_COLUMNS)} say one thing; remove one")
    needed = ("stream",) if "op" in columns else ("stream", "blocks", "threads")
    for name in needed:
        if name not in columns:
            raise KernelTableError(f"{path}: the column {name!r} is missing; add it")
    if "op" not in columns and not set(_SAYS_TIME) & set(columns):
        raise KernelTableError(f"{path}: no column says how long kernels run; add one of {', '.join(_SAYS_TIME)}")


class _RowReader:
    """Kernels of each row: one, or those of its operator; raises _RowError."""

    def __init__(self, profile: DeviceProfile, engine: Engine, elsewhere: str) -> None:
        """``elsewhere`` is the device of the recording if it differs."""
        self._profile = profile
        self._remedy = f"it was recorded on {elsewhere}: give that `device`" if elsewhere else "correct the cell"
        # Concurrent kernels were launched by frameworks, which call their libraries in graphs, too.
        libraries = Libraries.CURRENT if engine.is_recorded else engine.libraries_on(profile.architecture)
        self._model = KernelModel(profile, libraries=libraries)
        self._operator = OperatorReader()

    def __call__(self, cells: CsvCells, number: int) -> list[RawKernel]:
        cells = {name: cell.strip() for name, cell in cells.items() if cell.strip()}
        stream = _count(cells, "stream", 0)
        if stream is None:
            raise _cell_error("stream", "is empty", "number the streams from 0")
        if "op" in cells:
            return self._of_operator(cells, stream)
        for name in cells:
            if name not in _OWN:
                raise _cell_error(name, "is of operators, and the row has no op", "empty the cell, or give op")
        return [self._kernel(cells, stream, cells.get("name", f"kernel {number}"))]

    def _of_operator(self, cells: CsvCells, stream: int) -> list[RawKernel]:
        for name in (*_HELD, *_ASKED, "pipe"):
            if name in cells:
                raise _cell_error(name, "is given in addition to op, which implies it", "empty one of them")
        try:
            operator = self._operator(cells)
            self._profile.require(operator.precision)
        except RecordError as error:
            raise _cell_error("op", str(error), "correct the line") from None
        except DeviceError as error:
            raise _cell_error("op", str(error), "choose another precision or device") from None
        candidate, _ = self._model.fastest(step_candidates(operator.step(), self._profile))
        name = cells.get("name", operator.kind)
        several = len(candidate.kernels) > 1
        return [
            RawKernel(
                f"{name}: {kernel.name}" if several else name,
                stream,
                kernel.blocks,
                kernel.threads_per_block,
                kernel.registers_per_thread,
                kernel.shared_bytes_per_block,
                kernel=kernel,
            )
            for kernel in candidate.kernels
        ]

    def _kernel(self, cells: CsvCells, stream: int, name: str) -> RawKernel:
        blocks, threads = _count(cells, "blocks", 1), _count(cells, "threads", 1)
        if blocks is None or threads is None:
            column = "blocks" if blocks is None else "threads"
            raise _cell_error(column, "is empty", "give it, or an op with its shape")
        if blocks > _MOST_BLOCKS:
            reason = f"{blocks} is more than is simulated: at most {_MOST_BLOCKS}"
            raise _cell_error("blocks", reason, "give a part of the grid")
        registers, shared = _count(cells, "registers_per_thread", 0), _count(cells, "shared_bytes", 0)
        self._check_fit(threads, registers, shared)
        asked: dict[str, Any] = {column: _amount(cells, column, unit) for column, unit in _ASKED.items()}
        if not any(asked[column] for column in _SAYS_TIME):
            raise _RowError(f"nothing says how long the kernel runs; give {' or '.join(_SAYS_TIME)}")
        pipe = cells.get("pipe")
        if pipe is not None and pipe.lower() not in list(Pipe):
            raise _cell_error("pipe", f"{pipe!r} is unknown", did_you_mean(pipe, [each.value for each in Pipe]))
        kernel = RawKernel(
            name, stream, blocks, threads, registers, shared, pipe=None if pipe is None else Pipe(pipe.lower()), **asked
        )
        try:
            raw_kernel_work(kernel, self._model)
        except OptionError as error:  # figures that contradict each other, or the device
            raise _RowError(str(error)) from None
        return kernel

    def _check_fit(self, threads: int, registers: int | None, shared: int | None) -> None:
        limits, device = self._profile.limits, self._profile.name
        for column, value, most in (
            ("threads", threads, limits.max_threads_per_block),
            ("registers_per_thread", registers, limits.max_registers_per_thread),
            ("shared_bytes", shared, limits.shared_bytes_per_block),
        ):
            if value is not None and value > most:
                reason = f"{value} is more than a block has on {device}: at most {most}"
                raise _cell_error(column, reason, self._remedy)
        if resident_blocks(limits, threads, registers or 0, shared or 0) == 0:
            raise _cell_error(
                "registers_per_thread",
                f"a block of {threads} threads with {registers or 0} registers each does not fit an SM of {device}",
                f"{self._remedy}, or choose another device",
            )


def _count(cells: CsvCells, column: str, least: int) -> int | None:
    """A whole number, or the product of an extent; None for an empty cell."""
    text = cells.get(column)
    if text is None:
        return None
    if _EXTENT.fullmatch(text) and (column in ("blocks", "threads") or text.isdigit()):
        value = math.prod(int(size) for size in re.findall(r"\d+", text)[:3])
    else:
        given = _amount(cells, column, "whole numbers", least=-LARGEST)
        assert given is not None
        if not given.is_integer():
            raise _cell_error(column, f"{text!r} is not a whole number", "correct the cell")
        value = int(given)
    if value < least:
        raise _cell_error(column, f"{text!r} is less than {least}", "correct the cell")
    if value > LARGEST_SIZE:
        raise _cell_error(column, f"{text!r} is too large: at most {LARGEST_SIZE}", "correct the cell")
    return value


def _amount(cells: CsvCells, column: str, unit: str, least: float = 0.0) -> float | None:
    """A number; None for an empty cell. A time alone is above 0."""
    text = cells.get(column)
    if text is None:
        return None
    is_time = column == "alone_us"
    try:
        return read_number(text, positive=is_time, least=least, most=LONGEST_US if is_time else LARGEST)
    except NumberError as error:
        comma = ", with a point for decimals and nothing between thousands" if "," in text else f", in {unit}"
        raise _cell_error(column, f"{text!r} {error}", f"write a plain number{comma}") from None
