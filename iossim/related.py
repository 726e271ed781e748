"""Related techniques on the same graphs, each a function of a guest's module ``NAME_api``: ``microbatch`` and
``microbatch_table`` (under workspace limits), ``dataflow`` and ``distribute`` (on edge devices).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from iossim.base.registry import guest_modules


def __getattr__(name: str) -> Any:
    for module in guest_modules("api").values():
        if name in (found := import_module(module)).__all__:
            return getattr(found, name)
    raise AttributeError(f"module 'iossim.related' has no attribute {name!r}")
