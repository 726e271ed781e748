"""The formats of public data sets, one module each, found by import. ``python -m evidence convert`` writes the
documented one.
"""

from __future__ import annotations

from functools import cache

from iossim.base.registry import modules
from iossim.measurements.formats import Format


@cache
def formats() -> tuple[Format, ...]:
    """All formats, in the order of their modules' names."""
    return tuple(module.FORMAT for module in modules(__name__) if hasattr(module, "FORMAT"))
