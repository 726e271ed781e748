"""What a file format of measurements is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from iossim.measurements.measurement import MeasurementSet


@dataclass(frozen=True, slots=True)
class Format:
    """A format that can be read; each module of ``iossim.measurements.formats`` with a ``FORMAT`` is one."""

    #: As error messages list it.
    title: str
    #: Whether a file of this name that begins with this text is of the format; no file is of two formats.
    recognises: Callable[[Path, str], bool]
    #: The measurements of a file. The second argument is the device that the user says, None if he says none. Raises
    #: MeasurementError.
    read: Callable[[Path, str | None], MeasurementSet]
    #: The sets of a file of several devices; None for formats of files of one.
    read_sets: Callable[[Path], tuple[MeasurementSet, ...]] | None = None
