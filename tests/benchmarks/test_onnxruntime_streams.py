"""What streams of ONNX Runtime cost: the script makes the models of the rows that are kept, and runs them."""

from __future__ import annotations

import csv

import pytest

from benchmarks.onnxruntime_streams import COLUMNS, cases, fork_join, row, times_us
from evidence.profiles.runtime_streams import ROWS


def test_it_measures_the_rows_that_are_kept() -> None:
    with ROWS.open(newline="") as file:
        reader = csv.DictReader(file)
        kept = {tuple(each[column] for column in COLUMNS[:4]) for each in reader}
        assert tuple(reader.fieldnames or ()) == COLUMNS
    made = {(one.shape, one.node, str(len(one.stream_of)), str(one.crossings)) for one in cases()}
    assert made == kept


def test_a_row_has_a_time_in_every_mode() -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    case = fork_join("tiny", 2, (2, 1))
    assert sorted(case.stream_of.values()) == [0] * 6 + [1] * 2
    taken = times_us(case, 2)
    assert {mode: len(times) for mode, times in taken.items()} == {"one thread": 2, "one worker": 2, "streams": 2}
    found = row(case, taken)
    assert (found["nodes"], found["crossings"]) == (8, 3)
    assert all(float(found[column]) > 0 for column in COLUMNS[4:])
