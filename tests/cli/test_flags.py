"""Messages name parameters in backquotes, and only the command line knows flags."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import typer

import iossim
import iossim.backends
from iossim.cli.main import build_app
from iossim.cli.options import with_flags

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
    "iossim/report/schedule_page/page.py",
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
