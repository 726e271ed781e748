"""Compiled functions and the place of their machine code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iossim.base import compiled

PROGRAM = """
from iossim.base.compiled import jit, cache_folder

@jit
def twice(x):
    return 2 * x

@jit(fastmath=True)
def thrice(x):
    return twice(x) + x

made = thrice.by_numba
print(thrice(7), made.stats.cache_hits[made.signatures[0]] if made.stats.cache_hits else 0, cache_folder())
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
    assert "set IOSSIM_CACHE_DIR to a folder that can be written" in warning


def test_a_changed_source_moves_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compiled.source_hash()
    sources = [(name, text + b"# changed") for name, text in compiled._compiled_sources()]
    monkeypatch.setattr(compiled, "_compiled_sources", lambda: iter(sources))
    compiled.source_hash.cache_clear()
    try:
        assert compiled.source_hash() != before
    finally:
        monkeypatch.undo()
        compiled.source_hash.cache_clear()
    assert compiled.source_hash() == before
