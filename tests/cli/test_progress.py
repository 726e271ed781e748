"""Every command that can take over a second shows a bar on a terminal, and the bar is gone before its words appear."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend
from small_runs import RUNS, write_files

import iossim.cli.bars
import iossim.cli.progress
from iossim.base import compile_time
from iossim.cli.main import build_command, main
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.profiling import ProfileOptions, profile_parts
from iossim.cost.measured.store import MeasurementStore
from iossim.execution.backend import Timing
from iossim.models.load import load


def commands() -> set[str]:
    """The names of all commands, those of groups behind their group's."""

    def leaves(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        for name, each in getattr(command, "commands", {}).items():
            yield from leaves(each, (*path, name))
        if not hasattr(command, "commands"):
            yield " ".join(path)

    return set(leaves(build_command(), ()))


#: Character of which rich draws bars.
BAR = "━"
#: Commands that look something up, or write a file to begin with: they answer within a second.
QUICK = {
    "devices list", "devices new", "devices show", "devices validate", "measurements list", "measurements prune",
    "models list", "rules list", "rules show", "schema", "study list", "study new", "study show",
}  # fmt: skip
#: One case of each other command, by its name; the first three print no JSON.
CASES = {
    "models export": "models export squeezenet --out squeezenet.onnx",
    "schedules export": "schedules export greedy.json --out theirs.json",
    "study report": "study report ran",
} | {name: line for name in commands() - QUICK for _, line in reversed(RUNS) if f"{line} ".startswith(f"{name} ")}
#: Cases of several seconds of work.
SLOW = {"calibrate", "dataflow run", "doctor", "rules verify", "run", "study report", "study run"}


class AtOnce:
    """A timer whose time has passed."""

    daemon = True

    def __init__(self, interval_s: float, call: Callable[[], None]) -> None:
        self.start = call

    def cancel(self) -> None:
        pass


@contextmanager
def terminal() -> Iterator[tuple[int, list[str]]]:
    """A pseudo-terminal: what is written to the descriptor, and once all is closed what a reader has seen."""
    master, slave = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(master, 65536):
                seen.append(data)
        except OSError:  # Linux says so that the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    shown: list[str] = []
    try:
        yield slave, shown
    finally:
        os.close(slave)
        reader.join()
        os.close(master)
        shown.append(b"".join(seen).decode())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what commands read."""
    folder = tmp_path_factory.mktemp("progress")
    write_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["study", "run", "tiny.yaml", "--out", "ran", "--workers", "1", "--no-report"]) == 0
    with MeasurementStore(folder / "s.sqlite") as store:
        prices = MeasuredCostModel(FakeBackend(), store, Timing(3, 0))
        prices.boundary_us()
        network = load("ios_sample")
        prices.measure(*(b for part in profile_parts(network, prices, ProfileOptions(2, 2)) for b in part.batches))
    return folder


def test_every_command_has_a_case_or_is_quick() -> None:
    assert commands() == CASES.keys() | QUICK
    assert not CASES.keys() & QUICK


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in sorted(CASES)]
)
def test_a_bar_is_drawn(command: str, files: Path, fake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each command's first moments: whatever of it takes over a second, a bar was there or comes."""
    folder = tmp_path / "here"
    shutil.copytree(files, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(iossim.cli.bars, "Timer", AtOnce)
    with terminal() as (slave, shown), open(os.dup(slave), "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert main(shlex.split(CASES[command].replace("--out ran", "--out again"))) == 0
        monkeypatch.undo()
    assert BAR in shown[0]


def test_words_stand_alone_on_a_terminal(files: Path) -> None:
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
            [sys.executable, "-c", program], stdout=slave, stderr=slave, env=environment, check=True, cwd=files
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
