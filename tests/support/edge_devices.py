"""Edge devices of any size, for tests."""

from __future__ import annotations

from typing import Any

from iossim.hardware.edge import EdgeDevice, edge_device


def made(name: str = "c6678", **values: Any) -> EdgeDevice:
    """A device that ships with facts of other values: ``units=3``, ``shared__bytes=4096``."""
    return edge_device(name).changed({path.replace("__", "."): value for path, value in values.items()})
