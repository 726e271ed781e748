"""Disks that are full and readers that go away: one line and an exit code, never a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from command_line import refused

from iossim.base import user_files

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="of POSIX systems")


#: A small function, so as not to compile the search: any command's are compiled by the same decorator.
TWICE = "from iossim.base.compiled import jit\n@jit\ndef twice(x):\n    return 2 * x\nprint(twice(21))\n"
STUDY = "name: small\nmodels: [ios_sample]\ndevices: [t4]\nschedulers: [sequential, greedy]\n"


def run(arguments: str, stdout: IO[bytes]) -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, "-m", "iossim", *arguments.split()]
    return subprocess.run(program, stdout=stdout, stderr=subprocess.PIPE, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("arguments", ["models list --json", "devices list", "--help", "--version"])
def test_standard_output_that_is_full(arguments: str) -> None:
    with open("/dev/full", "wb") as full:
        done = run(arguments, full)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: cannot write to standard output: No space left on device; ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("arguments", ["models list --json", "devices list"])
def test_a_reader_that_went_away_is_told_nothing(arguments: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        done = run(arguments, nobody)
    assert (done.returncode, done.stderr) == (141, b"")


def test_compiled_code_that_cannot_be_kept(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TWICE)
    limited = f"import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); runpy.run_path({str(program)!r})"
    store = tmp_path / "store"
    environment = {**os.environ, "IOSSIM_CACHE_DIR": str(store)}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", limited], env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, b"42\n")
        assert done.stderr.startswith(b"warning: compiled code is not kept")
        assert b"File too large" in done.stderr
        assert done.stderr.count(b"\n") == 1


@pytest.mark.slow
def test_compiled_code_that_a_crash_tore_is_compiled_anew(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TWICE)
    environment = {**os.environ, "IOSSIM_CACHE_DIR": str(tmp_path / "store")}
    for torn in ("*.nbi", "*.nbc", ""):
        done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"42\n", b"")
        for file in (tmp_path / "store").rglob(torn) if torn else ():
            os.truncate(file, file.stat().st_size // 2)


def test_a_study_whose_folder_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done is kept: with room again, --resume goes on."""
    kept = user_files._write_beside

    def full(path: Path, contents: bytes) -> None:
        if path.name == "results.csv":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        kept(path, contents)

    scenario, out = tmp_path / "small.yaml", tmp_path / "run"
    scenario.write_text(STUDY)
    monkeypatch.setattr(user_files, "_write_beside", full)
    told = f"error: cannot write {out / 'results.csv'}: No space left on device; free some space, or write elsewhere\n"
    assert refused(f"study run {scenario} --out {out} --workers 1") == told
    assert not list(out.glob(".*"))


def test_work_that_finds_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, kept = tmp_path / "small.yaml", user_files._write_beside
    scenario.write_text(STUDY)

    def full(path: Path, contents: bytes) -> None:
        if path.parent.name == "done" and path.suffix == ".json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        kept(path, contents)

    monkeypatch.setattr(user_files, "_write_beside", full)
    line = refused(f"study run {scenario} --out {tmp_path / 'run'} --workers 1")
    assert line.startswith(f"error: cannot write {tmp_path / 'run' / 'done'}/")
    assert "No space left on device; " in line
