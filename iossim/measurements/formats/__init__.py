"""The formats that measurements are read from, a file each, found by looking."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from iossim.measurements.formats.format import Format


@cache
def formats() -> tuple[Format, ...]:
    """All formats, in the order of their modules' names."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    found = {module.__name__: module.FORMAT for module in modules if hasattr(module, "FORMAT")}
    return tuple(found[name] for name in sorted(found))
