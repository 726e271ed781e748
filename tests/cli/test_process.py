"""The command line as a process: what it imports, what it prints where, and that runs repeat."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import printed

import iossim
from iossim.base.native.library import compiler
from iossim.cli.main import main
from iossim.cli.options import PREDICT, RUN, SCHEDULE

HEAVY = ("numba", "numpy", "scipy", "onnx", "altair", "vl_convert", "pydantic", "simpy", "yaml", "onnxruntime")


def run(*arguments: str, folder: Path, hash_seed: str = "random", **more: str) -> subprocess.CompletedProcess[str]:
    """``python ARGUMENTS`` in a folder outside the repository."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "COLUMNS": "80", **more}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("statement", ["import iossim", "import iossim.cli.main; iossim.cli.main.build_app()"])
def test_nothing_heavy_is_imported_before_it_is_needed(statement: str, tmp_path: Path) -> None:
    program = f"import sys; {statement}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = run("-c", program, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def loaded(*command: str, folder: Path) -> tuple[int, set[str]]:
    """The exit code of a command of iossim, and the modules that it has loaded."""
    program = (
        f"import sys; from iossim.cli.main import main; code = main({list(command)!r}); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = run("-c", program, folder=folder)
    return done.returncode, set(done.stderr.splitlines()[-1].split())


#: What takes long to load, and is used by few commands.
UNUSED = {
    *("scipy", "simpy", "z3", "jinja2", "altair", "onnx", "onnxruntime", "joblib"),
    *("iossim.edge", "iossim.study", "iossim.transforms.rewriting", "iossim.microbatching", "iossim.proving"),
    *("iossim.calibration", "iossim.report.figures", "iossim.search.measured.search", "iossim.cli.optimize"),
}


@pytest.mark.skipif(compiler() is None, reason="there is no C compiler")
def test_a_comparison_loads_only_what_it_uses(tmp_path: Path) -> None:
    command = "compare", "squeezenet", "-d", "t4"
    loaded(*command, folder=tmp_path)  # makes what is compiled
    code, modules = loaded(*command, folder=tmp_path)
    unused = UNUSED | {"numba", "llvmlite", "iossim.base.native.translation"}
    assert (code, unused & modules) == (0, set())
    assert len(modules) < 700


def test_help_loads_no_more_than_the_commands(tmp_path: Path) -> None:
    code, modules = loaded("--help", folder=tmp_path)
    assert (code, {*HEAVY, "iossim.api", "rich.table", "ctypes"} & modules) == (0, set())
    assert len(modules) < 300


@pytest.mark.parametrize(
    ("model", "device", "unused"),
    [
        ("squeezenet", "t5", {"numpy", "iossim.ir", "iossim.models", "iossim.hardware.profile"}),
        ("squeezenett", "t4", {"yaml", "iossim.search", "iossim.hardware.profile", "iossim.base.compiled"}),
    ],
)
def test_a_mistyped_name_is_refused_before_anything_works_with_it(
    model: str, device: str, unused: set[str], tmp_path: Path
) -> None:
    code, modules = loaded("compare", model, "-d", device, folder=tmp_path)
    assert (code, {*UNUSED, *unused, "numba", "iossim.api"} & modules) == (2, set())
    assert len(modules) < 480


@pytest.mark.skipif(compiler() is None, reason="there is no C compiler")
def test_a_first_comparison_compiles_few_functions_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library for each module that it calls compiled code of; none by numba, which takes a second each."""
    monkeypatch.setenv("IOSSIM_CACHE_DIR", str(tmp_path / "cache"))
    code, modules = loaded("compare", "squeezenet", "-d", "t4", folder=tmp_path)
    made = sorted(path.name.partition("-")[0] for path in (tmp_path / "cache").rglob("*.*"))
    assert (code, "numba" in modules) == (0, False)
    simulator = ("kernel_model", "kernel_times", "stage_model", "stage_pricing")
    assert made == [
        *(f"iossim.backends.simulator.{name}" for name in simulator),
        *(f"iossim.{name}" for name in ("hardware.lowering.residence", "schedule.masks")),
        *(f"iossim.search.{name}" for name in ("endings", "lattice")),
    ]


def test_help_names_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = printed("--help")
    for command in ("compare", "optimize", "simulate", "search-space", "models", "devices"):
        assert f"\n  {command} " in text
    assert re.findall("^[A-Z].*:$", text, re.M)[1:4] == [f"{panel}:" for panel in (SCHEDULE, RUN, PREDICT)]
    assert "Exit codes" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_shells_complete_models_devices_and_scenarios(tmp_path: Path) -> None:
    completed = {"compare sque": "squeezenet", "check m -d v100-s": "v100-sxm2", "study run whi": "which_gpu"}
    for words, known in completed.items():
        asked = {"COMP_WORDS": f"iossim {words}", "COMP_CWORD": str(words.count(" ") + 1)}
        done = run("-m", "iossim", folder=tmp_path, _IOSSIM_COMPLETE="complete_bash", **asked)
        assert known in done.stdout.split()


@pytest.mark.parametrize("arguments", [[], ["models"], ["devices"]])
def test_no_command_gets_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert output.out.startswith("Usage: iossim")
    assert output.err == ""


def test_version(tmp_path: Path) -> None:
    done = run("-m", "iossim", "--version", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"iossim {iossim.__version__}\n", "")
    changes = Path(__file__).resolve().parents[2] / "CHANGELOG.md"
    assert f"\n## {iossim.__version__} (" in changes.read_text(encoding="utf-8")


def test_mistake_in_a_process(tmp_path: Path) -> None:
    done = run("-m", "iossim", "compare", "ios_sample", "-d", "t5", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: unknown device 't5'; did you mean 't4'?")


@pytest.mark.slow
def test_same_files_in_every_process(tmp_path: Path) -> None:
    """Sets and dictionaries of strings are ordered by the hash seed; nothing that is written may depend on it."""
    contents = []
    for hash_seed in ("own", "4321"):
        out = tmp_path / hash_seed
        command = shlex.split("optimize inception_v3 -d v100-sxm2 -r 3 -s 8 --no-plot --out")
        command += [str(out)]
        own = hash_seed == "own"
        code = main(command) if own else run("-m", "iossim", *command, folder=tmp_path, hash_seed=hash_seed).returncode
        assert code == 0
        schedule = json.loads((out / "schedule.json").read_text())
        schedule["search_s"] = 0.0
        contents.append([schedule, (out / "trace.json").read_text()])
    assert contents[0] == contents[1]
