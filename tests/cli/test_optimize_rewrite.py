"""``iossim optimize --rewrite``: the schedule of a rewritten network, printed, saved, and read by the other commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

REWRITE = "optimize squeezenet -d v100-sxm2 --scheduler sequential --rewrite default --unproved --rewrite-budget 25"


@pytest.mark.slow
def test_a_rewritten_network_goes_the_way_of_any_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = " ".join(printed(capsys, f"{REWRITE} --out {tmp_path} --no-plot").split())
    assert "note: Rewritten by" in said
    assert "by sequential" in said
    assert "note: The graph is rewritten by" in said
    saved = tmp_path / "schedule.json"
    latency_us = printed_json(capsys, f"simulate {saved} --json")["latency_us"]
    assert (
        latency_us
        < printed_json(capsys, "optimize squeezenet -d v100-sxm2 --scheduler sequential --json")["latency_us"]
    )
    assert latency_us == printed_json(capsys, f"{REWRITE} --json")["latency_us"]
    assert "stage" in printed(capsys, f"explain {saved}")
    again = printed_json(capsys, f"simulate {saved} -d t4 --json")
    assert again["source"]["options"].keys() == {"rewriting", "joins"}


def test_explain_tells_what_was_rewritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    printed(capsys, f"optimize ios_sample -d v100-sxm2 --rewrite --out {tmp_path} --no-plot --no-trace")
    said = printed(capsys, f"explain {tmp_path}/schedule.json --out {tmp_path}/drawn")
    assert "the network was rewritten by 1 substitution\nstep 1: merge-relus-of-concat: 343." in said
    names = "graph.dot graph.svg index.html rewriting.dot timeline.png timeline.svg trace.json"
    assert " ".join(sorted(path.name for path in (tmp_path / "drawn").iterdir())) == names
    told = printed_json(capsys, f"explain {tmp_path}/schedule.json --json")
    (step,) = told["rewriting"]
    assert step["after_us"] == pytest.approx(told["latency_us"])
    assert len(step["before"]) == len(step["after"]) == 3
    assert "rewritten" not in printed(capsys, f"explain {tmp_path}/schedule.json --stage 0")


def test_what_nobody_proved_is_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A rule of one's own, before it was verified."""
    rules = tmp_path / "mine.yaml"
    rules.write_text(
        "rule: twice\nsource:\n  - y = sigmoid(x)\n  - z = sigmoid(y)\ntarget:\n  - z = sigmoid(x)\noutputs: {z: z}\n"
    )
    said = " ".join(printed(capsys, f"optimize squeezenet -d v100-sxm2 --rewrite {rules}").split())
    assert "No rule matches: the graph is unchanged; 1 rule is not used, being unproved" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--rewrite metaflo", "did you mean 'metaflow'"),
        ("--rewrite none.yaml", "none.yaml"),
        ("--rewrite --alpha 0.9", "--alpha 0.9 is not possible: give 1 or more"),
        ("--rewrite default --rewrite-budget lots", "--rewrite-budget 'lots' is not a budget; give a number of graphs"),
        ("--rewrite default --scheduler greedy", "--scheduler greedy; give one of sequential, ios-"),
    ],
)
def test_mistakes_are_told_in_a_line(capsys: pytest.CaptureFixture[str], options: str, words: str) -> None:
    assert words in refused(capsys, f"optimize squeezenet -d v100-sxm2 {options}")
