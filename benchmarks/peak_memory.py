"""Peak memory of the unpruned search of all four networks, pricing included, above the idle process.

Idle: everything imported, compiled code loaded, networks built. Run in a process of its own.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import iossim


def main() -> None:
    shared = Path(os.environ.get("IOSSIM_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    graphs = shared / "data" / "randwire"
    given = {"graphs": graphs} if graphs.is_dir() else {}
    networks = [iossim.load(name) for name in ("squeezenet", "inception_v3", "nasnet_a")]
    networks.append(iossim.load("randwire", **given))
    iossim.optimize("ios_sample", "v100-sxm2")
    idle = peak_bytes()
    for network in networks:
        iossim.optimize(network, "v100-sxm2")
    print(f"idle {idle / 2**20:.0f} MB, peak of the search {(peak_bytes() - idle) / 2**20:.0f} MB above it")


def peak_bytes() -> int:
    """The most memory that this process has held at once."""
    status = Path("/proc/self/status")
    if status.exists():
        # ru_maxrss survives exec on Linux, so that of a child starts at its parent's.
        (peak,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_rss if sys.platform == "darwin" else peak_rss * 1024


if __name__ == "__main__":
    main()
