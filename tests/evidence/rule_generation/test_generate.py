"""Rules from nothing: all that holds follows from them, each holds, and they are the same everywhere; and the command."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from command_line import printed, printed_everywhere, printed_json
from test_enumeration import built

from evidence.rule_generation.derivation import AMONG_FOUND, Derivations, coverage
from evidence.rule_generation.equations import TEMPLATE, Equation, Evaluation, Term, apply, generalised, holds, ops
from evidence.rule_generation.generate import generate
from evidence.rule_generation.to_rules import to_rules
from evidence.rule_generation.vocabulary import Vocabulary, read_vocabulary
from iossim.proving.refute import trials
from iossim.transforms.rewriting.expression import parse_expression
from iossim.transforms.rewriting.rule_file import read_rules, write_rules
from iossim.transforms.rewriting.rule_sets import read_published, rule_set

MATRICES = ("matmul,add,relu,concat", "2x2*3", 2)


@pytest.mark.parametrize(
    ("names", "inputs", "size"),
    [("mul,relu", "2x2*2", 3), ("matmul,add,transpose", "2x2*2", 2), ("concat,relu,add", "2x2*2", 2)],
)
def test_all_that_is_equal_follows(names: str, inputs: str, size: int) -> None:
    """Brute force: all pairs of all terms, compared by evaluation."""
    vocabulary = read_vocabulary(names, inputs)
    known = Derivations()
    for each in generate(vocabulary, size).equations:
        known.add(each)
    shapes = {f"i{index}": shape for index, shape in enumerate(vocabulary.inputs)}
    evaluation = Evaluation(shapes, seed=7)
    classes: dict[tuple[object, ...], list[Term]] = {}
    for each in built(vocabulary, size):
        found = evaluation.of(each)
        classes.setdefault((found[0].shape, found[1].tobytes()), []).append(each)
    pairs = [pair for members in classes.values() for pair in combinations(sorted(members, key=str), 2)]
    assert len(pairs) > 10
    for left, right in pairs:
        assert known.follows((left,), (right,), shapes), (left, right)


def test_rules_hold_at_other_shapes() -> None:
    """None of them computes anything else; where a target does not fit, it is not applied."""
    rules = generate(read_vocabulary(*MATRICES[:2]), MATRICES[2]).rules
    assert len(rules) > 10
    for rule in rules:
        tried = list(trials(rule, 10))
        assert tried, str(rule)
        for trial in tried:
            assert trial.counterexample is None or trial.counterexample.element is None, str(rule)


def test_two_convolutions_of_one_input_become_one() -> None:
    """A rule with two outputs: the merge that MetaFlow and TASO live on."""
    templates = tuple(TEMPLATE[name] for name in ("conv", "concat0", "split1"))
    found = generate(Vocabulary(templates, ((1, 2, 4, 4), (2, 2, 3, 3), (2, 2, 3, 3))), 3)
    merged = [
        rule
        for rule in found.rules
        if [op.kind for op in rule.source] == ["conv", "conv"] and rule.target[-1].kind == "split"
    ]
    assert [op.kind for op in merged[0].target] == ["concat", "conv", "split"]
    assert str(merged[0].target[-1]) == "t2_0, t2_1 = split(t1, axis=1, sizes=(x1.shape[0], x2.shape[0]))"
    assert dict(merged[0].source[0].attributes)["strides"] == dict(merged[0].source[1].attributes)["strides"]
    one_group = replace(merged[0], conditions=tuple(map(parse_expression, ("g0 == 1", "g1 == 1"))))
    differences = [trial.counterexample for trial in trials(one_group, 20)]
    # Kernels of other shapes do not join.
    assert all(each is None or each.element is None for each in differences)


def test_axes_become_variables_where_all_are_right() -> None:
    found = generate(read_vocabulary("relu,concat", "2x3"), 2)
    texts = {str(rule.source[-1]) for rule in found.rules}
    assert "s1 = relu(s0)" in texts
    merged = next(rule for rule in found.rules if [op.kind for op in rule.source] == ["relu", "relu", "concat"])
    assert str(merged.source[-1]) == "s2 = concat(s0, s1, axis=axis)"
    assert len([rule for rule in found.rules if [op.kind for op in rule.source] == ["relu", "relu", "concat"]]) == 1


def test_files_of_rules_read_back() -> None:
    rules = generate(read_vocabulary(*MATRICES[:2]), MATRICES[2]).rules
    again = read_rules(write_rules(rules), "here")
    assert [rule.hash for rule in again] == [rule.hash for rule in rules]


def test_the_same_rules_in_every_process_and_for_other_inputs() -> None:
    script = (
        "from evidence.rule_generation.generate import generate\n"
        "from evidence.rule_generation.vocabulary import Vocabulary, read_vocabulary\n"
        "from iossim.transforms.rewriting.rule_file import write_rules\n"
        f"print(write_rules(generate(read_vocabulary(*{MATRICES[:2]!r}), {MATRICES[2]}).rules), end='')\n"
    )
    other_inputs = generate(read_vocabulary(*MATRICES[:2]), MATRICES[2], seed=3)
    assert printed_everywhere(script) == write_rules(other_inputs.rules)


def test_what_both_sides_share_is_left_out() -> None:
    shape = (2, 2)
    inner = apply("matmul", ["a", "b"])
    equation = Equation(
        (apply("add", [apply("relu", [inner]), apply("relu", [inner])]),),
        (apply("add", [apply("relu", [apply("relu", [inner])]), apply("relu", [inner])]),),
        {"a": shape, "b": shape},
    )
    assert holds(equation)
    general = generalised(equation)
    assert "matmul" not in str(general)
    assert holds(general)


def test_an_input_that_stands_for_several_becomes_those() -> None:
    doubled = apply("concat0", ["a", "a"])
    equation = Equation((apply("relu", [doubled]),), (apply("concat0", [apply("relu", ["a"])] * 2),), {"a": (2, 2)})
    assert len(generalised(equation).inputs) == 2
    same = Equation((apply("matmul", [doubled, "b"]),), (apply("matmul", [doubled, "b"]),), {"a": (2, 2), "b": (2, 2)})
    assert len(ops(same.left)) == 2


def test_equations_are_one_whatever_their_names_and_sides() -> None:
    shapes = dict.fromkeys("abc", (2, 2))
    left = apply("matmul", [apply("matmul", ["a", "b"]), "c"])
    right = apply("matmul", ["a", apply("matmul", ["b", "c"])])
    one = Equation((left,), (right,), shapes).canonical()
    assert one == Equation((right,), (left,), shapes).canonical()
    assert one == Equation((left,), (right,), shapes).renamed({"a": "c", "b": "a", "c": "b"}).canonical()
    assert [rule.name for rule in to_rules([one], "here")] == ["gen-000", "gen-000-back"]


@pytest.mark.slow
def test_published_rules_are_found_again(shared: Path) -> None:
    """TASO's, over its ops and inputs at three ops: each is found or follows in two steps, but for six.

    Those six take a tensor for its own weight, ``conv(t, t)``, and tell the order of three channel groups in both at once.
    """
    vocabulary = read_vocabulary()
    data = shared / "data" / "substitutions" / "taso_graph_subst.pb"
    published = read_published(data.read_bytes(), str(data))
    states = coverage(published, generate(vocabulary, 3).equations, vocabulary.inputs)
    missing = {name for name, state in states.items() if state not in AMONG_FOUND}
    assert missing == {f"taso-{index:03d}" for index in (92, 93, 106, 107, 108, 109)}


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
