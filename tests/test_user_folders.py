"""Where a user's data and cache stand."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from iossim.base.errors import OptionError
from iossim.base.user_files import read_text, user_cache, user_data

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


TEXT = "stream,name\r\n0,gemm µ\r\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le with a mark"])
@pytest.mark.parametrize("zipped", [False, True])
def test_texts_as_people_have_them(encoding: str, zipped: bool, tmp_path: Path) -> None:
    data = b"\xff\xfe" + TEXT.encode("utf-16-le") if "mark" in encoding else TEXT.encode(encoding)
    path = tmp_path / "kernels.csv"
    path.write_bytes(gzip.compress(data[:9]) + gzip.compress(data[9:]) if zipped else data)
    assert read_text(path, "kernels", "", OptionError) == TEXT.replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\xff", "is not text; give another"),
        (b"a\0b", "is not text; give another"),
        (b"\xff\xfea", "is not text; give another"),
        (gzip.compress(b"stream,name", mtime=0)[:-9], "the gzip file is damaged or cut short; copy it again"),
        (
            gzip.compress(b"stream,name", mtime=0)[:12] + b"\xff" * 20,
            "the gzip file is damaged or cut short; copy it again",
        ),
        (gzip.compress(bytes(1025), mtime=0), "holds more than 0 MiB; split the file"),
    ],
)
def test_what_is_no_text(data: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iossim.base.user_files._MOST_UNZIPPED_BYTES", 1024)
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(OptionError, match=words):
        read_text(path, "kernels", "give another", OptionError)
