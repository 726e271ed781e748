"""``gpu_report`` finds iossim as an installed wheel would have it, its files import each other in one direction; and GPU
tests under it: a record each as it ends, whatever ends the process; none that ran is no success.
"""

import ast
import json
import os
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Callable
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

ROOT = Path(__file__).resolve().parents[2]


def packages_of_the_wheel(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What setup.py gives to setuptools."""
    monkeypatch.chdir(ROOT)
    given: dict[str, list[str]] = {}
    with patch("setuptools.setup", given.update):
        runpy.run_path("setup.py")
    return given["packages"]


def tiny_wheel(folder: Path, name: str, *requires: str) -> None:
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "ANSWER = 42\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
def test_every_package_of_a_wheel_is_importable_and_so_are_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_report_package import prepare

    environment = prepare(tmp_path, tmp_path / "work", None)
    packages = packages_of_the_wheel(monkeypatch)
    assert {"iossim.scenarios", "iossim.backends.cupy_cudnn", "iossim.hw_profiles"} <= set(packages)
    script = (
        "import sys; from importlib.util import find_spec; from importlib.metadata import version, requires\n"
        "import iossim.hardware.names as devices, iossim.study.scenario_file as studies\n"
        "print(*(find_spec(name).origin for name in sys.argv[1:]), sep='\\n')\n"
        "print(version('iossim'), len(requires('iossim')), len(devices.device_names()), len(studies.scenario_names()))"
    )
    command = [sys.executable, "-c", script, *packages]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *origins, facts = done.stdout.splitlines()
    assert len(origins) == len(packages)
    assert all(origin.startswith(str(tmp_path)) for origin in origins)
    version, requirements, devices, studies = facts.split()
    assert version
    assert min(int(requirements), int(devices), int(studies)) > 10


def test_wheels_are_importable(tmp_path: Path) -> None:
    from gpu_report_package import prepare

    tiny_wheel(tmp_path / "wheels", "tiny_wheel")
    environment = prepare(tmp_path, tmp_path / "work", tmp_path / "wheels")
    again = prepare(tmp_path, tmp_path / "again", tmp_path / "wheels")
    assert again["PYTHONPATH"].split(":")[0] == environment["PYTHONPATH"].split(":")[0]
    script = "import iossim, tiny_wheel; print(tiny_wheel.ANSWER)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["42"]


def test_wheels_that_cannot_be_installed_are_one_line(tmp_path: Path) -> None:
    from gpu_report_package import prepare

    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match="it holds no wheel"):
        prepare(tmp_path, tmp_path / "one", tmp_path / "empty")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tiny-1.0-cp27-cp27m-win32.whl").write_bytes(b"")
    with pytest.raises(RuntimeError, match="not a supported wheel on this platform"):
        prepare(tmp_path, tmp_path / "two", tmp_path / "other")


def test_all_that_is_missing_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_report_package

    # Of a wheel that is there, what it needs in turn; not what it needs only under a condition.
    needs = ("Deep_Down>=2", "of-windows; sys_platform == 'win32'")
    tiny_wheel(tmp_path / "wheels", "upper", *needs)
    wanted = ["numpy>=1.26", "upper", "never.heard-of ==1.0"]
    monkeypatch.setattr(gpu_report_package, "_project", lambda: {"dependencies": wanted})
    monkeypatch.setattr(gpu_report_package, "linked_package", lambda site: site)
    with pytest.raises(RuntimeError) as caught:
        gpu_report_package.prepare(tmp_path, tmp_path / "work", tmp_path / "wheels")
    said = str(caught.value)
    assert "iossim needs deep-down, never-heard-of, not installed here" in said
    assert said.endswith("-d DIR deep-down never-heard-of; then --wheels DIR")
    assert "\n" not in said


def test_what_the_gpu_backend_lacks_is_of_the_nearer_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_report_package import gpu_lacks

    # The environment of the tests may have the packages of the other CUDA.
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not place.endswith("site-packages")])
    for name in ("cupy_cuda12x", "nvidia_cuda_nvrtc_cu12", "nvidia_cudnn_cu12", "nvidia_ml_py"):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lacks = gpu_lacks({"PYTHONPATH": str(tmp_path)})
    absent = {lack.name for lack in lacks if not lack.installed}
    assert absent <= {"nvidia-cudnn-frontend"}
    # What is there is all of version 1.0.
    wrong = {lack.name: lack for lack in lacks if lack.installed}
    assert set(wrong) == {"cupy-cuda12x", "nvidia-cuda-nvrtc-cu12", "nvidia-cudnn-cu12", "nvidia-ml-py"}
    assert str(wrong["nvidia-cudnn-cu12"]) == "nvidia-cudnn-cu12>=9.10 (1.0 is installed)"


@pytest.mark.parametrize(
    ("versions", "good", "bad"),
    [
        (">=1.24.1,<1.29", ("1.24.1", "1.28.9+cu13"), ("1.23.0", "1.29", "1.29.0")),
        ("==2.41.*", ("2.41.5", "2.41"), ("2.40.9", "2.4")),
        ("==2.41.5", ("2.41.5",), ("2.41.4",)),
        ("~=1.4.2", ("1.4.2", "1.4.9"), ("1.5.0", "1.4.1")),
        ("!=1.5,>1.0", ("1.4",), ("1.5", "1.0")),
        ("", ("0.1",), ()),
    ],
)
def test_versions_are_compared_by_their_numbers(versions: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    from gpu_report_package import allows

    assert [version for version in (*good, *bad) if allows(versions, version)] == [*good]


def test_what_is_there_in_another_version_than_is_needed_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The likeliest mistake in carrying wheels: two that must be of exactly one release."""
    import gpu_report_package

    tiny_wheel(tmp_path / "wheels", "tiny_upper", "tiny-core==2.41.5")
    tiny_wheel(tmp_path / "wheels", "tiny_core")
    monkeypatch.setattr(gpu_report_package, "_project", lambda: {"dependencies": ["tiny-upper>=1"]})
    monkeypatch.setattr(gpu_report_package, "linked_package", lambda site: site)
    gpu_report_package.prepare(tmp_path, tmp_path / "work", tmp_path / "wheels")
    expected = ["note: iossim needs tiny-core==2.41.5 (1.0 is installed); carry wheels of it"]
    assert capsys.readouterr().out.splitlines() == expected


def test_compilers_keep_what_they_made_in_the_folder_of_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default they do in a folder for temporary files, which each command deletes at its end."""
    from gpu_report_package import prepare

    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    first, second = (prepare(tmp_path, tmp_path / work, None) for work in ("one", "two"))
    for name in names:
        assert first[name] == second[name]
        assert Path(first[name]).is_relative_to(tmp_path / "caches")


FILES = {path.stem: path for path in sorted((ROOT / "benchmarks").glob("gpu_report*.py"))}


def imported(name: str, top_level: bool = False) -> set[str]:
    """The first part of each name that a file imports, wherever in it unless only at its top level."""
    tree = ast.parse(FILES[name].read_text())
    nodes = tree.body if top_level else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_imports_go_round_in_no_circle() -> None:
    graph = {name: imported(name) & set(FILES) for name in FILES}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order[-1] == "gpu_report"
    assert not [name for name in FILES if "gpu_report" in graph[name]]


def test_what_begins_needs_the_standard_library_only() -> None:
    left, seen = ["gpu_report"], set[str]()
    while left:
        name = left.pop()
        seen.add(name)
        others = imported(name, top_level=True)
        assert others <= {*sys.stdlib_module_names, *FILES}, name
        left += (others & set(FILES)) - seen
    assert len(seen) > 5


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
