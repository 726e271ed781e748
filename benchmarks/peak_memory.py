"""Peak memory of the unpruned search of all four networks, pricing included, above the idle process.

Idle means: everything imported, compiled code loaded, networks built. It runs in its own process.
"""

from __future__ import annotations

import os
from pathlib import Path

import iossim
from iossim.base.memory import peak_memory_bytes


def main() -> None:
    shared = Path(os.environ.get("IOSSIM_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    graphs = shared / "data" / "randwire"
    given = {"graphs": graphs} if graphs.is_dir() else {}
    networks = [iossim.load(name) for name in ("squeezenet", "inception_v3", "nasnet_a")]
    networks.append(iossim.load("randwire", **given))
    iossim.optimize("ios_sample", "v100-sxm2")
    idle = peak_memory_bytes()
    for network in networks:
        iossim.optimize(network, "v100-sxm2")
    print(f"idle {idle / 2**20:.0f} MB, peak of the search {(peak_memory_bytes() - idle) / 2**20:.0f} MB above it")


if __name__ == "__main__":
    main()
