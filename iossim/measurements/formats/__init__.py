"""The readable formats of measurements, one file each, found by listing the package."""

from __future__ import annotations

from functools import cache

from iossim.base.registry import modules
from iossim.measurements.formats.format import Format


@cache
def formats() -> tuple[Format, ...]:
    """All formats, in the order of their modules' names."""
    return tuple(module.FORMAT for module in modules(__name__) if hasattr(module, "FORMAT"))
