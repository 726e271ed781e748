"""``dataflow`` as an axis: plans on edge devices, one or several, as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iossim import related
from iossim.base.errors import ScenarioError
from iossim.edge.capacity import uses
from iossim.edge.plan import Variant
from iossim.study.points import points_of
from iossim.study.scenario import Scenario
from iossim.study.sweep import run_study

MIB = 1 << 20
ONE: dict[str, Any] = {
    "name": "plans",
    "models": ["ios_sample"],
    "devices": ["c6678", {"device": "c6678", "set": {"units": 4}}],
    "dataflow": ["priority"],
    "questions": [
        {"metric": "speedup", "for_each": ["device"]},
        {"metric": "latency_ms", "of": "full", "at_most": "horizontal"},
    ],
}
SEVERAL: dict[str, Any] = {
    "name": "together",
    "models": ["squeezenet"],
    "devices": ["c6678"],
    "dataflow": ["priority", {"devices": 2, "label": "two"}, {"devices": 2, "sync": "server", "mix": "outC"}],
}


def test_a_row_a_plan(tmp_path: Path) -> None:
    results = run_study(Scenario.model_validate(ONE), tmp_path / "run", workers=1).results
    assert [(row.device, row.scheduler) for row in results.rows] == [
        (device, str(variant)) for device in ("c6678", "c6678 (units=4)") for variant in Variant
    ]
    found = related.dataflow("ios_sample", "c6678")
    for row, variant in zip(results.rows, Variant, strict=False):
        assert row.latency_ms == pytest.approx(found.total_us(variant) / 1e3)
        assert row.speedup == pytest.approx(found.total_us(Variant.VANILLA) / found.total_us(variant))
        steps = range(len(found.plans[variant].steps))
        most = max(use.shared_bytes for step in steps for use in uses(found.plans[variant], step))
        assert row.shared_mib == most / MIB
        assert sum(row.time_by_kind_us.values()) == pytest.approx(found.total_us(variant))
        assert (row.sent_mib, row.waited_ms, row.schedule) == (None, None, None)
    four = related.dataflow("ios_sample", "c6678+units=4")
    assert results.rows[-1].latency_ms == pytest.approx(four.total_us(Variant.FULL) / 1e3)
    assert results.answers[1].holds is True


def test_several_devices_against_one(tmp_path: Path) -> None:
    scenario = Scenario.model_validate(SEVERAL)
    assert scenario.schedulers == ["full"]
    one, ring, server = run_study(scenario, tmp_path / "run", workers=1).results.rows
    assert [row.dataflow for row in (one, ring, server)] == ["1 device", "two", "2 devices, server, outC"]
    found = related.distribute("squeezenet", "c6678", 2)
    assert one.latency_ms == pytest.approx(found.one_us / 1e3)
    assert (one.speedup, ring.speedup) == (1.0, pytest.approx(found.speedup))
    assert ring.sent_mib == pytest.approx(found.distribution.sent_bytes / MIB)
    assert ring.waited_ms == pytest.approx(found.waited_us / 1e3)
    assert server.latency_ms is not None
    assert ring.latency_ms is not None
    assert server.latency_ms > ring.latency_ms


def test_listed_points_tell_plans_by_their_labels() -> None:
    listed = [{"dataflow": "two"}, {"dataflow": {"policy": "exhaustive"}}]
    points = points_of(Scenario.model_validate({**SEVERAL, "points": listed}))
    assert [(point.dataflow.devices, point.dataflow.policy) for point in points] == [(2, "priority"), (1, "exhaustive")]
    with pytest.raises(ScenarioError, match="no dataflow is called 'three'; known: 1 device, two"):
        points_of(Scenario.model_validate({**SEVERAL, "points": [{"dataflow": "three"}]}))


def test_what_fits_no_way_is_a_row_with_its_reason(tmp_path: Path) -> None:
    small = {**ONE, "devices": [{"device": "c6678", "set": {"private_bytes": 8}}], "questions": []}
    for row in run_study(Scenario.model_validate(small), tmp_path / "run", workers=1).results.rows:
        assert row.status == "failed"
        assert "bytes of parameters at once" in row.reason
