"""The cores that this process may run on."""

from __future__ import annotations

import os


def usable_cores() -> tuple[int, ...]:
    """Their numbers, in ascending order; all cores if the system does not say which."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))
