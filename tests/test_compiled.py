"""Compiled functions and the place of their machine code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from iossim.base import by_numba, user_folders
from iossim.base.native import library

PROGRAM = """
from iossim.base.compiled import jit
from iossim.base.by_numba import cache_folder

@jit
def twice(x):
    return 2 * x

@jit(fastmath=True)
def thrice(x):
    return twice(x) + x

made = thrice.by_numba
print(thrice(7), made.stats.cache_hits[made.signatures[0]] if made.stats.cache_hits else 0, cache_folder())
"""


NATIVE = """
from iossim.base.compiled import jit

@jit
def twice(x: int) -> int:
    return 2 * x

print(twice(7))
"""


def run(path: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(path)], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_a_second_process_reads_the_cache(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    store = tmp_path / "store"
    value, hits, folder = run(program, IOSSIM_CACHE_DIR=str(store))
    assert (value, hits) == ("21", "0")
    assert Path(folder).parent == store
    assert list(Path(folder).rglob("*.nbi"))
    value, hits, _ = run(program, IOSSIM_CACHE_DIR=str(store))
    assert (value, hits) == ("21", "1")


def test_without_a_writable_folder_it_still_compiles(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    blocked = tmp_path / "file"
    blocked.write_text("")  # a file where a folder would have to be
    environment = {**os.environ, "IOSSIM_CACHE_DIR": str(blocked), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True, env=environment)
    value, _, folder = done.stdout.split()
    assert value == "21"
    assert Path(folder).is_relative_to(tmp_path)
    (warning,) = done.stderr.splitlines()
    assert f"{blocked}: Not a directory" in warning
    assert "set IOSSIM_CACHE_DIR to a folder that you alone can write" in warning


def _of_another_user(folder: Path) -> None:
    os.chown(folder, 12345, 12345)


def _writable_by_all(folder: Path) -> None:
    folder.chmod(0o777)


def _link_of_another_user(folder: Path) -> None:
    moved = folder.with_name("elsewhere")
    folder.rename(moved)
    folder.symlink_to(moved)
    os.chown(folder, 12345, 12345, follow_symlinks=False)


@pytest.mark.parametrize(
    ("place", "spoil"),
    [
        ("cache", _writable_by_all),
        ("cache/native", _of_another_user),
        ("tmp/iossim-UID", _of_another_user),
        ("tmp/iossim-UID", _link_of_another_user),
        ("tmp/iossim-UID/native", _writable_by_all),
    ],
)
def test_code_of_others_does_not_run(place: str, spoil: Callable[[Path], None], tmp_path: Path) -> None:
    """A planted library is not loaded from the cache folder, nor from the one that takes its place."""
    if spoil is not _writable_by_all and os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    if library.compiler() is None:
        pytest.skip("needs a C compiler")
    program, said = tmp_path / "program.py", tmp_path / "said"
    program.write_text(NATIVE)
    cache, temporary = tmp_path / "cache", tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "IOSSIM_CACHE_DIR": str(cache), "TMPDIR": str(temporary)}

    def ran() -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, str(program)], capture_output=True, text=True, check=False, env=environment
        )
        return done.stdout, done.stderr

    kept = tmp_path / place.replace("UID", str(os.geteuid()))
    if place.startswith("tmp"):
        cache.write_text("")  # no folder: that of temporary files takes its place
    assert ran()[0] == "14\n"
    (made,) = kept.rglob("*.so")
    source = tmp_path / "planted.c"
    source.write_text(f'#include <stdio.h>\n__attribute__((constructor)) void f() {{ fclose(fopen("{said}", "w")); }}')
    subprocess.run([str(library.compiler()), "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    ran()
    assert said.exists(), "the plant works"
    said.unlink()
    spoil(kept)
    value, remark = ran()
    assert not said.exists()
    assert value == "14\n"
    assert len(remark.splitlines()) == 1
    assert str(kept) in remark or place.startswith("tmp")
    assert not list(temporary.glob("iossim-[!0-9]*")), "a folder of the process goes with it"


def test_a_folder_on_the_way_may_be_sticky_or_of_the_users_own_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    folder = tmp_path / "above" / "own"
    assert user_folders.own_folder(folder) == folder
    assert {each.stat().st_mode & 0o777 for each in (folder, folder.parent)} == {0o700}
    folder.parent.chmod(0o770)
    monkeypatch.setattr(user_folders, "_own_group", lambda: folder.stat().st_gid)
    assert user_folders.own_folder(folder) == folder
    monkeypatch.setattr(user_folders, "_own_group", lambda: None)
    with pytest.raises(PermissionError, match=f"other users may write {folder.parent}"):
        user_folders.own_folder(folder)
    folder.parent.chmod(0o700)
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match=f"other users may write {tmp_path}"):
        user_folders.own_folder(folder)


def test_a_changed_source_moves_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    before = by_numba.source_hash()
    sources = [(name, text + b"# changed") for name, text in by_numba.compiled_sources()]
    monkeypatch.setattr(by_numba, "compiled_sources", lambda: iter(sources))
    by_numba.source_hash.cache_clear()
    try:
        assert by_numba.source_hash() != before
    finally:
        monkeypatch.undo()
        by_numba.source_hash.cache_clear()
    assert by_numba.source_hash() == before
