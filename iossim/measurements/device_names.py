"""Which device a measurement set is of: what the file says, and what the user says."""

from __future__ import annotations

import re
from pathlib import Path

from iossim.hardware.load import device_names
from iossim.measurements.measurement import MeasurementError

#: Names in recordings of devices that ship under another; those of drivers as :func:`device_of_product` spells them.
ALIASES = {
    "v100-dgx1": "v100-sxm2",
    "v100-sxm2-16gb": "v100-sxm2",
    "v100-sxm2-32gb": "v100-sxm2",
    "a100-sxm4-40gb": "a100-sxm-40gb",
    "a100-80gb-pcie": "a100-pcie-80gb",
    "h100-80gb-hbm3": "h100-sxm",
    "h200": "h200-sxm",
}


def device_of(path: Path, recorded: str | None, given: str | None) -> str:
    """The device's name; ``recorded`` is the file's own, ``given`` the user's.

    Where both are devices that ship and differ, the file is mislabelled or misused; where the file uses a name of its
    own, the user's counts. Raises MeasurementError.
    """
    recorded = ALIASES.get(recorded, recorded) if recorded else None
    if given is None:
        if recorded is None:
            raise MeasurementError(f"measurements {path}: the file names no device; give one with `device`")
        return recorded
    if recorded is None or recorded == given:
        return given
    known = device_names()
    if recorded in known and given in known:
        raise MeasurementError(
            f"measurements {path}: recorded on {recorded}, not on {given}; give `device` {recorded}, or another file"
        )
    return given


def device_of_product(product: str) -> str:
    """A driver's name of a product in the style of ours: ``Tesla V100-PCIE-32GB`` as ``v100-pcie-32gb``."""
    words = re.split(r"[^a-z0-9]+", product.lower())
    name = "-".join(word for word in words if word not in ("", "nvidia", "tesla", "geforce"))
    return ALIASES.get(name, name)
