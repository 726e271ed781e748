"""The readable formats of measurements, one file each, found by listing the package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from iossim.base.registry import modules
from iossim.measurements.measurement import MeasurementSet
from iossim.measurements.text_files import SET_READERS


@dataclass(frozen=True, slots=True)
class Format:
    """A readable format, defined by a ``FORMAT`` in a module of this package."""

    #: Title in error messages.
    title: str
    #: True where a file of this name that begins with this text has the format; no file matches two formats.
    recognises: Callable[[Path, str], bool]
    #: The measurements of a file. The second argument is the user's device, or None. Raises MeasurementError.
    read: Callable[[Path, str | None], MeasurementSet]
    #: The sets of a file of several devices; None for formats with one device per file.
    read_sets: Callable[[Path], tuple[MeasurementSet, ...]] | None = None
    #: The commands that read it, in error messages.
    readers: str = SET_READERS


@cache
def formats() -> tuple[Format, ...]:
    """All formats, in the order of their modules' names."""
    return tuple(module.FORMAT for module in modules(__name__) if hasattr(module, "FORMAT"))
