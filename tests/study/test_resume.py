"""Studies that are interrupted, killed or torn go on where they were, and end as if nothing had been."""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from made_studies import files_of, small_study

from iossim.base.errors import OptionError
from iossim.study import evaluate, sweep
from iossim.study.axes import Search
from iossim.study.points import Point, points_of
from iossim.study.question import Question
from iossim.study.run_directory import locked
from iossim.study.scenario import Scenario
from iossim.study.study_run import DEFECTS, StudyRun
from iossim.study.sweep import run_study
from iossim.tasks.task import Task

SCENARIO = small_study(searches=[Search(), Search(max_groups=2), Search(max_group_size=1)], crossed=["batch"])
POINTS = 2 * 2 * 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    return run_study(SCENARIO, tmp_path_factory.mktemp("study") / "run", workers=1)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The points that are evaluated, as they come."""
    found: list[int] = []
    evaluate = sweep.evaluate_point

    def counted(point: Point, *asked: Any) -> Any:
        found.append(point.index)
        return evaluate(point, *asked)

    monkeypatch.setattr(sweep, "evaluate_point", counted)
    return found


def resume(folder: Path) -> StudyRun:
    return run_study(SCENARIO, folder, workers=1, resume=True)


def test_an_interrupted_study_goes_on_and_repeats_nothing(
    undisturbed: StudyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluated: list[int]
) -> None:
    told: list[tuple[int, int]] = []
    counted = sweep.evaluate_point

    def until_interrupted(*task: Any) -> Any:
        if len(evaluated) == 5:
            raise KeyboardInterrupt
        return counted(*task)

    monkeypatch.setattr(sweep, "evaluate_point", until_interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_study(SCENARIO, tmp_path, workers=1)
    assert len(evaluated) == 5
    assert not (tmp_path / "results.json").exists()
    with pytest.raises(OptionError, match="unfinished run of this study; give `resume`"):
        run_study(SCENARIO, tmp_path, workers=1)
    monkeypatch.setattr(sweep, "evaluate_point", counted)
    run = run_study(SCENARIO, tmp_path, workers=1, resume=True, progress=lambda done, total: told.append((done, total)))
    assert sorted(evaluated) == list(range(POINTS))
    assert files_of(tmp_path) == files_of(undisturbed.folder)
    assert told[0] == (5, POINTS + POINTS)
    assert told[-1] == (2 * POINTS, 2 * POINTS)
    assert [attempt["points_taken_over"] for attempt in run.environment["attempts"]] == [0, 5]


def test_a_search_that_is_interrupted_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the best schedule so far would be: a search takes Ctrl-C as a wish to come to an end."""
    found = Task.search

    def incomplete(*given: Any, **named: Any) -> Any:
        return found(*given, **named).model_copy(update={"complete": False})

    monkeypatch.setattr(Task, "search", incomplete)
    with pytest.raises(KeyboardInterrupt):
        run_study(small_study(), tmp_path, workers=1)
    assert not [*(tmp_path / "done").glob("*.json")]


def test_work_that_is_lost_or_damaged_is_done_again(
    undisturbed: StudyRun, tmp_path: Path, evaluated: list[int]
) -> None:
    shutil.copytree(undisturbed.folder, tmp_path / "run")
    first, second, third, *_ = (point for point in points_of(SCENARIO))
    done = tmp_path / "run" / "done"
    whole = (done / f"{second.key}.json").read_bytes()
    (done / f"{first.key}.json").unlink()
    (done / f"{second.key}.json").write_bytes(whole[:-9])
    (done / f"{third.key}.json").write_bytes(b"\xff\xfe")
    (done / "batch-1.json").write_text("{}")
    resume(tmp_path / "run")
    assert sorted(evaluated) == [first.index, second.index, third.index]
    assert len([*done.glob("*.json")]) == 2 * POINTS
    assert files_of(tmp_path / "run") == files_of(undisturbed.folder)


def test_a_point_whose_files_are_damaged_is_done_again(
    undisturbed: StudyRun, tmp_path: Path, evaluated: list[int]
) -> None:
    shutil.copytree(undisturbed.folder, tmp_path / "run")
    rows = [row for row in undisturbed.results.rows if row.scheduler == "greedy"]
    (tmp_path / "run" / str(rows[2].schedule)).unlink()
    (tmp_path / "run" / str(rows[4].schedule)).write_text("{")
    (tmp_path / "run" / "schedules" / ".0000-half.json.x1y2").write_text("{")  # what a killed process leaves
    resume(tmp_path / "run")
    assert sorted(evaluated) == [rows[2].point, rows[4].point]
    assert files_of(tmp_path / "run") == files_of(undisturbed.folder)


