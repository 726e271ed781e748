"""README.md is true: its Python runs, and its command lines are ones that iossim takes."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from iossim.cli.main import build_command, main
from iossim.hardware.load import device as load_device
from iossim.measurements.measurement_set import read_measurements

README = Path(__file__).resolve().parents[1] / "README.md"


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def command_lines() -> list[list[str]]:
    """The arguments of every ``iossim ...`` in an indented or fenced code block, or between backquotes."""
    found: dict[str, list[str]] = {}
    fenced = False
    for line in README.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
            continue
        code = [line.strip()] if fenced or line.startswith("    ") else re.findall(r"`([^`]+)`", line)
        for text in code:
            for part in re.split(r"&&|\|", text):
                words = shlex.split(part.removeprefix("$ ").strip(), comments=True) if "iossim " in part else []
                if words and Path(words[0]).name == "iossim":
                    found[shlex.join(words[1:])] = words[1:]
    return list(found.values())


def measuring_lines() -> list[list[str]]:
    """The commands of the section on hardware, which measure this machine."""
    lines = command_lines()
    begin = next(index for index, line in enumerate(lines) if line[0] == "profile")
    end = next(index for index, line in enumerate(lines) if line[0] == "bench")
    return lines[begin : end + 1]


def test_readme_shows_both() -> None:
    assert python_blocks()
    assert ["compare", "inception_v3", "--device", "v100-sxm2"] in command_lines()


def test_every_file_that_a_command_reads_is_there_or_written_before() -> None:
    """Nothing is read that a clone has not, but for ``model.onnx``, the reader's own."""
    written = {"model.onnx"}
    for line in command_lines():
        out = {line[place + 1] for place, word in enumerate(line[:-1]) if word in ("--out", "-o", "--onnx")}
        made = line[2:3] if line[:2] == ["measurements", "export"] else []
        for word in line:
            path = Path(word)
            if path.suffix not in (".csv", ".json", ".jsonl", ".yaml", ".onnx") or word in out or word in made:
                continue
            assert (README.parent / path).is_file() or word in written or path.parts[0] in written, shlex.join(line)
        written |= {*out, *made}


def test_the_example_of_measurements_says_what_it_is() -> None:
    measured = read_measurements(README.parent / "examples" / "measured.jsonl")
    assert measured.header.device == load_device(str(README.parent / "examples" / "cpu.yaml")).name
    assert "onnxruntime_cpu" in measured.header.source
    assert "other work beside it" in measured.header.source
    assert measured.header.date
    assert len(measured.measurements) > 40


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in order, in one namespace, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "readme"}
    for number, block in enumerate(python_blocks(), 1):
        exec(compile(block, f"README.md, Python block {number}", "exec"), namespace)


@pytest.mark.parametrize("arguments", command_lines(), ids=shlex.join)
def test_command_lines_parse(arguments: list[str]) -> None:
    """Known commands with known options; nothing is run."""
    command = build_command()
    words = list(arguments)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, f"iossim has no command {shlex.join(arguments)!r}"
        command = command.commands[words.pop(0)]
    if words not in (["--version"], ["--help"]):
        # An unknown option, or a missing argument, raises.
        command.make_context("iossim", words)


@pytest.mark.slow
def test_command_lines_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the README's order, since one reads what another wrote; what needs a file of the reader's is left out."""
    monkeypatch.chdir(tmp_path)
    # As in a clone, where the README's commands are typed.
    shutil.copytree(README.parent / "examples", "examples")
    for arguments in command_lines():
        # A file of the reader's, what has slower tests of its own, and what measures.
        if any("model.onnx" in argument or argument.isupper() for argument in arguments):
            continue
        if arguments in measuring_lines():
            continue
        assert main(arguments) == 0, f"iossim {shlex.join(arguments)}: {capsys.readouterr().err}"


@pytest.mark.slow
def test_measuring_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Profile, calibrate, search, run and compare on this very machine; whatever it measures."""
    pytest.importorskip("onnxruntime", reason="the backend of the section")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IOSSIM_DATA_DIR", str(tmp_path / "data"))
    assert [line[0] for line in measuring_lines()] == [
        "profile", "measurements", "calibrate", "optimize", "run", "bench"
    ]  # fmt: skip
    # Fewer rounds and measurements than a reader would take.
    shorter = {
        "profile": ["--rounds", "3", "--pairs", "5", "--stages", "10"],
        "optimize": ["--budget", "60"],
        "run": ["--rounds", "3"],
        "bench": ["--rounds", "3", "--budget", "60"],
    }
    for line in measuring_lines():
        replaced = shorter.get(line[0], [])
        kept = [
            word for at, word in enumerate(line) if word not in replaced[::2] and line[at - 1] not in replaced[::2]
        ]
        arguments = [*kept, *replaced]
        assert main(arguments) == 0, f"iossim {shlex.join(arguments)}: {capsys.readouterr().err}"
