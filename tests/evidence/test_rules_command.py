"""``python -m evidence rules``: rules of a vocabulary, counted, written and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import printed, printed_json

from iossim.transforms.rewriting.rule_sets import rule_set

COMMAND = "evidence rules --ops matmul,add --inputs 2x2*3"


def test_rules_are_written_for_other_commands(tmp_path: Path) -> None:
    text = printed(f"{COMMAND} --size 2 --out {tmp_path / 'found.yaml'}")
    assert "enumeration: graphs" in text
    assert f"iossim rules verify {tmp_path / 'found.yaml'}" in text
    rules = rule_set(str(tmp_path / "found.yaml"))
    assert "s1 = matmul(x0, s0)" in [str(rule.source[-1]) for rule in rules]


def test_without_a_file_named_a_summary_is_printed_and_a_file_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = printed(f"{COMMAND} --size 2")
    assert len(text) < 2000
    assert "wrote generated_rules.yaml" in text
    assert rule_set("generated_rules.yaml")


def test_counts_are_of_each_stage() -> None:
    found = printed_json(f"{COMMAND} --size 2 --seed 5 --json")
    counts = list(found["counts"].values())
    assert counts[1:-1] == sorted(counts[1:-1], reverse=True)
    assert found["counts"]["rules"] == len(found["rules"])
    assert next(iter(found["counts"])) == "graphs"


def test_rules_of_another_set_are_looked_for(tmp_path: Path) -> None:
    found = tmp_path / "found.yaml"
    printed(f"{COMMAND} --size 2 --out {found}")
    again = printed_json(f"{COMMAND} --size 2 --against {found} --json")
    assert {rule.name for rule in rule_set(str(found))} == again["against"].keys()
    assert set(again["against"].values()) == {"found"}
    assert again["memory_gb"] is None or 0 < again["memory_gb"] < 10
    smaller = printed(f"evidence rules --ops add --inputs 2x2*3 --size 1 --out {tmp_path / 'a.yaml'} --against {found}")
    missing = next(line for line in smaller.splitlines() if line.startswith("missing: "))
    assert "gen-" in missing


def test_nothing_is_written_where_nothing_was_found(tmp_path: Path) -> None:
    out = tmp_path / "none.yaml"
    assert "no rules" in printed(f"evidence rules --ops add --inputs 2x2 --size 1 --out {out}")
    assert not out.exists()
