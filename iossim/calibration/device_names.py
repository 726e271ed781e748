"""Which device a measurement set is of: what the file says, and what the user says."""

from __future__ import annotations

import re
from pathlib import Path

from iossim.calibration.measurement import MeasurementError
from iossim.devices.load import device, device_names

#: Names in recordings of devices that ship under another.
ALIASES = {"v100-dgx1": "v100-sxm2"}


def device_of(path: Path, recorded: str | None, given: str | None) -> str:
    """The device's name; ``recorded`` is the file's own, ``given`` the user's.

    Where both are devices that ship and differ, the file is mislabelled or misused; where the file uses a name of its
    own, the user's counts. Raises MeasurementError.
    """
    recorded = ALIASES.get(recorded, recorded) if recorded else None
    if given is None:
        if recorded is None:
            raise MeasurementError(f"measurements {path}: the file names no device; give one with --device")
        return recorded
    if recorded is None or recorded == given:
        return given
    known = device_names()
    if recorded in known and given in known:
        raise MeasurementError(
            f"measurements {path}: recorded on {recorded}, not on {given}; give --device {recorded}, or another file"
        )
    return given


def device_of_product(product: str) -> str:
    """The device that ships whose title a driver's product name is, or the name itself in the style of ours."""
    wanted = _words(product)
    for name in device_names():
        if _words(device(name).title) == wanted:
            return name
    return "-".join(wanted)


def _words(product: str) -> list[str]:
    return [
        word for word in re.split(r"[^a-z0-9]+", product.lower()) if word not in ("", "nvidia", "tesla", "geforce")
    ]
