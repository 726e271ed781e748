"""``iossim rules verify``: a verdict on each rule of a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused
from pydantic import TypeAdapter

from iossim.proving.refute import replay
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.verdict import Counterexample

RULES = """
rule: add-commutes
source: ["z = add(x, y)"]
target: ["w = add(y, x)"]
outputs: {z: w}
---
rule: product-commutes
source: ["z = matmul(x, y)"]
target: ["w = matmul(y, x)"]
outputs: {z: w}
"""


@pytest.fixture(autouse=True)
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IOSSIM_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "mine.yaml"
    path.write_text(RULES)
    return path


def test_verdicts_as_json_and_as_a_table(rules: Path) -> None:
    rows = printed_json(f"rules verify {rules} --workers 1 --json")
    assert [(row["index"], row["name"], row["verdict"]) for row in rows] == [
        (0, "add-commutes", "proved"),
        (1, "product-commutes", "refuted"),
    ]
    assert rows[0]["counterexample"] is None
    assert rows[0]["conditions"] == []
    assert "by the target" in rows[1]["reason"]
    found = TypeAdapter(Counterexample).validate_python(rows[1]["counterexample"])
    assert replay(found, rule_set(str(rules))[1]) == found
    assert printed_json(f"rules verify {rules} --json") == rows  # as kept, seconds included
    text = printed(f"rules verify {rules}")
    assert text.splitlines()[-1] == "1 proved, 1 refuted, 0 unknown"
    # Nothing that is printed depends on how long the verdicts took to find.
    assert ["index", "name", "verdict", "reason"] in [line.split() for line in text.splitlines()]
    assert printed(f"rules verify {rules} --anew --workers 1") == text


def test_verdicts_are_written(rules: Path, tmp_path: Path) -> None:
    printed(f"rules verify {rules} --workers 1 --write {tmp_path / 'verdicts.json'}")
    kept = json.loads((tmp_path / "verdicts.json").read_text())["verdicts"]
    assert [kept[rule.hash]["verdict"] for rule in rule_set(str(rules))] == ["proved", "refuted"]


def test_a_malformed_file_is_refused(rules: Path) -> None:
    rules.write_text(RULES.replace("matmul", "matmull"))
    assert "did you mean 'matmul'" in refused(f"rules verify {rules}")


def test_without_z3_kept_verdicts_are_shown_and_no_rule_is_proved(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    monkeypatch.delitem(sys.modules, "iossim.proving.prover", raising=False)
    assert "22 proved" in printed("rules verify metaflow --workers 1")
    assert "needs z3, which is not installed; pip install 'iossim[rules]'" in refused(
        f"rules verify {rules} --workers 1"
    )
