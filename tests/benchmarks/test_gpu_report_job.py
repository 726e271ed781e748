"""Items of a section of ``gpu_report``: what fails is told and the others go on; and the one file of results that comes back."""

from __future__ import annotations

import argparse
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from iossim.execution.backend import DeviceLostError


@pytest.fixture
def sections() -> ModuleType:
    return import_module("gpu_report_sections")


def arguments(out: Path) -> argparse.Namespace:
    given = {"section": "first", "seconds": 60.0, "out": out, "models": ("m",), "backend": "", "device": ""}
    return argparse.Namespace(**given, dtypes=("fp32",), dry_run=True)


def test_a_failed_item_is_known_to_its_caller_and_ends_nothing(new_job: Any, records: Any) -> None:
    job = new_job("device")
    with job.told("first") as first:
        raise ValueError("what went\nwrong")
    with job.told("second") as second:
        pass
    assert (first.error, second.error) == ("ValueError: what went wrong", "")
    assert job.remark == "1 failed, the first: first: ValueError: what went wrong"
    job.leave("third")
    assert job.remark.endswith("; 1 left to do, the first: third")
    assert [row["record"] for row in records()] == ["error", "left"]


def test_a_lost_device_ends_the_section(new_job: Any, records: Any) -> None:
    job = new_job("device")
    asked: list[str] = []

    def probe() -> None:
        asked.append("probe")
        if len(asked) > 1:
            raise OSError("illegal memory access")

    job.probes.append(probe)
    with job.told("one that fails by itself"):
        raise ValueError
    lost = pytest.raises(DeviceLostError, match="lost since inner: OSError: illegal memory access")
    with lost, job.told("outer"), job.told("inner"):
        raise ValueError
    # A backend that says so itself is believed.
    job = new_job("device")
    with pytest.raises(DeviceLostError, match="the GPU failed"), job.told("outer"), job.told("says so"):
        raise DeviceLostError("the GPU failed")
    assert [row["item"] for row in records()] == ["one that fails by itself", "inner", "says so"]


@pytest.mark.parametrize(
    ("what", "code", "last"),
    [
        ("nothing", 0, ""),
        ("fails", 3, "1 failed, the first: item: OSError: why"),
        ("left", 3, "1 left to do, the first: item"),
        ("dies", 1, "OSError: why"),
        ("skipped", 0, ""),
    ],
)
def test_the_exit_code_says_whether_all_is_done(
    sections: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: str,
    code: int,
    last: str,
) -> None:
    def section(job: Any) -> None:
        if what == "dies":
            raise OSError("why")
        if what == "left":
            job.leave("item")
        if what == "skipped":
            job.skip("item", "this machine has none")
        with job.told("item"):
            if what == "fails":
                raise OSError("why")

    monkeypatch.setattr(sections, "section_first", section)
    assert sections.run(arguments(tmp_path)) == code
    assert (capsys.readouterr().out.splitlines() or [""])[-1] == last


#: A section that adds rows to the store and is killed before it closes it.
KILLED = """
import os, signal, sys
from pathlib import Path
from iossim.cost.measured.record import Kind, MeasurementRecord
from iossim.cost.measured.store import MeasurementStore
from iossim.execution.backend import Context, Samples
store = MeasurementStore(Path(sys.argv[1]))
context = Context("b", "d", "fp32", "graph")
for number in range(20):
    store.add([MeasurementRecord(context, Kind.UNIT, f"s{number}", 1, 1, Samples((1.0,)))])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def archives() -> ModuleType:
    return import_module("gpu_report_archive")


def unpacked(archive: Path, folder: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def rows(store: Path) -> int:
    with closing(sqlite3.connect(f"file:{store}?mode=ro&immutable=1", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM measurement").fetchone()[0])


def test_a_section_that_was_killed_leaves_no_row_outside_the_archive(archives: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    store = out / "measurements.sqlite"
    command = [sys.executable, "-c", KILLED, str(store)]
    assert subprocess.run(command, check=False).returncode == -9
    with suppress(sqlite3.OperationalError):  # not even the table is in the file alone
        assert rows(store) < 20  # they are in the log beside it
    archives.save(out, tmp_path / "results.tar.gz")
    assert unpacked(tmp_path / "results.tar.gz", tmp_path / "back") == {"measurements.sqlite"}
    assert rows(tmp_path / "back" / "measurements.sqlite") == 20


def test_one_file_holds_all_results_and_no_caches(archives: ModuleType, tmp_path: Path) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    for name in ("report.jsonl", "log.txt", "references/a.npz", "caches/triton/big", ".site/iossim/x.py"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(name)
    for archive in (back / "results.tar.gz", out / archives.ARCHIVE):
        for _ in range(2):  # the second replaces the first, which is in no archive
            archives.save(out, archive)
        assert unpacked(archive, tmp_path / archive.parent.name / "unpacked") >= {"report.jsonl", "references/a.npz"}
    assert sorted(path.name for path in back.iterdir()) == ["results.tar.gz", "unpacked"]
    found = unpacked(out / archives.ARCHIVE, tmp_path / "again")
    kept = {name for name in found if not name.startswith("unpacked")}
    assert kept == {"report.jsonl", "log.txt", "references/a.npz"}


def test_an_archive_is_the_old_one_until_the_new_one_is_whole(
    archives: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.jsonl").write_text("old")
    archive = tmp_path / "back" / "results.tar.gz"
    archives.save(out, archive)
    (out / "report.jsonl").write_text("new")

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "add", full)
    with pytest.raises(OSError, match="No space left"):
        archives.save(out, archive)
    monkeypatch.undo()
    unpacked(archive, tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "report.jsonl").read_text() == "old"
    assert [path.name for path in archive.parent.iterdir()] == ["results.tar.gz"]


def test_a_folder_without_results_begins_where_the_archive_ended(archives: ModuleType, tmp_path: Path) -> None:
    out, fresh, archive = tmp_path / "out", tmp_path / "fresh", tmp_path / "results.tar.gz"
    for folder in (out, fresh):
        folder.mkdir()
    assert not archives.restore(fresh, archive)
    (out / "report.jsonl").write_text("results")
    archives.save(out, archive)
    assert archives.restore(fresh, archive)
    assert (fresh / "report.jsonl").read_text() == "results"
    (fresh / "report.jsonl").write_text("newer")
    assert not archives.restore(fresh, archive)
    assert (fresh / "report.jsonl").read_text() == "newer"
