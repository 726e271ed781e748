"""Points of a study: grids and lists against brute force; keys that depend on all that results depend on, and nothing else."""

import dataclasses
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from case_files import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim.base.errors import ScenarioError
from iossim.base.registry import PluginError
from iossim.study import axes, scenario_checks
from iossim.study.axes import AXES, METRICS, ROW_AXES, Quantity, where_in_words
from iossim.study.points import Point, labels_of, network_of, points_of, work_of
from iossim.study.report.report import ROW_COLUMNS
from iossim.study.scenario import PointLabels, Scenario
from iossim.study.study_kind import GROUP
from iossim.study.study_run import Row

CASES = cases(__file__, "points.yaml")

FIELDS = {name: axis.field for name, axis in AXES.items()}
CHOICES: dict[str, list[Any]] = {
    "model": ["squeezenet", "ios_sample", {"model": "squeezenet", "block": 2}],
    "device": ["t4", "p4", {"device": "t4", "set": {"dram_gbps": 100}}],
    "batch": [1, 2, 4],
    "dtype": ["fp32", "fp16"],
    "engine": ["paper", "graph"],
    "cost_model": ["simulator", "random:3"],
    "search": [{}, {"max_groups": 2}],
    "rewrite": ["none", "simplify"],
    "workspace": ["8MiB", "64MiB"],
    # Of GPUs: edge devices have a test of their own.
    "dataflow": [{"policy": "none"}],
}
REWRITTEN = {"none": "as given", "simplify": "rewritten by simplify for ios-both"}


def label(value: Any) -> str | int:
    """What a value of the choices is called."""
    if not isinstance(value, dict):
        return REWRITTEN.get(value, value)
    if "policy" in value:
        return "no dataflow"
    if "model" in value:
        return "squeezenet, block 2"
    return "t4 (dram_gbps=100)" if "device" in value else f"s={value['max_groups']}" if value else "exact"


def lists(axis: str) -> st.SearchStrategy[list[Any]]:
    return st.integers(1, len(CHOICES[axis])).map(lambda count: CHOICES[axis][:count])


@given(st.fixed_dictionaries({axis: lists(axis) for axis in AXES}))
@settings(max_examples=10)
def test_a_grid_is_every_combination_and_the_last_axis_varies_fastest(chosen: dict[str, list[Any]]) -> None:
    scenario = Scenario.model_validate({"name": "g", **{FIELDS[axis]: chosen[axis] for axis in AXES}})
    points = points_of(scenario)
    expected = [tuple(map(label, values)) for values in product(*(chosen[axis] for axis in AXES))]
    assert [tuple(point.labels.values()) for point in points] == expected
    assert [point.index for point in points] == list(range(len(points)))
    assert len({point.key for point in points}) == len(points) == work_of(scenario)["points"]


@given(st.data())
@settings(max_examples=15)
def test_listed_points_have_listed_values_and_the_only_one_of_what_they_leave_out(data: st.DataObject) -> None:
    chosen = data.draw(st.fixed_dictionaries({axis: lists(axis) for axis in AXES}))
    known = {axis: list(map(label, values)) for axis, values in chosen.items()}
    named = {axis: st.sampled_from(labels) for axis, labels in known.items() if len(labels) > 1}
    listed = data.draw(st.lists(st.fixed_dictionaries(named), min_size=1))
    given_data = {"name": "p", "points": listed, **{FIELDS[axis]: chosen[axis] for axis in AXES}}
    scenario = Scenario.model_validate(given_data)
    expected = [tuple(point.get(axis, known[axis][0]) for axis in AXES) for point in listed]
    assert [tuple(point.labels.values()) for point in points_of(scenario)] == expected
    labels = labels_of(scenario)
    assert {axis: set(labels[axis]) for axis in AXES} == {
        axis: {values[index] for values in expected} for index, axis in enumerate(AXES)
    }


def test_listed_points_tell_models_devices_and_searches_by_their_labels() -> None:
    data = {
        "name": "p",
        "models": [{"model": "inception_v3", "block": -2, "label": "last"}, "squeezenet"],
        "devices": [{"device": "t4", "set": {"sms": 80}, "label": "twice"}],
        "searches": [{"max_groups": 1, "label": "one stream"}, {}],
        "points": [
            {"model": "last", "search": "one stream"},
            {"model": "squeezenet", "device": "twice", "search": "exact"},
        ],
    }
    first, second = points_of(Scenario.model_validate(data))
    assert (first.model.block, first.search.max_groups) == (-2, 1)
    assert second.device.set == {"sms": 80}
    assert network_of(first).name == "inception_v3.mixed_7c"


