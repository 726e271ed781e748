"""``rewrites`` as an axis: every scheduler has the network of its point, as given, rewritten first, or jointly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iossim import api
from iossim.search.scheduler import schedule
from iossim.study.evaluation_context import EvaluationContext, context_of
from iossim.study.points import points_of
from iossim.study.report.plots import figures
from iossim.study.report.plots.chosen_points import chosen_points
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


def test_a_report_looks_into_rewritten_networks(tmp_path: Path) -> None:
    """Its timelines run the schedules on the networks that they were made for."""
    pytest.importorskip("altair")
    rewrites = [{**RULES, "scheduler": "sequential", "label": "rewritten"}]
    run = run_study(Scenario.model_validate({**STUDY, "rewrites": rewrites}), tmp_path / "run", workers=1)
    (point,) = chosen_points(run)
    (row, *_) = run.results.rows
    assert row.rules
    assert point.network.graph.hash == point.best.graph_hash
    assert [figure.name for figure in figures(run, ["timeline", "roofline"])] == ["timeline", "roofline"]


def test_each_search_by_itself() -> None:
    """The least sum of operators is that of one search or of the other, and the joint search has the better."""
    given = {**RULES, "scheduler": "sequential"}
    searches = [{**given, "search": search, "label": search} for search in ("backtracking", "saturation", "joint")]
    points = points_of(Scenario.model_validate({**STUDY, "rewrites": searches}))
    assert len({point.key for point in points}) == 3
    least_us = [network_us(context_of(point)) for point in points]
    assert least_us[2] == min(least_us)


def network_us(context: EvaluationContext) -> float:
    return schedule(context.network, context.prices, "sequential").latency_us


def test_a_graph_for_one_device_runs_on_another(tmp_path: Path) -> None:
    study = {
        **STUDY,
        "devices": ["v100-sxm2", "k80"],
        "schedulers": ["sequential"],
        "rewrites": ["none", {**RULES, "scheduler": "sequential", "label": "rewritten"}],
        "cross_evaluate": ["device"],
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
    # Each has another graph, so that both were rewritten anew from what the schedules say.
    assert len({graph for point, graph in graphs.items() if rows[point].rewrite == "rewritten"}) == 2


def test_a_point_is_another_where_its_rules_are() -> None:
    points = points_of(Scenario.model_validate({**STUDY, "rewrites": ["none", "default", "metaflow,simplify"]}))
    assert [point.rewrite.rewrites for point in points] == [False, True, True]
    assert points[0].key != points[1].key == points[2].key
