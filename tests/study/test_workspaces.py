"""``workspace`` as an axis: schedules under a limit, and convolutions in micro-batches under it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import iossim
from iossim import related
from iossim.study.points import points_of
from iossim.study.scenario import Scenario
from iossim.study.sweep import run_study

STUDY: dict[str, Any] = {
    "name": "workspaces",
    "models": ["alexnet"],
    "devices": ["p100-sxm2"],
    "batch_sizes": [8],
    "workspace": [
        "none", {"limit": "1MiB", "policy": "power-of-two"}, {"total": "4MiB", "policy": "power-of-two", "label": "in all"},
    ],
    "schedulers": ["sequential"],
    "measures": ["micro_batches"],
}  # fmt: skip


def test_rows_tell_what_the_api_finds(tmp_path: Path) -> None:
    run = run_study(Scenario.model_validate(STUDY), tmp_path / "run", workers=1)
    free, limited, shared = run.results.rows
    assert (free.workspace, shared.workspace) == ("any workspace", "in all")
    assert free.latency_ms is not None
    assert limited.latency_ms is not None
    assert free.latency_ms < limited.latency_ms
    network = iossim.load("alexnet", batch=8)
    for row, limits in ((limited, {"workspace": "1MiB"}), (shared, {"total_workspace": "4MiB"})):
        found = related.microbatch(network, "p100-sxm2", policy="power-of-two", **limits)  # type: ignore[arg-type]
        assert row.convolutions_ms == pytest.approx(found.time_us / 1e3)
        assert row.micro_batch_gain == pytest.approx(found.gain)
        assert row.largest_gain == max(one.gain for one in found.kernels if one.gain is not None)
        assert row.workspace_mib == found.workspace_bytes / 2**20


def test_listed_points_tell_workspaces_by_their_labels() -> None:
    listed = [{"workspace": "in all"}, {"workspace": "2MiB"}]
    points = points_of(Scenario.model_validate({**STUDY, "points": listed}))
    assert [(point.workspace.limit, point.workspace.total) for point in points] == [(None, "4MiB"), ("2MiB", None)]
