"""Files of rules, and sets of them by name or by path: what is written is read; and those that ship compute the same on both sides."""

import textwrap
from pathlib import Path

import pytest
from case_files import cases
from place_rules import SHIPPED

import iossim
from iossim.proving.refute import trials
from iossim.search.options import SearchOptions
from iossim.transforms.rewriting.backtracking import RewriteBudget
from iossim.transforms.rewriting.expression import Literal, Sequence, Variable
from iossim.transforms.rewriting.rule import Filled, PatternOp, Rule, RuleError
from iossim.transforms.rewriting.rule_file import read_rules, rule_fields, write_rules
from iossim.transforms.rewriting.rule_sets import DEFAULT_RULES, RULE_SETS, origin, rule_set, rules_named
from iossim.transforms.rewriting.scheduled import Rewrite
from iossim.transforms.rewriting.verdict import trusted
from iossim.transforms.transform import Setting

CASES = cases(__file__, "mistakes.yaml")

MERGE = "\n" + Path(__file__).with_name("merge.yaml").read_text(encoding="utf-8")
NOTHING = """
rule: nothing
source:
  - y = identity(x)
outputs: {y: x}
"""


def test_what_a_file_says() -> None:
    merge, nothing = read_rules(f"# two rules\n---{MERGE}---{NOTHING}---\n", "mine")
    assert merge.name == "merge"
    assert merge.origin == "two lines become one"
    assert merge.source[0] == PatternOp(
        "conv", ("x", "w1", "b1?"), ("y1",), (("strides", Variable("s")), ("groups", Literal(1)))
    )
    assert merge.source[2].inputs == ("*before", "y1", "y2", "*after")
    assert merge.optional == {"b1", "b2"}
    assert merge.rests == {"before", "after"}
    assert merge.outputs == (("z", "z1"),)
    assert list(map(str, merge.conditions)) == ["w1.shape[2:] == w2.shape[2:]", "(s == (1, 1)) or is_constant(w1)"]
    unit = Filled(Sequence((Literal(4), Literal(4))), identity=True)
    assert dict(merge.filled)["unit"] == unit
    assert dict(merge.filled)["zeros"].value == -0.5
    assert nothing == Rule("nothing", (PatternOp("identity", ("x",), ("y",)),), (), (("y", "x"),))


def test_what_is_written_reads_back_to_the_same(tmp_path: Path) -> None:
    rules = read_rules(f"{MERGE}---{NOTHING}", "mine")
    assert read_rules(write_rules(rules), "mine") == rules
    assert list(rule_fields(rules[1])) == ["rule", "source", "outputs"]
    path = tmp_path / "mine.yaml"
    path.write_text(write_rules(rule_set("metaflow")))
    assert rule_set(str(path)) == rule_set("metaflow")


@pytest.mark.parametrize(("old", "new", "words"), CASES["rule"])
def test_what_is_wrong_is_one_line_with_its_place(old: str, new: str, words: str) -> None:
    text = f"---{NOTHING}---{MERGE}"
    line = text[: text.index(old)].count("\n") + 1
    with pytest.raises(RuleError) as caught:
        read_rules(text.replace(old, new), "mine.yaml")
    said = str(caught.value)
    assert said.startswith(f"rules mine.yaml, line {line}: ")
    assert words in said


@pytest.mark.parametrize(("text", "said"), CASES["file"])
def test_what_is_no_rule(text: str, said: str) -> None:
    with pytest.raises(RuleError) as caught:
        read_rules(text, "mine")
    assert str(caught.value).startswith(said)


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


@pytest.mark.parametrize(("name", "said"), CASES["name"])
def test_what_is_not_there(name: str, said: str) -> None:
    with pytest.raises(RuleError) as caught:
        rule_set(name)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.name) for rule in SHIPPED])
def test_both_sides_compute_the_same(rule: Rule) -> None:
    tried = [trial.counterexample for trial in trials(rule, 8, seed=7)]
    assert None in tried
    assert all(each is None or each.element is None for each in tried), tried


def test_metaflow_has_its_22() -> None:
    origins = [rule.origin for rule in rule_set("metaflow")]
    kinds = ("costs at first", "fusion", "algebraic identity")
    assert [sum(origin.startswith(f"MetaFlow, {kind}") for origin in origins) for kind in kinds] == [8, 10, 4]


def test_no_rule_ships_twice() -> None:
    rules = [rule for name in RULE_SETS.own() for rule in rule_set(name)]
    assert len({rule.hash for rule in rules}) == len(rules)


def test_simplifying_adds_no_op() -> None:
    assert all(len(rule.target) <= len(rule.source) for rule in rule_set("simplify"))


@pytest.mark.parametrize("name", ["metaflow", "simplify", "layouts"])
def test_rules_that_ship_are_trusted_as_they_are_written(name: str) -> None:
    """After a change of rules, axioms or prover: ``iossim rules verify NAME --anew --write iossim/transforms/rewriting/rules/NAME.json``."""
    used, without_proof = trusted(rule_set(name), False)
    assert not without_proof
    assert [rule.conditions for rule in used] == [rule.conditions for rule in rule_set(name)]


def test_queries_keys_and_values_become_one_product_with_its_bias() -> None:
    network = iossim.load("bert_layer", dtype="bf16")
    prices = iossim.cost_model("simulator", device="h100-sxm", precision="bf16", engine="graph")
    rewrite = Rewrite(rules_named(DEFAULT_RULES), budget=RewriteBudget(graphs=20))
    made = rewrite.apply(network, Setting(prices, "ios-both", SearchOptions()))
    graph = made.network.graph
    assert (1, 128, 3 * 768) in [graph.types[node.outputs[0]].shape for node in graph.of_kind["matmul"]]
    assert made.found.best.cost_us < 0.95 * made.found.before_us, "the split of one product is in place"
