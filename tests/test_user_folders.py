"""Where a user's data stand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from iossim.user_folders import user_data


def test_the_variable_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IOSSIM_DATA_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert user_data() == tmp_path / "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="the folders of Linux")
def test_the_platforms_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("IOSSIM_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert user_data() == tmp_path / "data" / "iossim"
    monkeypatch.setenv("XDG_DATA_HOME", "")
    assert user_data() == Path.home() / ".local" / "share" / "iossim"
