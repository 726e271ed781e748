"""Axes and metrics are declared once: the fields that hold them, and all that speaks of them, follow the two tables."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from iossim.study import axes
from iossim.study.axes import AXES, METRICS, ROW_AXES, Quantity, where_in_words
from iossim.study.points import Point, axis_values, labels_of
from iossim.study.report.report import ROW_COLUMNS
from iossim.study.scenario import PointValues, Scenario
from iossim.study.study_kind import GROUP
from iossim.study.study_run import Row

#: The fields of a point and a row that are neither an axis nor a metric.
_BESIDE = {"index", "seed", "key"}
_NO_FIGURES = {
    "point", "status", "reason", "ties", "in_sample", "meets", "blocks", "time_by_kind_us", "rules", "schedule",
}  # fmt: skip


def test_scenarios_points_and_rows_have_a_field_for_each_axis() -> None:
    scenario = Scenario(name="axes", models=[], devices=[])
    assert list(axis_values(scenario)) == list(AXES) == list(PointValues.model_fields)
    assert [field.name for field in dataclasses.fields(Point) if field.name not in _BESIDE] == list(AXES)
    assert set(labels_of(scenario)) == set(ROW_AXES)
    for name, axis in AXES.items():
        if axis.usual is not None:
            assert labels_of(scenario)[name] == [axis.usual]
            field = Row.model_fields[name]
            assert field.is_required() or field.default == axis.usual


def test_a_row_has_axes_and_metrics_and_little_besides() -> None:
    assert set(Row.model_fields) == {*ROW_AXES, *METRICS, *_NO_FIGURES}
    assert {metric.column for metric in METRICS.values() if metric.column} < set(ROW_COLUMNS)


def test_every_axis_and_metric_can_be_told() -> None:
    labels = {axis: f"a {axis}" for axis in ROW_AXES}
    told = where_in_words(labels, ROW_AXES)
    assert [label for label in labels.values() if label not in told] == []
    assert len({Quantity(name).words for name in METRICS}) == len(METRICS)
    assert Quantity("throughput_per_s", "board_power_w").amount(7.25) == "7.25 samples/s per watt"
    assert Quantity("gap").amount(0.25) == "25% above the bound"


def test_a_kind_of_another_package_is_found_and_a_broken_one_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "boards-1.0.dist-info").mkdir()
    (tmp_path / "boards-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: boards\nVersion: 1.0\n")
    kinds = "[iossim.study_kinds]\nboards = iossim.edge.dataflow_study:KIND\nbroken = iossim.study.axes:AXES\n"
    (tmp_path / "boards-1.0.dist-info" / "entry_points.txt").write_text(kinds)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(axes.find_kinds()) == [GROUP.find("dataflow"), GROUP.find("boards")]
    assert "plugin 'broken' of boards 1.0 (iossim.study_kinds)" in caplog.text
