"""What dies of a defect of iossim is a row with a reason, and its traceback stands in the run's folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_studies import small_study

from iossim.base.errors import OptionError
from iossim.study import evaluate
from iossim.study.study_run import DEFECTS
from iossim.study.sweep import run_study


def broken(*given: object, **named: object) -> None:
    raise TypeError("unsupported operand")


def mistaken(*given: object, **named: object) -> None:
    raise OptionError("no such thing; give another")


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
    study = small_study(batch_sizes=[1], schedulers=["sequential", "greedy"], cross_evaluate=["device"])
    run = run_study(study, tmp_path / "run", workers=1)
    reasons = {price.reason for price in run.results.cross}
    (kept,) = (tmp_path / "run" / DEFECTS).iterdir()
    assert reasons == {
        f"TypeError: unsupported operand (a defect of iossim; its traceback is in {DEFECTS}/{kept.name})"
    }


def test_a_mistake_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "context_of", mistaken)
    run = run_study(small_study(batch_sizes=[1]), tmp_path / "run", workers=1)
    assert {row.reason for row in run.results.rows} == {"no such thing; give another"}
    assert not (tmp_path / "run" / DEFECTS).exists()
