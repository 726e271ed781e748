"""A small run of every command: JSON that its schema names whole, and a bar where it may take over a second, gone before its words."""

import io
import json
import os
import pty
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from case_files import cases
from command_line import printed
from jsonschema import Draft202012Validator

import iossim.cli.bars
import iossim.cli.progress
from iossim.base import compile_time
from iossim.cli.main import build_command, main
from iossim.report.schemas import schema

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CPU = EXAMPLES / "cpu.yaml"
FAKE = "ios_sample --backend fake --rounds 3 --warm-up 0"
DATA = '{"schema": "iossim-measurements", "version": 1, "data_set": "lab", "device": "t4"}\n' + "".join(
    f'{{"op": "relu", "rows": {rows}, "cols": 64, "latency_us": {3 + rows / 1000}}}\n' for rows in range(100, 1000, 30)
)
RULE = 'rule: {0}-commutes\nsource: ["z = {0}(x, y)"]\ntarget: ["w = {0}(y, x)"]\noutputs: {{z: w}}\n'
STUDY = """
name: tiny
title: Tiny
models: [ios_sample]
devices: [t4, l4]
schedulers: [sequential, greedy]
questions: [{best: scheduler, for_each: [device]}]
"""
#: Commands by schema, with the arguments of a small run.
RUNS = [
    (name, command.replace("FAKE", FAKE).replace("EXAMPLES", str(EXAMPLES)).replace("CPU", str(CPU)))
    for name, command in cases(__file__, "commands.yaml")
]
#: Libraries that a command needs.
NEEDS = {"deploy": "onnxruntime", "rules-verify": "z3", "study report": "altair"}
#: Character of which rich draws bars.
BAR = "━"
#: End of the text of a terminal.
END = b"\0"
#: Commands that look something up, or write a file to begin with: they answer within a second.
QUICK = {
    "devices list", "devices new", "devices show", "devices validate", "measurements list", "measurements prune",
    "models list", "rules list", "rules show", "schema", "study list", "study new", "study show",
}  # fmt: skip
#: Commands that print no JSON.
OTHERS = {
    "models export": "models export squeezenet --out squeezenet.onnx",
    "schedules export": "schedules export greedy.json --out theirs.json",
    "study report": "study report reported",
}


def write_files(folder: Path) -> None:
    """Write the schedules, tables and studies that the runs read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "data.jsonl").write_text(DATA)
        (folder / "rules.yaml").write_text("---\n".join(map(RULE.format, ("add", "mul"))))
        for name, scheduler in (("stages", "ios-both"), ("greedy", "greedy"), ("streams", "ios-streams")):
            assert main(f"optimize ios_sample -d t4 --scheduler {scheduler} --no-plot --out {name}".split()) == 0
            (folder / name / "schedule.json").rename(f"{name}.json")
        assert main(["schedules", "export", "greedy.json", "--out", "exported.json"]) == 0
        (folder / "tiny.yaml").write_text(STUDY)


class AtOnce:
    """A timer whose time has passed."""

    daemon = True

    def __init__(self, interval_s: float, call: Callable[[], None]) -> None:
        self.start = call

    def cancel(self) -> None:
        pass


@contextmanager
def terminal() -> Iterator[tuple[int, list[str]]]:
    """A pseudo-terminal: what is written to the descriptor, and at the end what a reader has seen."""
    master, slave = pty.openpty()
    seen = bytearray()

    def read() -> None:
        while not seen.endswith(END):
            seen.extend(os.read(master, 65536))

    reader = threading.Thread(target=read)
    reader.start()
    shown: list[str] = []
    try:
        yield slave, shown
    finally:
        os.write(slave, END)  # closing it is no end: a process that watches workers may outlive them, and has it open
        reader.join()
        os.close(slave)
        os.close(master)
        shown.append(seen.removesuffix(END).decode())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what commands read."""
    folder = tmp_path_factory.mktemp("made")
    write_files(folder)
    return folder


def sealed(form: Any) -> Any:
    """A schema that allows no keys but those that it names, where it names any."""
    if isinstance(form, list):
        return [sealed(each) for each in form]
    if not isinstance(form, dict):
        return form
    made = {key: sealed(each) for key, each in form.items()}
    return {"additionalProperties": False, **made} if "properties" in made and "required" in made else made


