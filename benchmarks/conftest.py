"""Benchmarks: ``pytest benchmarks``. Compare ratios within one run, never seconds between machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import iossim
from iossim.ir.network import Network

NETWORKS = ("squeezenet", "inception_v3", "randwire", "nasnet_a")


@pytest.fixture(scope="session")
def graphs() -> Path | None:
    """The paper's edge lists for RandWire if available, else iossim's own graphs."""
    shared = Path(os.environ.get("IOSSIM_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    folder = shared / "data" / "randwire"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def networks(graphs: Path | None) -> dict[tuple[str, int], Network]:
    """The four networks of the paper at batch 1 and 32."""
    return {
        (name, batch): iossim.load(name, batch=batch, graphs=graphs if name == "randwire" else None)
        for name in NETWORKS
        for batch in (1, 32)
    }
