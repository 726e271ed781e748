"""The one file that comes back from a machine: whole, replaced at once, with the rows of a killed section."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
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
def archives(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    import gpu_report_archive

    yield gpu_report_archive
    for name in [name for name in sys.modules if name.startswith("gpu_report")]:
        del sys.modules[name]


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
    assert rows_or_none(store) < 20  # they are in the log beside it
    archives.save(out, tmp_path / "results.tar.gz")
    assert unpacked(tmp_path / "results.tar.gz", tmp_path / "back") == {"measurements.sqlite"}
    assert rows(tmp_path / "back" / "measurements.sqlite") == 20


def rows_or_none(store: Path) -> int:
    """How many rows are in the file alone."""
    try:
        return rows(store)
    except sqlite3.OperationalError:  # not even the table is
        return 0


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
    assert {name for name in found if not name.startswith("unpacked")} == {
        "report.jsonl",
        "log.txt",
        "references/a.npz",
    }


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
