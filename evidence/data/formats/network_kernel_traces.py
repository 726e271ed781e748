"""Kernels of whole networks in the order of their launch, a row a kernel: they are passed over.

Columns are ``torch_op``, ``kernel_name``, ``grid``, ``block`` and ``duration_us`` beside the network and the batch.
Most rows tell no shape, and an operator may be several of them, so that there is nothing that a prediction of an
operator could be held against. In a folder of measurements such a file is noted; asked for by itself it is an error."""

from __future__ import annotations

from pathlib import Path

from iossim.measurements.formats.format import Format
from iossim.measurements.measurement import MeasurementSet, unusable
from iossim.measurements.text_files import header_cells

_TELLING = {"kernel_index", "torch_op", "kernel_name", "duration_us"}


def is_trace_of_kernels(head: str) -> bool:
    """Whether a file that begins with this text is such a table."""
    return not head.startswith(("#", "{", "[")) and set(header_cells(head)) >= _TELLING


def _read(path: Path, device: str | None) -> MeasurementSet:
    problem = "kernels of networks without the shapes of their operators, which nothing can be fitted to"
    raise unusable(path, f"{problem}; give a table of operators")


FORMAT = Format(
    "kernels of networks in the order of their launch, without shapes",
    lambda path, head: is_trace_of_kernels(head),
    _read,
    lambda path: (),
)
