"""What a file format of measurements is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from iossim.measurements.measurement import MeasurementError, MeasurementSet


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


def set_of_device(path: Path, sets: Sequence[MeasurementSet], device: str | None) -> MeasurementSet:
    """The one set of a file that is of a device, None where there is but one. Raises MeasurementError naming them."""
    chosen = [one for one in sets if device in (None, one.device)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(one.device for one in sets) or "no device"
    said = (
        "; give one of them with `device`" if device is None else f", not on {device}; give `device` with one of them"
    )
    raise MeasurementError(f"measurements {path}: recorded on {names}{said}")
