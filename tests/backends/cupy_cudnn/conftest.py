"""Fixtures of the cuDNN backend's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iossim.backends.cupy_cudnn import algorithms


@pytest.fixture(scope="session", autouse=True)
def _few_copies() -> Iterator[None]:
    """The host's device computes what it times, and its times are exact: one copy and one replay say all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithms, "COPIES", 1)
        patch.setattr(algorithms, "REPLAYS", 1)
        yield
