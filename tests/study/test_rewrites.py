"""``rewrites`` as an axis: every scheduler has the network of its point, as given, rewritten first, or jointly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iossim import api
from iossim.errors import ScenarioError
from iossim.study.points import points_of
from iossim.study.scenario import Scenario
from iossim.study.scenario_file import read_scenario
from iossim.study.sweep import run_study

STUDY = {
    "name": "rewriting",
    "models": ["ios_sample"],
    "devices": ["v100-sxm2"],
    "schedulers": ["sequential", "ios-both"],
    "rewrites": ["none", {"rules": "default", "scheduler": "sequential", "label": "rewritten first"}, "default"],
}


def test_rows_for_each(tmp_path: Path) -> None:
    run = run_study(Scenario.model_validate(STUDY), tmp_path / "run", workers=1)
    found = {(row.rewrite, row.scheduler): row for row in run.results.rows}
    jointly = "rewritten for ios-both"
    assert list(dict(found)) == [
        (rewrite, scheduler)
        for rewrite in ("as given", "rewritten first", jointly)
        for scheduler in ("sequential", "ios-both")
    ]
    compared = api.compare("ios_sample", "v100-sxm2", schedulers=["sequential", "ios-both"], rewrite="default")
    told = {row.scheduler: row.latency_us / 1e3 for row in compared.rows}
    latency_ms = {key: row.latency_ms for key, row in found.items()}
    assert latency_ms["as given", "ios-both"] == told["ios-both"]
    assert latency_ms["rewritten first", "sequential"] == told["sequential, rewritten"]
    assert latency_ms["rewritten first", "ios-both"] == told["ios-both, rewritten"]
    assert latency_ms[jointly, "ios-both"] == told["ios-both, jointly"]
    assert found["as given", "ios-both"].published_ms
    assert found[jointly, "ios-both"].published_ms is None
    saved = json.loads((tmp_path / "run" / str(found[jointly, "ios-both"].schedule)).read_text())
    assert saved["source"]["options"].keys() == {"rewriting"}


def test_a_point_is_another_where_its_rules_are() -> None:
    points = points_of(Scenario.model_validate({**STUDY, "rewrites": ["none", "default", "metaflow,simplify"]}))
    assert [point.rewrite.rewrites for point in points] == [False, True, True]
    assert points[0].key != points[1].key == points[2].key


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("rewrites: [metaflo]", "field rewrites[0]: unknown rules 'metaflo'; did you mean 'metaflow'"),
        ("rewrites: [{rules: default, alpha: 0.5}]", "field rewrites[0].alpha: is 0.5"),
        ("rewrites: [{rules: default, scheduler: greedy}]", "field rewrites[0].scheduler: is 'greedy'"),
        ("rewrites: [none, none]", "is there twice"),
        ("rewrites: [none, default]\nbatch_sizes: [1, 2]\ncross_evaluate: [batch]", "networks that are rewritten"),
    ],
)
def test_mistakes(lines: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"name: r\nmodels: [ios_sample]\ndevices: [t4]\n{lines}\n")
    with pytest.raises(ScenarioError) as caught:
        read_scenario(path)
    assert words in str(caught.value)
