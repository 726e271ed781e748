"""``iossim study run`` and ``report``: rows and answers, a folder to go on with, and its page, pictures and tables."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused
from made_studies import files_of, small_study

from iossim.cli.main import main
from iossim.cli.outputs import tell_written
from iossim.study import sweep
from iossim.study.axes import Device
from iossim.study.points import Point
from iossim.study.question import Question
from iossim.study.run_directory import FILES, read_run
from iossim.study.scenario import Published
from iossim.study.scenario_file import write_scenario
from iossim.study.sweep import run_study

#: Without a report: that has tests of its own.
QUIET = "--workers 1 --no-report"


@pytest.fixture(autouse=True)
def _here(folder: Path) -> None:
    write_scenario(small_study(), folder / "small.yaml")


def test_run_prints_answers_then_rows_and_writes_a_folder(tmp_path: Path) -> None:
    text = printed(f"study run small.yaml --out out {QUIET}")
    asked, table = text.index("Which is the smallest device"), text.index("latency")
    assert asked < table
    run = read_run("out")
    answer = run.results.answers[0].answer
    assert "".join(answer.split()) in "".join(text.split())
    assert text.count("ios-both") >= len(run.results.rows) / 5
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"scenario.yaml", "environment.json", "results.csv", "results.json", "timings.csv", "schedules"} <= names
    assert names <= set(FILES)
    attempt = run.environment["attempts"][0]
    assert (attempt["workers"], attempt["points_done"], attempt["points_taken_over"]) == (1, 4, 0)
    assert run.environment["packages"]["numpy"]
    saved = next((tmp_path / "out" / "schedules").glob("*ios-both.json"))
    assert printed_json(f"simulate {saved} --json")["latency_us"] == json.loads(saved.read_text())["latency_us"]


def test_what_is_found_stands_below_who_said_it_and_cases_are_a_table() -> None:
    """A claim is told as its publication's, with a verdict of ours; the axes that do not vary are told at the top."""
    study = small_study(
        devices=[Device(device="t4")],
        questions=[Question(best="scheduler", for_each=["batch"])],
        published=[
            Published(says="It is best.", source="a book", claims=[Question(best="scheduler", expect="ios-both")])
        ],
    )
    write_scenario(study, Path("small.yaml"))
    lines = printed(f"study run small.yaml --out out {QUIET}").splitlines()
    assert "data type fp32" in " ".join(lines[:4])
    place = next(place for place, line in enumerate(lines) if "It is best." in line)
    assert lines[place] == "published: It is best. (a book)"
    assert lines[place + 1].startswith(("  Holds", "  Within the noise", "  Does not hold"))
    asked = lines.index("Which scheduler has the lowest latency for each batch size?")
    assert [line.split()[:2] for line in lines[asked:place] if line.split()[:1] in (["1"], ["8"])] == [
        ["1", "ios-both"], ["8", "ios-both"],
    ]  # fmt: skip


def test_json_is_all_that_is_printed_and_mistakes_are_one_line() -> None:
    found = printed_json(f"study run small.yaml --out out {QUIET} --json")
    assert (found["study"], found["rows"], found["failed"]) == ("small", 20, [])
    assert found["answers"][0]["question"].startswith("Which is the smallest device by board power")
    assert "results.csv" in found["files"]
    refused(f"study run small.yaml --out out {QUIET}", "--resume")
    refused("study run small.yaml --out again --workers 0", "--workers 0")


def test_an_interrupt_leaves_a_folder_to_go_on_with(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = sweep.evaluate_point

    def interrupted(point: Point, *asked: object) -> object:
        if point.batch == 8:
            signal.raise_signal(signal.SIGINT)
        return evaluate(point, *asked)

    monkeypatch.setattr(sweep, "evaluate_point", interrupted)
    assert main(f"study run small.yaml --out out {QUIET}".split()) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert "--resume" in output.err
    assert output.err.count("\n") == 1
    assert "unfinished" in refused("study report out")
    monkeypatch.setattr(sweep, "evaluate_point", evaluate)
    printed(f"study run small.yaml --out out {QUIET} --resume")
    assert [attempt["points_taken_over"] for attempt in read_run("out").environment["attempts"]] == [0, 2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="processes are killed as POSIX does")
def test_a_killed_run_of_two_processes_goes_on(tmp_path: Path) -> None:
    """kill -9 of the command alone: its workers end by themselves, and the next attempt has the folder."""
    write_scenario(small_study(("squeezenet", "inception_v3")), tmp_path / "more.yaml")
    command = [sys.executable, "-m", "iossim", "study", "run", "more.yaml", "--no-report", "--workers", "2", "--out"]
    subprocess.run([*command, "whole"], check=True, capture_output=True)
    chance, done = random.Random(5), Path("killed/done")
    for _ in range(2):
        process = subprocess.Popen(
            [*command, "killed", "--resume"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        most = len([*done.glob("*.json")]) + chance.randrange(1, 4)
        while process.poll() is None and len([*done.glob("*.json")]) < most:
            time.sleep(0.005)
        process.kill()
        process.wait()
    subprocess.run([*command, "killed", "--resume"], check=True, capture_output=True)
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
    deadline_s = time.monotonic() + 20
    while _workers_of_nobody() and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert not _workers_of_nobody()


def _workers_of_nobody() -> list[int]:
    """Worker processes of this folder whose parent has ended (Linux)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = b"LokyProcess" in (process / "cmdline").read_bytes()
            is_here = os.readlink(process / "cwd") == os.getcwd()
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if is_worker and is_here and parent == 1:
            found.append(int(process.name))
    return found


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    scenario = small_study(("ios_sample",), devices=[Device(device="v100-sxm2")], batch_sizes=[1])
    return run_study(scenario, tmp_path_factory.mktemp("reported") / "run", workers=1).folder


def test_the_page_is_written(reported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iossim.study.report.report.libraries", lambda: "")
    assert not printed(["study", "report", str(reported)])
    assert (reported / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_many_files_are_told_by_their_folder(capsys: pytest.CaptureFixture[str]) -> None:
    files = [Path("run", "figures", f"{number}.svg") for number in range(26)]
    tell_written(files)
    tell_written(files[:2])
    expected = [f"wrote 26 files to {Path('run', 'figures')}", f"wrote {files[0]}, {files[1]}"]
    assert capsys.readouterr().err.splitlines() == expected


def test_pictures_are_written_by_name(reported: Path) -> None:
    printed(["study", "report", str(reported), "--figures", "svg", "--plot", "speedup", "--plot", "kinds"])
    assert sorted(path.name for path in (reported / "figures").iterdir()) == ["kinds.svg", "speedup.svg"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--figures", "pdf"], "--figures 'pdf' is not known; known: png, svg"),
        (["--plot", "speedup"], "--plot needs --figures"),
        (["--figures", "svg", "--plot", "spedup"], "plot 'spedup' is not known; did you mean 'speedup'?"),
        (["--figures", "svg", "--plot", "pruning"], "holds no data for pruning"),
    ],
)
def test_mistakes_of_a_report_are_one_line(reported: Path, arguments: list[str], said: str) -> None:
    assert said in refused(["study", "report", str(reported), *arguments])


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    assert "iossim study run" in refused(["study", "report", str(tmp_path)])
