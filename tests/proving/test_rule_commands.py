"""``iossim rules``: sets listed, rules shown, and a verdict on each rule of a file."""

import json
import sys
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from iossim.proving.refute import replay
from iossim.report.schemas import schema
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.verdict import Counterexample


def test_sets_are_listed_with_their_rules_counted() -> None:
    rows = {row["name"]: row for row in printed_json("rules list --json")}
    assert rows["metaflow"]["rules"] == 22
    assert rows["metaflow"]["from"] == "shipped"
    assert "conv" in rows["metaflow"]["of"]
    assert "metaflow" in printed("rules list")


def test_a_rule_is_shown_as_text() -> None:
    assert printed("rules show metaflow average-pool-into-1x1").splitlines()[:-1] == [
        "average-pool-into-1x1:",
        "  y = average_pool(x, kernel=(3, 3), strides=s, pads=p, ceil_mode=False, count_include_pad=True, dilations=d)",
        "  z = conv(y, w, b?, strides=(1, 1), pads=(0, 0, 0, 0), dilations=e, groups=1)",
        "=>",
        "  ninth = filled(shape=(1, 1, 3, 3), value=0.1111111111111111)",
        "  v = mul(w, ninth)",
        "  z1 = conv(x, v, b?, strides=s, pads=p, dilations=d, groups=1)",
        "  z -> z1",
        "  if w.shape[2:] == (1, 1)",
        "  if is_constant(w)",
    ]
    text = printed("rules show metaflow")
    assert text.count("\n\n") == 21
    assert text.count("\n  from MetaFlow, ") == 22


@pytest.mark.parametrize("name", ["layouts", "metaflow", "simplify"])
def test_json_is_what_the_schema_says(name: str) -> None:
    documents = printed_json(f"rules show {name} --json")
    assert [document["rule"] for document in documents] == [rule.name for rule in rule_set(name)]
    validator = Draft202012Validator(schema("rule"))
    assert [error.message for document in documents for error in validator.iter_errors(document)] == []
    assert list(validator.iter_errors({**documents[0], "sauce": []}))


def test_a_file_and_its_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    document = printed_json("rules show simplify relu-of-relu --json")[0]
    path.write_text(json.dumps(document))  # JSON is YAML
    assert printed_json(f"rules show {path} --json") == [document]
    path.write_text(path.read_text().replace("relu(y)", "relu(y, axis=1)"))
    said = "line 1: rule 'relu-of-relu': source op z = relu(y, axis=1): relu has no attribute 'axis'"
    assert f"mine.yaml, {said}" in refused(f"rules show {path}")
    said = "rules simplify: has no rule 'relu-of-rel'; did you mean 'relu-of-relu'"
    assert said in refused("rules show simplify relu-of-rel")
    assert "unknown rules 'taso'" in refused("rules show taso")


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


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IOSSIM_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "mine.yaml"
    path.write_text(RULES)
    return path


def test_verdicts_as_json_as_a_table_and_written(rules: Path, tmp_path: Path) -> None:
    rows = printed_json(f"rules verify {rules} --workers 1 --json", code=1)
    assert [(row["index"], row["name"], row["verdict"]) for row in rows] == [
        (0, "add-commutes", "proved"),
        (1, "product-commutes", "refuted"),
    ]
    assert rows[0]["counterexample"] is None
    assert rows[0]["conditions"] == []
    assert "by the target" in rows[1]["reason"]
    found = TypeAdapter(Counterexample).validate_python(rows[1]["counterexample"])
    assert replay(found, rule_set(str(rules))[1]) == found
    assert printed_json(f"rules verify {rules} --json", code=1) == rows  # as kept, seconds included
    text = printed(f"rules verify {rules}", code=1)
    assert text.splitlines()[-1] == "1 proved, 1 refuted, 0 unknown"
    # Nothing that is printed depends on how long the verdicts took to find.
    assert ["index", "name", "verdict", "reason"] in [line.split() for line in text.splitlines()]
    file = tmp_path / "verdicts.json"
    assert printed(f"rules verify {rules} --anew --workers 1 --write {file}", code=1) == text
    kept = json.loads(file.read_text())["verdicts"]
    assert [kept[rule.hash]["verdict"] for rule in rule_set(str(rules))] == ["proved", "refuted"]


def test_a_file_without_origins_is_shown_and_a_malformed_one_is_refused(rules: Path) -> None:
    assert "from" not in printed(f"rules show {rules}"), "these have no origin"
    rules.write_text(RULES.replace("matmul", "matmull"))
    assert "did you mean 'matmul'" in refused(f"rules verify {rules}")


def test_without_z3_kept_verdicts_are_shown_and_no_rule_is_proved(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    monkeypatch.delitem(sys.modules, "iossim.proving.prover", raising=False)
    assert "22 proved" in printed("rules verify metaflow --workers 1")
    assert "needs z3, which is not installed; pip install 'iossim[rules]'" in refused(
        f"rules verify {rules} --workers 1"
    )
