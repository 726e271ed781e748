"""Messages name parameters in backquotes, and only the command line knows flags."""

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


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("optimize squeezenet -d t4 --alpha 2", "--alpha has no effect without --rewrite or --search; give that, too"),
        ("compare squeezenet -d t4 --rewrite-budget 9", "--rewrite-budget has no effect without --rewrite"),
        ("compare squeezenet -d t4 --micro-batch 2 --unproved", "--unproved has no effect without --rewrite"),
        ("optimize squeezenet -d t4 --rewrite-search saturation", "--rewrite-search has no effect without --rewrite"),
        ("check squeezenet -d t4 --max-latency-ms 9 --tolerance 0.1", "--tolerance has no effect without --baseline"),
        ("bench squeezenet --backend numpy_reference --plot", "--plot needs a folder to write to; give --out DIR"),
        ("dataflow optimize squeezenet -d zcu102 --sync ps", "--sync has no effect without --devices; give that"),
        ("dataflow run squeezenet -d zcu102 --mix outC", "--mix has no effect without --devices or --processes"),
        ("optimize squeezenet -d t4 --scheduler greedy --seconds 9", "--seconds has no effect on scheduler greedy"),
        ("optimize squeezenet -d t4 --stream-seed 9", "--stream-seed has no effect on scheduler ios-both"),
        ("compare squeezenet -d t4 --stream-seed 9", "--stream-seed has no effect on scheduler sequential, greedy"),
        ("compare squeezenet -d t4 --schedulers sequential,greedy -r 3", "--max-group-size has no effect on scheduler"),
        ("check squeezenet -d t4 --max-latency-ms 9 --scheduler sequential --stages paper", "--stages has no effect"),
        ("compare squeezenet -d t4 --schedulers greedy,greedy", "--schedulers names 'greedy' 2 times; give it once"),
        ("bench squeezenet --backend numpy_reference --compare torch,torch", "--compare names 'torch' 2 times"),
        ("bench squeezenet --backend numpy_reference:threads=1,threads=2", "'threads' is given twice; give it once"),
        ("optimize squeezenet -d t4+sms=40,sms=80", "'sms' is given twice; give it once"),
        ("models show x.onnx --shape x=1x2 --shape x=1x3", "--shape names 'x' 2 times; give it once"),
    ],
)
def test_what_would_have_no_effect_is_refused(command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, command)
