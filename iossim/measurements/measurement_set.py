"""Measurement sets as files: the format that hardware backends write, and every other one that can be read.

The format is JSON lines (``.jsonl``). The first line is the header, an object of the fields of
:class:`~iossim.measurements.measurement.Header` and the counts of what follows::

    {"schema": "iossim-measurements", "version": 1, "device": "v100-sxm2", "data_set": "lab-1",
     "libraries": {"cudnn": "7.6.5"}, "host": "dgx1", "precision": "fp32", "time_unit": "us",
     "includes_host_overhead": false, "host_overhead_drifts": false, "includes_gaps": true,
     "resolution_us": 0.0, "date": "2026-11-21", "source": "...", "measurements": 2, "stages": 1}

Then a line for each measurement: the operator (``op`` and the columns of its kind, see ``operator_kinds``),
``latency_us``, and what else is known of it::

    {"op": "conv", "batch": 1, "in_channels": 3, "out_channels": 64, "in_h": 224, "in_w": 224, "kernel_h": 3,
     "kernel_w": 3, "stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1, "latency_us": 41.2, "spread_us": 0.8,
     "samples": 20, "algorithm": "IMPLICIT_GEMM", "kernels": ["..."], "grid": [7, 7, 1], "block": [256, 1, 1],
     "is_cold": false, "precision": "fp16", "row": 0}

and a line for each stage of groups that ran at the same time, one stream a group::

    {"stage": [[{"op": "conv", ...}, {"op": "relu", "rows": 64, "cols": 784}], [{"op": "conv", ...}]],
     "latency_us": 61.0, "serial_us": 80.4}

The same as CSV (``.csv``): the header as comment lines ``# key: value``, the schema first, the values JSON; then a table
with the union of the columns, ``grid_x`` ... ``block_z`` for the extents, ``;`` between kernels. A ``stage``
is text: ``conv batch=1 in_channels=3 ...;relu rows=64 cols=784|conv ...``.

Rows that cannot be right are dropped and noted; more than a tenth of them, a file that is cut short, or one of too few
rows is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from iossim.base.user_files import write_atomically
from iossim.measurements.formats import formats
from iossim.measurements.formats.csv_table import to_csv
from iossim.measurements.formats.format import Format
from iossim.measurements.formats.json_lines import to_json_lines
from iossim.measurements.measurement import MeasurementError, MeasurementSet
from iossim.measurements.rows import FEWEST_ROWS, require_rows
from iossim.measurements.text_files import read_file

_HEAD_CHARACTERS = 65_536


def read_measurements(
    path: Path, device: str | None = None, fewest: int = FEWEST_ROWS, others: Sequence[Format] = ()
) -> MeasurementSet:
    """The measurements in a file of any known format; ``others`` are tried first.

    ``device`` is what they are of where the file does not say; ``fewest`` usable rows are needed. Raises
    MeasurementError naming the file, the line and the remedy.
    """
    path = Path(path)
    return _checked(_format_of(path, others).read(path, device), path, fewest)


def read_measurement_sets(path: Path, others: Sequence[Format] = ()) -> tuple[MeasurementSet, ...]:
    """The same of a file that may hold sets of several devices; those of too few rows are left out where there are others."""
    path = Path(path)
    known = _format_of(path, others)
    if known.read_sets is None:
        return (read_measurements(path, others=others),)
    sets = known.read_sets(path)
    enough = [one for one in sets if len(one.measurements) >= FEWEST_ROWS]
    return tuple(_checked(one, path, FEWEST_ROWS) for one in enough or sets[:1])


def _format_of(path: Path, others: Sequence[Format]) -> Format:
    if path.is_dir():
        raise MeasurementError(f"measurements {path}: a folder; give the files in it")
    head = read_file(path)[:_HEAD_CHARACTERS]
    for known in (*others, *formats()):
        if known.recognises(path, head):
            return known
    titles = "; ".join(known.title for known in formats())
    raise MeasurementError(f"measurements {path}: the format is none of those known; known: {titles}")


def _checked(measured: MeasurementSet, path: Path, fewest: int) -> MeasurementSet:
    require_rows(path, len(measured.measurements) + len(measured.stages), fewest)
    return replace(measured, notes=tuple(f"{path}: {note}" for note in measured.notes), path=path)


def write_measurements(measured: MeasurementSet, path: Path) -> None:
    """Write a set as CSV if the path ends in ``.csv``, else as JSON lines; whole or not at all."""
    path = Path(path)
    try:
        write_atomically(path, to_csv(measured) if path.suffix == ".csv" else to_json_lines(measured))
    except OSError as error:
        raise MeasurementError(f"cannot write measurements {path}: {error.strerror}; choose another file") from None
