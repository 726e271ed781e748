"""Two runs compared: what is new, gone and changed, and whether that is more than the noise."""

from __future__ import annotations

from typing import Any

import pytest
from small_studies import small_study

from iossim.study.run_diff import compare_runs
from iossim.study.study_run import Answer, CrossPrice, Results, Row


def row(point: int = 0, latency_ms: float | None = 2.0, **fields: Any) -> Row:
    """A row of a device, expected within a tenth."""
    status = {} if latency_ms else {"status": "failed", "reason": "no price"}
    within = {"low_ms": 0.9 * latency_ms, "high_ms": 1.1 * latency_ms} if latency_ms else {}
    given = {
        "model": "ios_sample", "device": "t4", "batch": 1 + point, "dtype": "fp32", "engine": "paper",
        "cost_model": "simulator", "search": "exact", "scheduler": "ios-both", "stages": 3,
    }  # fmt: skip
    return Row(**{**given, **within, **status, "point": point, "latency_ms": latency_ms, **fields})


def results(*rows: Row, cross: tuple[CrossPrice, ...] = (), answers: tuple[Answer, ...] = ()) -> Results:
    return Results(scenario=small_study(), rows=list(rows), cross=list(cross), answers=list(answers))


@pytest.mark.parametrize(
    ("after_ms", "weight"),
    [
        (2.0, None),
        (2.0 + 1e-12, None),
        (2.1, "noise"),
        (1.9, "noise"),
        (2.19, "noise"),
        (2.3, "beyond"),
        (1.7, "beyond"),
    ],
)
def test_a_latency_changes_beyond_the_noise_outside_an_interval(after_ms: float, weight: str | None) -> None:
    found = compare_runs(results(row()), results(row(latency_ms=after_ms)))
    assert [change.weight for change in found.changes] == ([weight] if weight else [])
    assert found.is_beyond_noise == (weight == "beyond") == (found.lines()[-1] != "nothing changed beyond the noise")


def test_prices_that_predict_nothing_have_no_noise() -> None:
    exact = {"low_ms": None, "high_ms": None}
    found = compare_runs(results(row(**exact)), results(row(latency_ms=2.01, **exact)))
    assert [change.weight for change in found.changes] == ["beyond"]
    assert "2.000 -> 2.010 ms (+0.5%)" in found.lines()[1]


def test_other_stages_at_the_same_latency_are_told() -> None:
    found = compare_runs(results(row()), results(row(stages=5)))
    assert not found.is_beyond_noise
    assert "3 -> 5 stages" in found.lines()[1]


def test_new_gone_and_failing_rows() -> None:
    found = compare_runs(results(row(), row(1)), results(row(latency_ms=None), row(2)))
    assert (len(found.new), len(found.gone), found.same) == (1, 1, 0)
    lines = found.lines()
    assert "new: ios_sample, t4, batch 3, ios-both" in lines
    assert "gone: ios_sample, t4, batch 2, ios-both" in lines
    assert any(line.endswith("fails now: no price") for line in lines)
    assert found.is_beyond_noise
    assert found.to_json()["beyond_noise"] is True


def test_points_may_be_numbered_otherwise() -> None:
    """A point is known by its labels: another device in front changes no row."""
    price = CrossPrice(axis="batch", scheduler="ios-both", made_for=0, run_at=1, latency_ms=3.0)
    moved = price.model_copy(update={"made_for": 4, "run_at": 5})
    before = results(row(), row(1), cross=(price,))
    after = results(row(4, batch=1), row(5, batch=2), cross=(moved,))
    found = compare_runs(before, after)
    assert (found.same, found.crossed, found.crossed_changes) == (2, 1, 0)
    dearer = moved.model_copy(update={"latency_ms": 3.2})
    found = compare_runs(before, results(row(4, batch=1), row(5, batch=2), cross=(dearer,)))
    assert found.crossed_changes == 1
    assert found.is_beyond_noise


def test_answers() -> None:
    def answered(answer: str, holds: bool | None = None) -> Results:
        return results(row(), answers=(Answer(question="is it?", answer=answer, holds=holds),))

    reworded = compare_runs(answered("2.0 ms"), answered("2.1 ms"))
    assert not reworded.is_beyond_noise
    assert reworded.lines()[1:4] == ["answer changed: is it?", "  - 2.0 ms", "  + 2.1 ms"]
    turned = compare_runs(answered("yes", True), answered("no", False))
    assert turned.is_beyond_noise
    assert "verdict changed: is it?" in turned.lines()
    unasked = compare_runs(answered("yes"), results(row()))
    assert [change.after for change in unasked.answers] == [None]