def test_axes_that_make_no_points() -> None:
    with pytest.raises(
        ScenarioError, match=r"points\[0\]: has no 'batch', and batch_sizes lists 2; write 'batch: ...'"
    ):
        points_of(Scenario(name="p", models=["squeezenet"], devices=["t4"], batch_sizes=[1, 2], points=[{}]))
    with pytest.raises(ScenarioError, match=r"field devices: is empty"):
        points_of(Scenario(name="g", models=["squeezenet"]))


BASE: dict[str, Any] = {
    "name": "base",
    "models": ["squeezenet"],
    "devices": [{"device": "t4", "set": {"dram_gbps": 100}}],
    "batch_sizes": [2],
    "schedulers": ["sequential", "ios-both"],
    "questions": [{"metric": "active_warps"}, {"metric": "peak_memory_mib"}],
}
PROGRAM = """
import json, sys
from iossim.study.points import points_of
from iossim.study.scenario import Scenario
print(*[point.key for point in points_of(Scenario.model_validate(json.loads(sys.argv[1])))])
"""


def test_keys_are_equal_across_processes_and_hash_seeds(tmp_path: Path) -> None:
    keys = [point.key for point in points_of(Scenario.model_validate({**BASE, "batch_sizes": [1, 2]}))]
    given_data = json.dumps({**BASE, "batch_sizes": [1, 2], "questions": BASE["questions"][::-1]})
    for seed in {"0", "1"} - {os.environ.get("PYTHONHASHSEED", "1")}:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, given_data],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == keys


@pytest.mark.parametrize("change", CASES["changes"])
def test_a_key_depends_on_what_results_depend_on(change: dict[str, Any]) -> None:
    (base,), (other,) = (points_of(Scenario.model_validate({**BASE, **more})) for more in ({}, change))
    assert base.key != other.key


def test_a_key_does_not_depend_on_names_words_or_what_stands_beside() -> None:
    (base,) = points_of(Scenario.model_validate(BASE))
    others = {
        "name": "other",
        "title": "Other",
        "models": ["resnet18", {"model": "squeezenet", "label": "small"}],
        "devices": [{"device": "t4", "set": {"dram_bandwidth_gbps": 100.0}, "label": "slow"}],
        "searches": [{"label": "everything"}],
        "schedulers": ["ios-both", "sequential"],
        "questions": [{"best": "model"}, *BASE["questions"]],
        "batch_sizes": [1, 2],
    }
    assert base.key in {point.key for point in points_of(Scenario.model_validate({**BASE, **others}))}


def test_keys_go_by_the_contents_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(contents: bytes, folder: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        path = tmp_path / folder / "net.onnx"
        path.write_bytes(contents)
        (point,) = points_of(Scenario.model_validate({**BASE, "models": [str(path)]}))
        return point.key

    first = key(b"one", "here")
    assert key(b"one", "there") == first
    assert key(b"two", "here") != first
    monkeypatch.setattr("iossim.study.points.__version__", "0.0.0")
    assert key(b"one", "here") != first


#: The fields of a point and a row that are neither an axis nor a metric.
_BESIDE = {"index", "seed", "key"}
_NO_FIGURES = {
    "point", "status", "reason", "ties", "in_sample", "remark", "time_by_kind_us", "rules", "schedule",
}  # fmt: skip


def test_scenarios_and_points_have_a_field_for_each_axis() -> None:
    scenario = Scenario(name="axes", models=[], devices=[])
    assert list(AXES) == list(PointLabels.model_fields)
    assert [field.name for field in dataclasses.fields(Point) if field.name not in _BESIDE] == list(AXES)
    assert set(labels_of(scenario)) == set(ROW_AXES)
    for name, axis in AXES.items():
        if axis.usual is not None:
            assert labels_of(scenario)[name] == [axis.usual]


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
    own, boards = axes.find_kinds()
    assert own is GROUP.find("dataflow")
    assert (boards.noun, boards.device("c6678", {})) == (own.noun, own.device("c6678", {}))
    monkeypatch.setattr(scenario_checks, "KINDS", (dataclasses.replace(own, device_names=lambda: ["t4"]),))
    assert not [*scenario_checks.faults_of(Scenario.model_validate(BASE))], "a GPU is of other studies, too"
    with pytest.raises(PluginError, match=r"plugin 'boards' of boards 1.0 .* does not work: AttributeError"):
        boards.rows(None, None, None, ())  # type: ignore[arg-type]
    assert "plugin 'broken' of boards 1.0 (iossim.study_kinds)" in caplog.text
