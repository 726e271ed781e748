"""A user's mistake: exit code 2, one line on standard error, nothing written; and messages that name flags as the command line does."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import typer
from command_line import refused

import iossim
import iossim.backends
from iossim.cli.main import build_app, main
from iossim.cli.options import with_flags

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
@pytest.mark.parametrize("command", ["compare", "optimize"])
def test_output_folder_that_cannot_be_made(command: str, option: str) -> None:
    Path("file").write_text("not a folder")
    refused(f"{command} ios_sample --device t4 {option}", "file", "is not a folder")
    assert Path("file").read_text() == "not a folder"


#: Files whose texts hold whole commands for somebody to type, or flags of another program.
COMMANDS = {
    "iossim/deploy/tensorrt.py",
    "iossim/hardware/names.py",
    "iossim/hardware/host_measuring.py",
    "iossim/hardware/nvidia_smi.py",
    "iossim/measurements/profilers/kernels.py",
    "iossim/measurements/profilers/layer_times.py",
    "iossim/measurements/profilers/nsight_compute.py",
    "iossim/models/load.py",
    "iossim/profiles/profile_report.py",
    "iossim/report/explanation.py",
    "iossim/report/schedule_page/page.py",
    "iossim/report/schemas.py",
    "iossim/study/report/plots/__init__.py",
    "iossim/study/report/plots/chosen_points.py",
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
