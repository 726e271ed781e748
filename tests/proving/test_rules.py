"""``iossim rules``: sets listed, rules shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused
from jsonschema import Draft202012Validator

from iossim.report.schemas import schema
from iossim.transforms.rewriting.rule_sets import rule_set


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
    assert (
        "mine.yaml, line 1: rule 'relu-of-relu': source op z = relu(y, axis=1): relu has no attribute 'axis'"
        in refused(f"rules show {path}")
    )
    assert "rules simplify: has no rule 'relu-of-rel'; did you mean 'relu-of-relu'" in refused(
        "rules show simplify relu-of-rel"
    )
    assert "unknown rules 'taso'" in refused("rules show taso")
