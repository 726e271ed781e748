"""Fixtures of the cuDNN backend's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iossim.backends.cupy_cudnn import candidate_timing


@pytest.fixture(scope="session", autouse=True)
def _few_copies() -> Iterator[None]:
    """The host's device computes what it times, and its times are exact: one copy and one round say all."""
    with pytest.MonkeyPatch.context() as patch:
        for number in ("COPIES", "ROUNDS", "FINAL_ROUNDS"):
            patch.setattr(candidate_timing, number, 1)
        yield
