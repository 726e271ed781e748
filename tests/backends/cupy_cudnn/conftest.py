"""Fixtures of the cuDNN backend's tests."""

from __future__ import annotations

import pytest

from iossim.backends.cupy_cudnn import candidate_timing


@pytest.fixture
def _as_shipped() -> None:
    """Asked for by tests on the host's device that time algorithms as often as a GPU's are timed."""


@pytest.fixture(autouse=True)
def _few_copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's device computes what it times, and its times are exact: one copy and one round say all.

    Tests on a GPU time as often as it is done for users.
    """
    if request.node.get_closest_marker("gpu") or "_as_shipped" in request.fixturenames:
        return
    for number in ("COPIES", "ROUNDS", "FINAL_ROUNDS"):
        monkeypatch.setattr(candidate_timing, number, 1)