def commands(command: Any, words: str = "") -> Iterator[tuple[str, bool]]:
    """All commands by their words, and whether they print JSON."""
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, f"{words} {name}".strip())
    if not hasattr(command, "commands"):
        yield words, any("--json" in parameter.opts for parameter in command.params)


def test_every_command_is_run_or_quick() -> None:
    def run(words: str, lines: Iterable[str]) -> bool:
        return any(f"{line} ".startswith(f"{words} ") for line in lines)

    known = dict(commands(build_command()))
    assert [words for words, has_json in known.items() if has_json and not run(words, (line for _, line in RUNS))] == []
    assert {words for words, has_json in known.items() if not has_json} <= OTHERS.keys() | QUICK <= known.keys()


RUN_FIRST = {
    "s.sqlite": f"profile {FAKE} --store s.sqlite",
    "reported": "study run tiny.yaml --no-report --out reported",
}


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("name", "command"), [*RUNS, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS.items())]
)
def test_a_bar_is_drawn_and_json_is_valid(name: str, command: str, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar by the first moments of the command: whatever of it takes over a second, a bar was there or comes."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(made)
    for file, first in RUN_FIRST.items():
        if file in command and not Path(file).exists():
            printed(first)
    has_json = name not in OTHERS
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(iossim.cli.bars, "Timer", AtOnce)
    with terminal() as (slave, shown), open(os.dup(slave), "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with redirect_stdout(io.StringIO()) as printed_json:
            assert main([*shlex.split(command), *["--json"] * has_json]) == 0
        monkeypatch.undo()
    assert BAR in shown[0] or any(f"{command} ".startswith(f"{words} ") for words in QUICK)
    if has_json:
        form = sealed({"type": "array", "items": schema(name)} if name == "rule" else schema(name))
        found = json.loads(printed_json.getvalue())
        assert [error.message[-300:] for error in Draft202012Validator(form).iter_errors(found)] == []
        # It is no schema that takes anything.
        assert list(Draft202012Validator(form).iter_errors([found] if isinstance(found, dict) else {"": found}))


def test_words_stand_alone_on_a_terminal(tmp_path: Path) -> None:
    """The bar is taken away before the first of them, and does not come again."""
    program = (
        "import sys, time, iossim.cli.bars as bars, iossim.cli.progress as progress\n"
        "bars.SILENCE_S = 0.05\n"
        "with progress.tells_of_work():\n"
        "    time.sleep(1)\n"
        "    print('words')\n"
        "    time.sleep(0.5)\n"
        "    print('more words')\n"
    )
    with terminal() as (slave, shown):
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        subprocess.run(
            [sys.executable, "-c", program], stdout=slave, stderr=slave, env=environment, check=True, cwd=tmp_path
        )
    before, _, behind = shown[0].partition("words")
    assert BAR in before
    assert behind.replace("\x1b[?25h", "") == "\r\nmore words\r\n"


def test_a_bar_that_pulses_gives_way_to_one_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And comes again behind it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(iossim.cli.bars, "Timer", AtOnce)
    with terminal() as (slave, shown), open(os.dup(slave), "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with iossim.cli.progress.tells_of_work(), iossim.cli.progress.progress_bars(quiet=False) as start:
            start("counting")(1, 2)
        monkeypatch.undo()
    assert [word for word in ("working", "counting") if word in shown[0]] == ["working", "counting"]
    assert shown[0].index("working") < shown[0].index("counting") < shown[0].rindex("working")


def test_compiling_that_takes_over_a_second_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_time, "Timer", AtOnce)
    with terminal() as (slave, shown), open(os.dup(slave), "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with iossim.cli.progress.tells_of_work():
            for _ in range(2):
                with compile_time.compiling():
                    pass
        monkeypatch.undo()
    assert shown[0].count("compiling (once)") == 1


def test_nothing_is_shown_where_nobody_looks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iossim.cli.bars, "Timer", AtOnce)
    assert main(["models", "show", "squeezenet"]) == 0
    assert capsys.readouterr().err == ""
