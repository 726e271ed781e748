"""Fixtures of the cuDNN backend's tests."""

import pytest

from iossim.backends.cupy_cudnn import candidate_timing, capture


@pytest.fixture
def _as_shipped() -> None:
    """Asked for by tests that time algorithms as often as it is done for users."""


@pytest.fixture(autouse=True)
def _few_copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy and one round, where a test does not ask for more: which plan is chosen changes no output.

    The host's device computes what it times, and its times are exact; a GPU is left the time for what is measured on it.
    """
    if "_as_shipped" in request.fixturenames:
        return
    for number in ("COPIES", "ROUNDS", "FINAL_ROUNDS"):
        monkeypatch.setattr(candidate_timing, number, 1)
    monkeypatch.setattr(capture, "ROUNDS", 2)
