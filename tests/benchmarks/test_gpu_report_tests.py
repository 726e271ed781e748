"""GPU tests under ``gpu_report``: a record each as it ends, whatever ends the process; and none that ran is no success."""

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

#: In the order of the file; the first says what kills the process.
TESTS = """
import os, time, pytest
@pytest.fixture
def broken(): raise OSError("no device\\nat all")
@pytest.mark.parametrize("model", ["nasnet_a", "squeezenet"])
def test_model(model): pass
def test_fails(): assert 1 == 2, "why"
def test_errs(broken): pass
@pytest.mark.skip(reason="needs two GPUs")
def test_skips(): pass
def test_inception_v3_never_ends(): LAST
"""


@pytest.fixture
def machine() -> ModuleType:
    """The module of the section."""
    return import_module("gpu_report_tests")


@pytest.fixture
def run_tests(machine: Any, tmp_path: Path) -> Callable[..., int | None]:
    """Runs the tests of a file or folder as the section does; the exit code, None where they were ended."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "gpu_report_pytest"]

    def run(place: Path = tmp_path, seconds: float = 100.0, *more: str) -> int | None:
        words = [*command, *more, "--report-file", str(tmp_path / "results.jsonl"), str(place)]
        code, _ = machine.run_for(words, seconds, tmp_path, machine._with_plugin(os.environ))
        return code

    return run


def results(path: Path) -> dict[str, tuple[str, str]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ended = [row for row in rows if row["outcome"] != "begun"]
    return {row["test"].rpartition("::")[2]: (row["outcome"], row.get("said", "")) for row in ended}


@pytest.mark.parametrize(
    ("last", "seconds"), [pytest.param("time.sleep(600)", 25.0, marks=pytest.mark.slow), ("os._exit(9)", 100.0)]
)
def test_what_ended_is_known_whatever_ends_the_process(
    run_tests: Any, tmp_path: Path, last: str, seconds: float
) -> None:
    (tmp_path / "test_made.py").write_text(TESTS.replace("LAST", last))
    assert run_tests(tmp_path, seconds) == (None if "sleep" in last else 9)
    found = results(tmp_path / "results.jsonl")
    # Tests of large networks come last, so that they cost nobody's result; that of NasNet would come after this one.
    assert list(found) == ["test_fails", "test_errs", "test_skips", "test_model[squeezenet]"]
    assert found["test_model[squeezenet]"] == ("passed", "")
    assert found["test_fails"][0] == "failed"
    assert "why" in found["test_fails"][1]
    assert found["test_errs"] == ("error", "OSError: no device")
    assert found["test_skips"] == ("skipped", "Skipped: needs two GPUs")


def test_a_lost_device_ends_the_tests_of_its_process(machine: Any, run_tests: Any, tmp_path: Path) -> None:
    lines = [
        "class DeviceLostError(Exception): pass",
        "def test_first(): raise DeviceLostError('gone')",
        "def test_next(): pass",
    ]
    (tmp_path / "test_made.py").write_text("\n".join(lines))
    assert run_tests() == machine.PYTEST_STOPPED
    (only,) = results(tmp_path / "results.jsonl").items()
    assert only[0] == "test_first"
    assert "DeviceLostError: gone" in only[1][1]


def test_what_cannot_be_collected_is_an_error_and_the_rest_runs(run_tests: Any, tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    (tmp_path / "test_fine.py").write_text("def test_fine(): pass\n")
    assert run_tests(tmp_path, 100.0, "--continue-on-collection-errors") == 1
    found = results(tmp_path / "results.jsonl")
    assert found["test_fine"] == ("passed", "")
    assert found["test_broken.py"][0] == "error"
    assert "no_such_module" in found["test_broken.py"][1]


@pytest.mark.parametrize(
    ("rows", "codes", "remark"),
    [
        ([[("a", "passed")], [("b", "passed")]], [0, 0], ""),
        ([[("a", "passed"), ("b", "failed")], []], [1, 5], "1 failed, the first: tests/backends/cupy_cudnn/test_made.py::b: why"),
        ([[("a", "skipped")], [("b", "skipped")]], [0, 5], "1 failed, the first: GPU tests: none ran"),
        ([[], []], [5, 5], "1 failed, the first: GPU tests: none ran"),
        ([[("a", "passed")], []], [None, 5], "1 left to do, the first: some of tests/backends/cupy_cudnn"),
        ([[("a", "passed")], []], [0, 4], "1 failed, the first: tests/backends/torch_cuda: pytest ended with exit code 4: "),
    ],
)  # fmt: skip
def test_the_section_says_what_became_of_its_tests(
    machine: Any,
    new_job: Any,
    records: Any,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[list[tuple[str, str]]],
    codes: list[int | None],
    remark: str,
) -> None:
    calls = iter(zip(rows, codes, strict=True))
    job = new_job("tests", dry=False)

    def ran(job: Any, tests: str, seconds: float) -> tuple[int | None, str]:
        results, code = next(calls)
        for name, outcome in results:
            said = {} if outcome == "passed" else {"said": "why"}
            job.record("test", test=f"{tests}/test_made.py::{name}", outcome=outcome, s=0.1, **said)
        return code, ""

    monkeypatch.setattr(machine, "_pytest", ran)
    machine.section_tests(job)
    assert job.remark == remark
    (counted,) = (row for row in records() if row["record"] == "tests")
    assert sum(count for name, count in counted.items() if name != "record") == sum(map(len, rows))


def test_a_dry_run_skips_only_folders_of_which_nothing_was_collected(
    machine: Any, new_job: Any, records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = new_job("tests")
    said = iter((("90/110 tests collected (20 deselected) in 3.00s", 0), ("no tests collected in 0.10s", 5)))

    def ran(job: Any, tests: str, seconds: float) -> tuple[int | None, str]:
        job.record("test", test=f"{tests}/test_made.py", outcome="skipped", s=0.0, said="needs a library")
        text, code = next(said)
        return code, text

    monkeypatch.setattr(machine, "_pytest", ran)
    machine.section_tests(job)
    assert [row["item"] for row in records() if row["record"] == "skipped"] == ["tests/backends/torch_cuda"]
    assert [row["collected"] for row in records() if row["record"] == "tests"] == [90]


def test_what_has_passed_is_not_run_again_and_what_hung_comes_last(run_tests: Any, tmp_path: Path) -> None:
    """The first run ends in the midst of a test; the second begins after it, and the third ends it."""
    lines = [
        "import os",
        "def test_first(): pass",
        "def test_hangs():",
        "    if not os.path.exists('mended'): os._exit(9)",
        "def test_next(): assert not os.path.exists('broken')",
        "def test_last(): pass",
    ]
    (tmp_path / "test_made.py").write_text("\n".join(lines))
    out = tmp_path / "results.jsonl"

    def ran() -> list[str]:
        begin = len(out.read_text().splitlines()) if out.exists() else 0
        run_tests(tmp_path / "test_made.py")
        rows = [json.loads(line) for line in out.read_text().splitlines()[begin:]]
        return [f"{row['test'].rpartition('::')[2]} {row['outcome']}" for row in rows if row["outcome"] != "begun"]

    (tmp_path / "broken").touch()
    assert ran() == ["test_first passed"]
    assert ran() == ["test_next failed", "test_last passed"]
    (tmp_path / "broken").unlink()
    (tmp_path / "mended").touch()
    assert ran() == ["test_hangs passed", "test_next passed"]
    assert ran() == []


def test_a_section_counts_the_tests_of_earlier_commands(
    machine: Any, new_job: Any, records: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that never ended is named; what passed then and is left out now is counted; anew nothing is."""
    from gpu_report_records import TESTS_ANEW, append

    def section(outcomes: dict[str, str], code: int | None) -> tuple[str, dict[str, int]]:
        job = new_job("tests", dry=False)

        def ran(job: Any, tests: str, seconds: float) -> tuple[int | None, str]:
            if tests != machine.GPU_TESTS[0]:
                return 5, ""
            for name, outcome in outcomes.items():
                job.record("test", test=f"{tests}/test_made.py::{name}", outcome=outcome, s=0.1)
            return code, ""

        monkeypatch.setattr(machine, "_pytest", ran)
        machine.section_tests(job)
        *_, row = records()
        assert row.pop("record") == "tests"
        return job.remark, row

    remark, counts = section({"a": "passed", "b": "begun"}, None)
    assert remark.endswith("some of tests/backends/cupy_cudnn, first tests/backends/cupy_cudnn/test_made.py::b")
    assert counts == {"passed": 1, "begun": 1}
    assert section({"b": "passed"}, 0) == ("", {"passed": 2})
    assert section({}, 5) == ("", {"passed": 2})
    append(tmp_path / "report.jsonl", {"record": TESTS_ANEW})
    assert section({"a": "passed"}, 0) == ("", {"passed": 1})


def test_without_pytest_the_section_says_so(machine: Any, new_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "TESTS_NEED", ("pytest", "no-such-plugin"))
    with pytest.raises(RuntimeError, match="GPU tests need no-such-plugin, not installed here"):
        machine.section_tests(new_job("tests", dry=False))
