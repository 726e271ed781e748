"""Sets of rules are found by name or by path."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from iossim.transforms.rewriting.rule import RuleError
from iossim.transforms.rewriting.rule_file import read_rules, write_rules
from iossim.transforms.rewriting.rule_sets import RULE_SETS, origin, rule_set


def test_those_that_ship() -> None:
    assert RULE_SETS.names() == ["layouts", "metaflow", "simplify"]
    assert {rule.name for rule in rule_set("metaflow")} >= {"enlarge-1x1-to-3x3", "merge-convolutions"}
    assert origin("metaflow") == "shipped"
    assert all(rule.origin for name in RULE_SETS.names() for rule in rule_set(name))


def test_the_rule_that_the_page_explains_is_the_one_that_ships() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "detail" / "rules.md").read_text()
    example = page[page.index("    ---\n") : page.index("| field | what |")]
    (rule,) = read_rules(textwrap.dedent(example), "docs/detail/rules.md")
    assert rule.hash == next(each.hash for each in rule_set("metaflow") if each.name == rule.name)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(write_rules(rule_set("metaflow")))
    assert rule_set(str(path)) == rule_set("metaflow")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("metaflo", "unknown rules 'metaflo'; did you mean 'metaflow'? known: layouts, metaflow, simplify; or give a .yaml or .pb file"),
        ("none.yaml", "cannot read rules none.yaml: No such file or directory; give a .yaml file of rules, a .pb file"),
        ("none.pb", "cannot read rules none.pb: No such file or directory; give"),
        ("folder/none", "cannot read rules folder/none: No such file or directory; give"),
    ],
)  # fmt: skip
def test_what_is_not_there(name: str, said: str) -> None:
    with pytest.raises(RuleError) as caught:
        rule_set(name)
    assert str(caught.value).startswith(said)
