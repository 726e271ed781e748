"""Memory: sizes as people write and read them (``64MiB``), and the peak memory of a process."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

from iossim.base.errors import OptionError

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def size_bytes(text: str, name: str) -> int:
    """The number of bytes in ``64MiB`` or ``1.5 GiB``; raises OptionError for text that is no size with a unit."""
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in _UNITS:
        remedy = f"say {found[1]}MiB" if found and not found[2] else "say 64MiB"
        raise OptionError(f"`{name}` {text!r} is not a size; {remedy} (units: {', '.join(_UNITS)})")
    size = float(found[1]) * _UNITS[found[2]]
    if size != int(size):
        raise OptionError(f"`{name}` {text!r} is no whole number of bytes; say {round(size)}B")
    return int(size)


def limit_bytes(given: int | str | None, name: str) -> int | None:
    """A limit in bytes, given as a number or as text (``64MiB``); raises OptionError for any other text."""
    return size_bytes(given, name) if isinstance(given, str) else given


def size_text(size: int) -> str:
    """The size in the largest unit in which it is at least one: ``100 B``, ``48.9 MiB``."""
    unit = next((unit for unit in reversed(_UNITS) if size >= _UNITS[unit]), "B")
    return f"{size / _UNITS[unit]:,.{0 if unit == 'B' else 1}f} {unit}"


def peak_memory_bytes() -> int:
    """Peak resident set size of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        # ru_maxrss survives exec on Linux, so that a child's value starts at its parent's.
        (peak,) = (line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_rss if sys.platform == "darwin" else peak_rss * 1024
