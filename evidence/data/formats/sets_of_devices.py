"""Files of public data sets that hold sets of several devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from iossim.measurements.measurement import MeasurementSet, unusable


def set_of_device(path: Path, sets: Sequence[MeasurementSet], device: str | None) -> MeasurementSet:
    """The set of a device in a file, or its only one. Raises MeasurementError naming the devices."""
    chosen = [one for one in sets if device in (None, one.device)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(one.device for one in sets) or "no device"
    said = (
        "; give one of them with `device`" if device is None else f", not on {device}; give `device` with one of them"
    )
    raise unusable(path, f"recorded on {names}{said}")
