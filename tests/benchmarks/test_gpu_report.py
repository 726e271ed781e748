"""``benchmarks/gpu_report.py``: its time is shared out, crashes cost one section or item, it goes on where it stopped; one file of results; a dry run."""

import argparse
import itertools
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import time
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from iossim.calibration.evaluated_networks import evaluate_measured_networks
from iossim.execution.backend import DeviceLostError
from iossim.hardware.load import device
from iossim.measurements.measured_networks import read_measured_networks
from iossim.measurements.measurement_set import read_measurements

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def gpu_report() -> ModuleType:
    """The script as a module."""
    return import_module("gpu_report")


def outcomes(out: Path) -> dict[str, str]:
    records = [json.loads(line) for line in (out / "report.jsonl").read_text().splitlines()]
    return {row["section"]: row["outcome"] for row in records if row["record"] == "section"}


def test_sections_by_name_and_by_kind(gpu_report: ModuleType) -> None:
    models = ("a", "b")
    every = gpu_report.chosen_sections("", models)
    kinds = ("graph", "networks", "company", "compile")
    first, *rest = ([f"{kind}/{model}" for model in models] for kind in kinds)
    middle = ["profile", "baselines", "tests", "warm-up"]
    autotune = [f"autotune/{model}" for model in models]
    others = [*itertools.chain(*rest), "modules", *autotune, "prediction"]
    assert every == ["first", "costs", *first, *middle, *others]
    assert not {"compile/e", "autotune/e"} & {*gpu_report.chosen_sections("", (*models, "c", "d", "e"))}
    expected = ["tests", "networks/b", "compile/a", "compile/b"]
    assert gpu_report.chosen_sections("compile,tests,networks/b", models) == expected
    with pytest.raises(ValueError, match="'network' is not known"):
        gpu_report.chosen_sections("network", models)


def test_each_precision_has_sections_of_its_own_what_people_run_first(gpu_report: ModuleType) -> None:
    every = gpu_report.chosen_sections("", ("a", "b", "c"), gpu_report.DTYPES)
    of_kind = {
        kind: [name for name in every if name.startswith(f"{kind}/")] for kind in ("graph", "networks", "compile")
    }
    marks = ("@bf16", "", "@fp16", "@tf32")
    assert of_kind["graph"] == [f"graph/{model}{mark}" for mark in marks for model in ("abc" if "bf" in mark else "ab")]
    assert of_kind["networks"] == [f"networks/{model}{mark}" for mark in marks[:2] for model in "abc"]
    assert of_kind["compile"] == [f"compile/{model}@bf16" for model in "abc"]
    with pytest.raises(ValueError, match="--dtypes 'fp8' is not known; known: bf16, fp32, fp16, tf32"):
        gpu_report.chosen_sections("", ("a",), ("fp8",))


