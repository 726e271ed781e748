"""``--rewrite`` of ``iossim optimize`` and ``compare``: a rewritten network's schedule, beside those of the network as given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import printed, printed_json

from iossim import api
from iossim.base.errors import OptionError
from iossim.models.load import load

REWRITE = "optimize squeezenet -d v100-sxm2 --scheduler sequential --rewrite default --unproved --rewrite-budget 25"


@pytest.mark.slow
def test_a_rewritten_network_goes_the_way_of_any_other(tmp_path: Path) -> None:
    said = " ".join(printed(f"{REWRITE} --out {tmp_path} --no-plot").split())
    assert "note: Rewritten by" in said
    assert "by sequential" in said
    assert "note: The graph is rewritten by" in said
    saved = tmp_path / "schedule.json"
    latency_us = printed_json(f"simulate {saved} --json")["latency_us"]
    assert latency_us < printed_json("optimize squeezenet -d v100-sxm2 --scheduler sequential --json")["latency_us"]
    assert latency_us == printed_json(f"{REWRITE} --json")["latency_us"]
    assert "stage" in printed(f"explain {saved}")
    again = printed_json(f"simulate {saved} -d t4 --json")
    assert again["source"]["options"].keys() == {"rewriting", "joins"}


def test_explain_tells_what_was_rewritten(tmp_path: Path) -> None:
    printed(f"optimize ios_sample -d v100-sxm2 --rewrite --out {tmp_path} --no-plot --no-trace")
    said = printed(f"explain {tmp_path}/schedule.json --out {tmp_path}/drawn")
    assert "the network was rewritten by 1 substitution\nstep 1: merge-relus-of-concat: 343." in said
    names = "graph.dot graph.svg index.html rewriting.dot timeline.png timeline.svg trace.json"
    assert " ".join(sorted(path.name for path in (tmp_path / "drawn").iterdir())) == names
    told = printed_json(f"explain {tmp_path}/schedule.json --json")
    (step,) = told["rewriting"]
    assert step["after_us"] == pytest.approx(told["latency_us"])
    assert len(step["before"]) == len(step["after"]) == 3
    assert "rewritten" not in printed(f"explain {tmp_path}/schedule.json --stage 0")


def test_what_nobody_proved_is_left_out(tmp_path: Path) -> None:
    """A rule of one's own, before it was verified."""
    rules = tmp_path / "mine.yaml"
    rules.write_text(
        "rule: twice\nsource:\n  - y = sigmoid(x)\n  - z = sigmoid(y)\ntarget:\n  - z = sigmoid(x)\noutputs: {z: z}\n"
    )
    said = " ".join(printed(f"optimize squeezenet -d v100-sxm2 --rewrite {rules}").split())
    assert "No rule matches: the graph is unchanged; 1 rule is not used, being unproved" in said


COMPARE = "compare ios_sample -d v100-sxm2"


def test_rewritten_first_and_jointly() -> None:
    """Here the merge that saves most of the sum of operators costs a concurrency that is worth more."""
    found = printed_json(f"{COMPARE} --rewrite --rewrite-budget 20 --json")
    as_given = {each["scheduler"]: each["latency_us"] for each in found["schedules"]}
    rewriting = found["rewriting"]
    by_label = {(each["scheduler"], each["way"]): each for each in rewriting["schedules"]}
    ways = ["rewritten", "saturated", "jointly"]
    assert list(by_label) == [("sequential", "rewritten"), *(("ios-both", way) for way in ways)]
    latency_us = {label: each["latency_us"] for label, each in by_label.items()}
    assert latency_us["sequential", "rewritten"] < as_given["sequential"]
    assert as_given["ios-both"] < latency_us["ios-both", "rewritten"]
    assert latency_us["ios-both", "jointly"] < as_given["ios-both"]
    jointly = by_label["ios-both", "jointly"]
    assert sum(jointly["rules"].values()) >= 1
    assert jointly["speedup"] == pytest.approx(as_given["sequential"] / jointly["latency_us"])
    assert rewriting["scheduler"] == "ios-both"
    assert rewriting["sentence"].startswith("rewritten by")
    assert found["other_engine"]["best_us"] > 0


def test_the_table_names_them_and_the_files_are_of_the_best(tmp_path: Path) -> None:
    said = printed(f"{COMPARE} --rewrite metaflow --rewrite-budget 20 --out {tmp_path}")
    words = " ".join(said.split())
    assert all(line in said for line in ("sequential, ", "\nrewritten "))  # on two lines, so that numbers stay whole
    assert "Best: ios-both, jointly, 0." in words
    assert "for the changed network" in words
    assert "Rewritten by 1 substitution, " in words
    saved = json.loads((tmp_path / "schedule.json").read_text())
    assert saved["source"]["options"].keys() == {"rewriting"}
    assert printed_json(f"simulate {tmp_path}/schedule.json --json")["latency_us"] == saved["latency_us"]


def test_without_it_nothing_is_rewritten() -> None:
    assert printed_json(f"{COMPARE} --json")["rewriting"] is None


def test_the_scheduler_that_searches_most_is_rewritten_for() -> None:
    network = load("ios_sample")
    alone = api.compare(network, "v100-sxm2", schedulers=["sequential"], rewrite="metaflow", rewrite_budget="20")
    assert [row.scheduler for row in alone.rows] == ["sequential", "sequential, jointly"]
    assert alone.best_label == "sequential, jointly"
    assert alone.best_network is not network
    merging = api.compare(
        network, "v100-sxm2", schedulers=["ios-merge", "greedy"], rewrite="metaflow", rewrite_budget="6"
    )
    assert [each.label for each in merging.changed] == [
        "ios-merge, rewritten",
        "ios-merge, saturated",
        "ios-merge, jointly",
    ]
    with pytest.raises(OptionError, match="cannot price graphs for any of greedy; add one of sequential, ios-"):
        api.compare(network, "v100-sxm2", schedulers=["greedy"], rewrite="metaflow")


def test_where_rewriting_gains_nothing_the_network_as_given_is_best() -> None:
    found = api.compare("ios_sample", "v100-sxm2", schedulers=["sequential"], rewrite="simplify")
    assert found.best_label == "sequential"
    assert found.best_network is found.network
