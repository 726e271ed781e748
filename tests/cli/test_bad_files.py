"""A user's mistake, a file that is not what it should be, a full disk: exit code 2, one line that names it as the command line does, nothing written."""

import ast
import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
import pytest
import typer
from case_files import cases
from command_line import printed, refused
from onnx_models import write_onnx

import iossim
import iossim.backends
from iossim.base import user_files
from iossim.cli.main import build_app, main
from iossim.cli.options import with_flags

Words = Sequence[str]


CASES = cases(__file__, "mistakes.yaml")


def changed(document: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """A saved schedule as a case of ``mistakes.yaml`` has it: without a field, or with another value there."""
    document = json.loads(json.dumps(document))
    if "without" in case:
        document.pop(case["without"])
        return document
    path, value = case["set"]
    *parents, last = path.split(".")
    place: Any = document
    for parent in parents:
        place = place[int(parent) if isinstance(place, list) else parent]
    place[int(last) if isinstance(place, list) else last] = value
    return document


TABLES: dict[str, tuple[str, Words]] = {
    "not JSON": ("{stages", ["not valid"]),
    "a list": ("[]", ["not valid"]),
    "no stages": ("{}", ["'stages'"]),
    "extra field": ('{"stages": [], "unit": "ms"}', ["'unit'"]),
    "ill-typed": ('{"stages": [{"units": "a", "latency_us": 1}]}', ["'stages.0.units'"]),
    "negative": ('{"stages": [{"units": ["a"], "latency_us": -1}]}', ["'stages.0.latency_us'"]),
    "longer than anything": ('{"stages": [{"units": ["a"], "latency_us": 1e300}]}', ["'stages.0.latency_us'"]),
    "hundreds of digits": (f'{{"stages": [{{"units": ["a"], "latency_us": {"9" * 400}}}]}}', ["'stages.0.latency_us'"]),
    "not a number": ('{"stages": [{"units": ["a"], "latency_us": NaN}]}', ["'stages.0.latency_us'"]),
    "unknown strategy": ('{"stages": [{"units": ["a"], "strategy": "both", "latency_us": 1}]}', ["'stages.0.strategy'", "merge"]),
    "a stage twice": ('{"stages": [{"units": ["a", "b"], "latency_us": 1}, {"units": ["b", "a"], "latency_us": 2}]}', ["twice", "'a'", "'b'"]),
    "a unit twice": ('{"stages": [{"units": ["a", "a"], "latency_us": 1}]}', ["'a'", "twice"]),
    "no price for a unit": ('{"stages": [{"units": ["a"], "latency_us": 1}]}', ["no price", "'b'"]),
    "infinite boundary": ('{"stages": [], "boundary_us": {"single_to_single": Infinity}}', ["single_to_single"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_price_tables(kind: str) -> None:
    contents, words = TABLES[kind]
    Path("prices.json").write_text(contents)
    refused("compare ios_sample --cost-model table:prices.json", *words)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A sequential schedule of the sample network: stages a, b, c, d and concat, in this order."""
    import iossim

    path = tmp_path_factory.mktemp("saved") / "schedule.json"
    iossim.optimize("ios_sample", "t4", scheduler="sequential").save(path)
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.mark.parametrize("kind", CASES["schedules"])
def test_schedules(kind: str, saved: dict[str, Any], folder: Path) -> None:
    case = CASES["schedules"][kind]
    Path("schedule.json").write_text(json.dumps(changed(saved, case)))
    refused("simulate schedule.json", *case["says"])
    assert [path.name for path in folder.iterdir()] == ["schedule.json"]


def test_schedule_priced_by_no_device() -> None:
    printed("optimize ios_sample --cost-model random:7 --out out")
    refused("simulate out/schedule.json", "'random'", "--device")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_folder_that_may_not_be_written() -> None:
    Path("closed").mkdir(mode=0o500)
    refused("compare ios_sample -d t4 --out closed/out", "cannot be written")


def test_damaged_external_data() -> None:
    """Weights in a file of their own that is gone: the model is priced without, and cannot be written."""
    weights = {"w": np.ones((3, 3, 1, 1), np.float32)}
    model = onnx.load(write_onnx(Path("model.onnx"), "y = Conv(x, w)", {"x": [1, 3, 8, 8]}, weights))
    onnx.save(model, "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    Path("weights.bin").unlink()
    assert "weights.bin, which does not exist" in " ".join(printed("optimize model.onnx -d t4").split())
    assert "was read without its weights" in refused("models export model.onnx --out again.onnx")


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="of POSIX systems")


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


@POSIX
@pytest.mark.parametrize("arguments", ["models list --json", "devices list"])
def test_a_reader_that_went_away_is_told_nothing(arguments: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        done = run(arguments, nobody)
    assert (done.returncode, done.stderr) == (141, b"")


@POSIX
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


@POSIX
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


@POSIX
@pytest.mark.parametrize("file", ["results.csv", "done/*.json"])
def test_a_study_that_finds_no_room(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished work is kept: with room again, --resume goes on."""
    scenario, out, kept = tmp_path / "small.yaml", tmp_path / "run", user_files._write_beside

    def full(path: Path, contents: bytes) -> None:
        if path.relative_to(out).match(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        kept(path, contents)

    scenario.write_text(STUDY)
    monkeypatch.setattr(user_files, "_write_beside", full)
    said = refused(f"study run {scenario} --out {out} --workers 1")
    place, _, remedy = said.removeprefix("error: cannot write ").partition(": ")
    assert Path(place).relative_to(out).match(file)
    assert remedy == "No space left on device; free some space, or write elsewhere\n"
    assert not list(out.glob(".*"))


LINES = (Path(__file__).parent / "mistakes.txt").read_text(encoding="utf-8").splitlines()
MISTAKES = dict(line.split(" => ") for line in LINES if line and not line.startswith("#"))


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes_get_one_line(arguments: str, folder: Path) -> None:
    refused(arguments.replace("ROOT", str(Path(__file__).parents[2])), *MISTAKES[arguments].split(" | "))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "predict ios_sample -d t4 --out {out}",
        "optimize ios_sample -d t4 --onnx {out}",
        "run schedule.json --backend numpy_reference --plan {out}",
        "schedules export schedule.json --out {out}",
        "rules verify metaflow --write {out}",
        "models export ios_sample --out {out}",
    ],
)
@pytest.mark.parametrize("out", ["folder", "missing/file.json", "/proc/file.json"])
def test_files_that_cannot_be_written_are_told_before_the_work(
    command: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a schedule is read, rules are verified or a model is priced: what does that is not there."""
    (tmp_path / "folder").mkdir()
    for work in ("proving.verify.verify_all", "api.read_any_schedule", "api.optimize"):
        monkeypatch.setattr(f"iossim.{work}", lambda *given, **named: pytest.fail("the work begins"))
    refused(command.format(out=out), f"{out} cannot be written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    assert "model file 'models' is a folder" in refused("compare models -d t4")
    (tmp_path / "ios_sample").mkdir()
    assert main(["compare", "ios_sample", "-d", "t4"]) == 0


@pytest.mark.parametrize("option", ["--out=file", "--out=file/below"])
@pytest.mark.parametrize("command", ["compare", "optimize", "explain"])
def test_output_folder_that_cannot_be_made(command: str, option: str) -> None:
    Path("file").write_text("not a folder")
    refused(f"{command} ios_sample --device t4 {option}", "file", "is not a folder")
    assert Path("file").read_text() == "not a folder"


#: Files whose texts hold whole commands for somebody to type, or flags of another program.
COMMANDS = {
    "iossim/deploy/deploying.py",
    "iossim/hardware/names.py",
    "iossim/hardware/host_measuring.py",
    "iossim/hardware/nvidia_smi.py",
    "iossim/measurements/profilers/kernels.py",
    "iossim/measurements/profilers/layer_times.py",
    "iossim/measurements/profilers/nsight.py",
    "iossim/models/load.py",
    "iossim/profiles/profile_report.py",
    "iossim/report/explanation.py",
    "iossim/report/schedule_page/__init__.py",
    "iossim/report/schemas.py",
    "iossim/study/report/plots/__init__.py",
    "iossim/study/run_directory.py",
}


@cache
def texts() -> list[tuple[str, str]]:
    """Every text below the command line that is no docstring, with its file."""
    found = []
    for package in (iossim, iossim.backends):
        for root in map(Path, package.__path__):
            for path in root.rglob("*.py"):
                name = f"{package.__name__.replace('.', '/')}/{path.relative_to(root).as_posix()}"
                if name.startswith("iossim/cli/"):
                    continue
                tree = ast.parse(path.read_text())
                said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
                for node in ast.walk(tree):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
                        found.append((name, node.value))
    return found


def flags() -> set[str]:
    """The flags of all commands."""
    found: set[str] = set()
    waiting = [typer.main.get_command(build_app())]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        found.update(flag for parameter in command.params for flag in parameter.opts)
    return found


def test_no_room_below_names_a_flag() -> None:
    named = {
        (file, text)
        for file, text in texts()
        if file not in COMMANDS and not file.endswith("_command.py") and re.search(r"(?<!\S)--[a-z]", text)
    }
    assert named == set()


def test_what_messages_name_is_a_flag() -> None:
    known = flags()
    named = {name for _, text in texts() for name in re.findall(r"`([a-z_0-9]+)`", text)}
    assert {"device", "max_groups", "cost_model"} <= named
    assert {name for name in named if with_flags(f"`{name}`") not in known} == set()


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("`max_groups` 0 is too few; give `device` NAME", "--max-groups 0 is too few; give --device NAME"),
        ("give `dimensions` n=8 or `sm_count` 40", "give --dim n=8 or --sm 40"),
        ("'`' is no name, nor is `A b`", "'`' is no name, nor is `A b`"),
    ],
)
def test_with_flags(message: str, printed: str) -> None:
    assert with_flags(message) == printed
