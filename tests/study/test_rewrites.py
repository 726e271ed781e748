"""Rewriting, edge devices and workspaces as axes of a study."""

import json
from pathlib import Path
from typing import Any

import pytest

import iossim
from iossim import api, related
from iossim.edge.capacity import uses
from iossim.edge.plan import Variant
from iossim.prediction.schedule_interval import ScheduleErrors
from iossim.search.scheduler import schedule
from iossim.study.evaluate import context_of
from iossim.study.points import points_of
from iossim.study.scenario import Scenario
from iossim.study.sweep import run_study

#: A few graphs are searched, which are enough to make the sample network faster.
GRAPHS = 6
RULES = {"rules": "default", "graphs": GRAPHS}
STUDY = {
    "name": "rewriting",
    "models": ["ios_sample"],
    "devices": ["v100-sxm2"],
    "schedulers": ["sequential", "ios-both"],
    "rewrites": ["none", {**RULES, "scheduler": "sequential", "label": "rewritten first"}, RULES],
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
    schedulers = ["sequential", "ios-both"]
    compared = api.compare(
        "ios_sample", "v100-sxm2", schedulers=schedulers, rewrite="default", rewrite_budget=str(GRAPHS)
    )
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


def test_chosen_joins_are_those_of_a_comparison(tmp_path: Path) -> None:
    given = {"devices": ["t4"], "schedulers": ["sequential", "ios-both"], "batch_sizes": [1, 4], "name": "joins"}
    models = [{"model": "squeezenet", "units": "model"}, {"model": "squeezenet", "label": "chosen"}]
    asked = Scenario.model_validate({**given, "models": models, "questions": [{"specialised_for": "batch"}]})
    run = run_study(asked, tmp_path / "run", workers=1)
    found = {(row.model, row.scheduler): row for row in run.results.rows if row.batch == 1}
    told = {row.scheduler: row for row in api.compare("squeezenet", "t4", schedulers=given["schedulers"]).rows}
    changed = {name.partition(",")[0]: row for name, row in told.items() if ", " in name}
    assert changed.keys() == {"sequential", "ios-both"}
    for scheduler, row in changed.items():
        for model, compared in (("squeezenet", told[scheduler]), ("chosen", row)):
            one = found[model, scheduler]
            assert (one.latency_ms, one.speedup) == pytest.approx((compared.latency_us / 1e3, compared.speedup))
    assert found["chosen", "ios-both"].speedup > found["squeezenet", "ios-both"].speedup  # type: ignore[operator]
    # Each is priced at the other's batch size with the joins that it was made with.
    assert all(price.latency_ms and not price.reason for price in run.results.cross)
    assert (
        "joins"
        in json.loads((tmp_path / "run" / str(found["chosen", "ios-both"].schedule)).read_text())["source"]["options"]
    )


def test_a_graph_for_one_device_runs_on_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScheduleErrors, "is_tie", lambda *_: True)
    study = {
        **STUDY,
        "devices": ["v100-sxm2", "k80"],
        "schedulers": ["sequential"],
        "rewrites": ["none", {**RULES, "scheduler": "sequential", "label": "rewritten"}],
        "questions": [{"specialised_for": "device"}],
    }
    scenario = Scenario.model_validate(study)
    results = run_study(scenario, tmp_path / "run", workers=1).results
    points = points_of(scenario)
    rows = {row.point: row for row in results.rows}
    graphs = {
        point: json.loads((tmp_path / "run" / str(row.schedule)).read_text())["graph_hash"]
        for point, row in rows.items()
    }
    rewritten = [price for price in results.cross if rows[price.made_for].rewrite == "rewritten"]
    assert {rows[price.run_at].device for price in rewritten} == {"v100-sxm2", "k80"}
    contexts = [context_of(point) for point in points]
    for price in results.cross:
        assert price.latency_ms is not None, price.reason
        assert rows[price.made_for].rewrite == rows[price.run_at].rewrite
        at_home, there = contexts[price.made_for], contexts[price.run_at].prices
        assert price.latency_ms * 1e3 == pytest.approx(schedule(at_home.network, there, "sequential").latency_us)
    # Each has another graph, so that both were rewritten anew from what the schedules say, and tie with no schedule.
    assert [price.tie for price in results.cross] == [price not in rewritten for price in results.cross]
    assert len({graph for point, graph in graphs.items() if rows[point].rewrite == "rewritten"}) == 2


def test_a_point_is_another_where_its_rules_are() -> None:
    points = points_of(Scenario.model_validate({**STUDY, "rewrites": ["none", "default", "metaflow,simplify"]}))
    assert [point.rewrite.rewrites for point in points] == [False, True, True]
    assert points[0].key != points[1].key == points[2].key


MIB = 1 << 20
ONE: dict[str, Any] = {
    "name": "plans",
    "models": ["ios_sample"],
    "devices": ["c6678", {"device": "c6678", "set": {"units": 4}}],
    "dataflow": ["priority"],
    "questions": [{"metric": "speedup", "for_each": ["device"]}, {"metric": "latency_ms", "of": "full", "over": "horizontal", "at_most": 1}],
}  # fmt: skip
SEVERAL: dict[str, Any] = {
    "name": "together",
    "models": ["squeezenet"],
    "devices": ["c6678"],
    "dataflow": ["priority", {"devices": 2, "label": "two"}, {"devices": 2, "sync": "server", "mix": "outC"}],
}


def test_a_row_a_plan(tmp_path: Path) -> None:
    results = run_study(Scenario.model_validate(ONE), tmp_path / "run", workers=1).results
    expected = [(device, str(variant)) for device in ("c6678", "c6678 (units=4)") for variant in Variant]
    assert [(row.device, row.scheduler) for row in results.rows] == expected
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
    assert server.latency_ms > ring.latency_ms


def test_what_fits_no_way_is_a_row_with_its_reason(tmp_path: Path) -> None:
    small = {**ONE, "devices": [{"device": "c6678", "set": {"private_bytes": 8}}], "questions": []}
    for row in run_study(Scenario.model_validate(small), tmp_path / "run", workers=1).results.rows:
        assert row.status == "failed"
        assert "bytes of parameters at once" in row.reason


LIMITED: dict[str, Any] = {
    "name": "workspaces",
    "models": ["alexnet"],
    "devices": ["p100-sxm2"],
    "batch_sizes": [8],
    "workspace": ["none", {"limit": "1MiB", "policy": "power-of-two"}, {"total": "4MiB", "policy": "power-of-two", "label": "in all"}],
    "schedulers": ["sequential"],
    "questions": [{"metric": "micro_batch_gain"}],
}  # fmt: skip


def test_rows_tell_what_the_api_finds(tmp_path: Path) -> None:
    run = run_study(Scenario.model_validate(LIMITED), tmp_path / "run", workers=1)
    free, limited, shared = run.results.rows
    assert (free.workspace, shared.workspace) == ("any workspace", "in all")
    assert free.latency_ms < limited.latency_ms
    network = iossim.load("alexnet", batch=8)
    for row, limits in ((limited, {"workspace": "1MiB"}), (shared, {"total_workspace": "4MiB"})):
        found = related.microbatch(network, "p100-sxm2", policy="power-of-two", **limits)  # type: ignore[arg-type]
        assert row.convolutions_ms == pytest.approx(found.time_us / 1e3)
        assert row.micro_batch_gain == pytest.approx(found.gain)
        assert row.largest_gain == max(one.gain for one in found.kernels if one.gain is not None)
        assert row.workspace_mib == found.workspace_bytes / 2**20