def test_shares_use_up_the_time_and_what_is_left_goes_on(gpu_report: ModuleType) -> None:
    from gpu_report_plan import NEEDS_S, kind_of

    names = gpu_report.chosen_sections("", gpu_report.MODELS, gpu_report.DTYPES)
    left_s = 540.0
    given: list[float] = []
    for index, name in enumerate(names):
        given.append(gpu_report.time_for(name, names[index + 1 :], left_s))
        left_s -= given[-1]
    assert left_s == pytest.approx(0.0)
    # What comes first has what it needs to begin at all, whatever else there is to do.
    needed = [NEEDS_S[kind_of(name)] for name in names]
    assert given[:8] == needed[:8]
    whole = [own for own, least in zip(given, needed, strict=True) if own >= least]
    assert given[: len(whole)] == whole
    assert sum(given[: len(whole) + 1]) == pytest.approx(540.0)
    few = ["first", "networks/squeezenet@bf16", "networks/inception_v3@bf16"]
    assert gpu_report.time_for(few[0], few[1:], 52.0) == NEEDS_S["first"]
    early = gpu_report.time_for("prediction", (), 100.0)
    assert early == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("script", "outcome", "said"),
    [
        ("print('fine')", "done", ""),
        ("print('1 failed, the first: x'); raise SystemExit(3)", "partial", "1 failed, the first: x"),
        ("raise ValueError('what went wrong')", "failed", "exit code 1: ValueError: what went wrong"),
        ("import os; os.abort()", "failed", "exit code -6"),
        ("raise SystemExit(2)", "failed", "it said nothing"),
        ("import time; time.sleep(60)", "killed", "not at its end"),
    ],
)
def test_however_a_section_ends_it_is_told(
    gpu_report: ModuleType, tmp_path: Path, script: str, outcome: str, said: str
) -> None:
    (tmp_path / "log.txt").write_text("of an earlier section\n")
    kill_s = 1.0 if "sleep" in script else 30.0
    found = gpu_report.run_section("tests", [sys.executable, "-c", script], 5.0, kill_s, tmp_path, os.environ)
    assert (found.section, found.outcome) == ("tests", outcome)
    assert said in found.error
    assert found.record().get("error", "") == found.error
    assert "of an earlier section" not in found.error


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see other processes")
def test_what_a_section_started_ends_with_it(gpu_report: ModuleType, tmp_path: Path) -> None:
    child = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print(p.pid)"
    gpu_report.run_section("tests", [sys.executable, "-c", child], 5.0, 30.0, tmp_path, os.environ)
    pid = int((tmp_path / "log.txt").read_text().split()[-1])
    end_s = time.monotonic() + 30
    while _runs(pid):
        assert time.monotonic() < end_s  # it would sleep for a minute
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Whether a process is there and has not ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_goes_on_where_it_stopped(
    gpu_report: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    bad = {"tests"}

    def run_section(section: str, *rest: object) -> object:
        ran.append(section)
        return gpu_report.Outcome(section, "failed" if section in bad else "done", 0.1, "")

    monkeypatch.setattr(gpu_report, "run_section", run_section)
    given = ["--out", str(tmp_path), "--models", "a", "--sections", "first,tests,prediction"]
    assert gpu_report.report(gpu_report.parse(given)) == 1
    assert ran == ["first", "tests", "prediction"]
    bad.clear()
    ran.clear()
    # What was predicted before is out of date once anything is measured.
    assert gpu_report.report(gpu_report.parse(given)) == 0
    assert ran == ["tests", "prediction"]
    ran.clear()
    assert gpu_report.report(gpu_report.parse(given)) == 0
    assert ran == []
    assert gpu_report.report(gpu_report.parse([*given, "--again"])) == 0
    assert ran == ["first", "tests", "prediction"]
    assert "was done before" in capsys.readouterr().out


def test_without_time_nothing_is_started(gpu_report: ModuleType, tmp_path: Path) -> None:
    args = gpu_report.parse(["--out", str(tmp_path), "--sections", "first", "--budget", "1"])
    assert gpu_report.report(args) == 1
    assert outcomes(tmp_path) == {"first": "skipped"}


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, str(FOLDER / "gpu_report.py"), "--out", str(tmp_path / "file" / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert str(tmp_path / "file" / "out") in line


@pytest.mark.slow
def test_a_dry_run_leaves_what_validate_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the CPU backend takes the GPU's place")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")  # what Python compiled is there, not to be made by each section
    # A minute's work; the rest is for machines that have others to do.
    command = [sys.executable, str(FOLDER / "gpu_report.py"), "--dry-run", "--out", str(tmp_path), "--budget", "2000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + (tmp_path / "log.txt").read_text()
    assert set(outcomes(tmp_path).values()) == {"done"}
    records = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    kinds = {row["record"] for row in records}
    assert {"device", "tests", "profile", "export", "prediction", "section"} <= kinds
    assert not [row for row in records if row["record"] in ("error", "left")]
    # Without torch its baselines are skipped, and nothing else may be but what takes a minute to compile, or a GPU's driver.
    skipped = [row["item"] for row in records if row["record"] == "skipped"]
    of_gpus = ("costs of launches", "company of squeezenet")  # ONNX Runtime knows one kernel of each unit
    assert all("torch" in item.lower() or "compiled" in item or item in of_gpus for item in skipped)
    assert [row["right"] for row in records if row["record"] == "convolution"] == [True, True]
    (tests,) = (row for row in records if row["record"] == "tests")
    assert tests["collected"] > 50
    profiles = {(row["engine"], row["l2"]): row for row in records if row["record"] == "profile"}
    assert set(profiles) == {(engine, l2) for engine in ("graph", "paper") for l2 in ("warm", "cold")}
    assert all(row["sequential_us"] > 0 and row["complete"] for row in profiles.values())
    measured = read_measured_networks(tmp_path / "networks.jsonl")
    assert measured.header.device == "cpu"
    runs = {(run.engine, run.name): run for run in measured.runs if run.schedule is not None}
    names = ("sequential", "greedy", "ios-both")
    assert set(runs) == {(engine, name) for engine in ("graph", "paper") for name in names}
    assert all(run.output_error is not None and run.output_error < 1e-4 for run in runs.values())
    assert all(run.stages_warm_us and run.stages_cold_us for run in runs.values())
    assert all(runs[engine, "ios-both"].measurements for engine in ("graph", "paper"))
    assert len(list((tmp_path / "references").iterdir())) == 1
    evaluation = evaluate_measured_networks(measured, device("h100-sxm"))
    assert evaluation.notes == ()
    assert evaluation.accuracy.rows == 6
    for engine in ("graph", "paper"):
        assert len(read_measurements(tmp_path / f"operators-{engine}.jsonl").measurements) > 10
    # Again: all is done, nothing is measured.
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0
    assert again.stdout.count("was done before") == len(outcomes(tmp_path))


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
