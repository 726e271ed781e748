"""Where a user's data and cache stand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from iossim.base.user_files import user_cache, user_data

FOLDERS = [(user_data, "DATA", ".local/share"), (user_cache, "CACHE", ".cache")]


@pytest.mark.parametrize(("folder", "kind", "default"), FOLDERS)
def test_the_variable_wins(
    folder: Callable[[], Path], kind: str, default: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(f"IOSSIM_{kind}_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "platform"))
    assert folder() == tmp_path / "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="the folders of Linux")
@pytest.mark.parametrize(("folder", "kind", "default"), FOLDERS)
def test_the_platforms_folder(
    folder: Callable[[], Path], kind: str, default: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(f"IOSSIM_{kind}_DIR", raising=False)
    monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "platform"))
    assert folder() == tmp_path / "platform" / "iossim"
    monkeypatch.setenv(f"XDG_{kind}_HOME", "")
    assert folder() == Path.home() / default / "iossim"