def test_other_questions_are_answered_from_what_is_there(
    undisturbed: StudyRun, tmp_path: Path, evaluated: list[int]
) -> None:
    shutil.copytree(undisturbed.folder, tmp_path / "run")
    asked = SCENARIO.model_copy(update={"questions": [Question(best="device"), Question(specialised_for="batch")]})
    told: list[tuple[int, int]] = []
    run = run_study(asked, tmp_path / "run", workers=1, resume=True, progress=lambda *counts: told.append(counts))
    assert not evaluated
    assert told == [(2 * POINTS, 2 * POINTS)]
    assert run.results.answers[0].question == "Which device has the lowest latency?"


def test_taken_folders_are_refused(undisturbed: StudyRun, tmp_path: Path) -> None:
    def refuses(folder: Path, says: str, scenario: Scenario = SCENARIO, resume: bool = False) -> None:
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} if folder.is_dir() else {}
        with pytest.raises(OptionError, match=says) as refused:
            run_study(scenario, folder, workers=1, resume=resume)
        assert "`out`" in str(refused.value)
        assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    shutil.copytree(undisturbed.folder, tmp_path / "run")
    refuses(tmp_path / "run", "finished results of this study; give `resume`")
    for again in (False, True):
        other = SCENARIO.model_copy(update={"name": "other", "batch_sizes": [2]})
        refuses(tmp_path / "run", "of study 'small'", other, again)
        refuses(tmp_path / "run", "another version", SCENARIO.model_copy(update={"seed": 1}), again)
    (tmp_path / "run" / "scenario.yaml").unlink()  # written after the folder is claimed
    refuses(tmp_path / "run", "finished results of this study; give `resume`")
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "results.csv").write_text("mine")
    refuses(tmp_path / "else", "something else", resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="is not a folder"):
        run_study(SCENARIO, tmp_path / "file" / "in")


@pytest.mark.skipif(sys.platform == "win32", reason="files are locked as POSIX does")
def test_two_runs_do_not_write_one_folder(undisturbed: StudyRun, tmp_path: Path) -> None:
    shutil.copytree(undisturbed.folder, tmp_path / "run")
    held = locked(tmp_path / "run")
    assert held is not None
    # A lock is the open file's, not the process's.
    with pytest.raises(OptionError, match="written by another run"):
        resume(tmp_path / "run")
    os.close(held)
    resume(tmp_path / "run")


def _killed(folder: Path, chance: random.Random) -> bool:
    """Start or resume the study in a process, and kill that after a few more pieces; False if it came to its end."""
    process = multiprocessing.get_context("fork").Process(
        target=run_study, args=(SCENARIO, folder), kwargs={"workers": 1, "resume": True}
    )

    def pieces() -> int:
        return len([*(folder / "done").glob("*.json")])

    most = pieces() + chance.randrange(4)
    process.start()
    while process.is_alive() and pieces() < most:
        time.sleep(0.001)
    time.sleep(chance.random() * 0.02)
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_killed_study_goes_on(undisturbed: StudyRun, tmp_path: Path, kills: int) -> None:
    """kill -9 at random moments, again and again; a study that came to its end begins anew in another folder."""
    chance = random.Random(kills)
    count = studies = 0
    while count < kills:
        studies += 1
        folder = tmp_path / f"study-{studies}"
        while count < kills and _killed(folder, chance):
            count += 1
        resume(folder)
        assert files_of(folder) == files_of(undisturbed.folder)
        keys = {path.stem for path in (folder / "done").glob("*.json")}
        assert keys > {point.key for point in points_of(SCENARIO)}


def broken(*given: object, **named: object) -> None:
    raise TypeError("unsupported operand")


@pytest.mark.parametrize("place", ["context_of", "Task", "_row"])
def test_a_row_that_dies_of_a_defect_says_where_its_traceback_is(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, place, broken)
    run = run_study(small_study(batch_sizes=[1]), tmp_path / "run", workers=1)
    reasons = {row.reason for row in run.results.rows}
    assert len(reasons) == 1
    assert reasons.pop().startswith("TypeError: unsupported operand (a defect of iossim; its traceback is in defects/")
    (kept,) = (tmp_path / "run" / DEFECTS).iterdir()
    assert run.results.rows[0].reason.endswith(f"{DEFECTS}/{kept.name})")
    told = kept.read_text()
    assert told.startswith("Traceback")
    assert "in broken" in told
    assert told.endswith("TypeError: unsupported operand\n")


def test_so_does_a_price_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "reprice", broken)
    study = small_study(batch_sizes=[1], schedulers=["sequential", "greedy"], crossed=["device"])
    run = run_study(study, tmp_path / "run", workers=1)
    reasons = {price.reason for price in run.results.cross}
    (kept,) = (tmp_path / "run" / DEFECTS).iterdir()
    expected = {f"TypeError: unsupported operand (a defect of iossim; its traceback is in {DEFECTS}/{kept.name})"}
    assert reasons == expected


def test_a_mistake_has_none(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    study = small_study([str(tmp_path / "broken.onnx")], batch_sizes=[1])
    run = run_study(study, tmp_path / "run", workers=1)
    assert all("broken.onnx" in row.reason for row in run.results.rows)
    assert not (tmp_path / "run" / DEFECTS).exists()
