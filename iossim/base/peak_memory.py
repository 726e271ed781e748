"""The most memory that a process has held."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_memory_bytes() -> int:
    """The most memory that this process has held at once: its peak resident set."""
    status = Path("/proc/self/status")
    if status.exists():
        # ru_maxrss survives exec on Linux, so that of a child starts at its parent's.
        (peak,) = (line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_rss if sys.platform == "darwin" else peak_rss * 1024
