"""Terms by size, and rules from nothing: all that holds follows from them, each holds, and they are the same everywhere; and the command."""

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from command_line import printed, printed_everywhere, printed_json

from evidence.rule_generation import enumeration
from evidence.rule_generation.candidates import match, term
from evidence.rule_generation.derivation import AMONG_FOUND, Derivations, coverage
from evidence.rule_generation.enumeration import enumerate_terms
from evidence.rule_generation.equations import TEMPLATE, Equation, Evaluation, Term, apply, generalised, holds, ops
from evidence.rule_generation.fingerprints import evaluate_stacked
from evidence.rule_generation.generate import generate
from evidence.rule_generation.to_rules import to_rules
from evidence.rule_generation.vocabulary import Type, Vocabulary, describe, read_vocabulary
from iossim.base.errors import OptionError
from iossim.proving.refute import evaluate_op, random_elements, trials
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


SMALL = [
    ("mul,relu", "2x2*2", 3),
    ("add,mul,relu", "2x2*2", 2),
    ("matmul,concat,split", "2x2*2", 2),
    ("concat,split", "1x2", 3),
    ("conv,concat,enlarge", "1x2x4x4,2x2x3x3,2x1x1x3", 2),
]


def built(vocabulary: Vocabulary, size: int) -> set[Term]:
    """All terms with up to ``size`` ops, one by one."""
    shapes = {f"i{index}": shape for index, shape in enumerate(vocabulary.inputs)}
    terms: set[Term] = set(shapes)
    for _ in range(size):
        found = set(terms)
        evaluation = Evaluation(shapes)
        for template in vocabulary.templates:
            for operands in product(terms, repeat=template.operands):
                types = [known[0] for each in operands if (known := evaluation.of(each)) is not None]
                if template.apply(types) is None or not template.generates(types):
                    continue
                found |= {apply(template.name, operands, output) for output in range(template.outputs)}
        terms = {each for each in found if len(ops([each])) <= size}
    return terms


@pytest.mark.parametrize(("names", "inputs", "size"), SMALL)
def test_every_term_is_enumerated_once(names: str, inputs: str, size: int) -> None:
    vocabulary = read_vocabulary(names, inputs)
    terms = enumerate_terms(vocabulary, size)
    found = [term(terms, tensor) for tensor in range(len(terms.node))]
    assert len(set(found)) == len(found)
    assert set(found) == built(vocabulary, size)
    for tensor, each in enumerate(found):
        level = len(ops([each]))
        assert terms.tensor_levels[level][0] <= tensor < terms.tensor_levels[level][1]


@pytest.mark.parametrize(("names", "inputs", "size"), SMALL)
def test_fingerprints_are_equal_where_terms_compute_the_same(names: str, inputs: str, size: int) -> None:
    vocabulary = read_vocabulary(names, inputs)
    terms = enumerate_terms(vocabulary, size)
    evaluation = Evaluation({f"i{index}": shape for index, shape in enumerate(vocabulary.inputs)}, seed=99)
    by_value: dict[tuple[object, ...], set[int]] = {}
    for tensor in range(len(terms.node)):
        known = evaluation.of(term(terms, tensor))
        by_value.setdefault((known[0].shape, known[1].tobytes()), set()).add(int(terms.fingerprint[tensor]))
    assert all(len(prints) == 1 for prints in by_value.values())
    assert len(set().union(*by_value.values())) == len(by_value)


def test_a_stack_is_evaluated_as_each_of_its_terms() -> None:
    random = np.random.default_rng(4)
    cases = [
        ("matmul", (2, 4), (4, 3)),
        ("conv", (2, 4, 5, 4), (6, 2, 3, 1)),
        ("conv", (1, 4, 3, 5), (4, 1, 1, 3)),
        ("add", (2, 3), (2, 3)),
        ("scale", (2, 4, 3, 3), ()),
        ("concat1", (2, 4, 2, 2), (2, 1, 2, 2)),
        ("concat0", (2, 4), (1, 4)),
        ("transpose", (2, 5)),
        ("enlarge", (2, 3, 1, 3)),
        ("sigmoid", (2, 3)),
    ]
    for name, *shapes in cases:
        applied = TEMPLATE[name].apply([Type(shape) for shape in shapes])
        assert applied is not None, name
        stacks = [random_elements(random, (3, *shape)) for shape in shapes]
        (stack,) = evaluate_stacked(applied[0], stacks)
        for place in range(3):
            (alone,) = evaluate_op(applied[0], [each[place] for each in stacks])
            assert np.array_equal(stack[place], alone), name


def test_a_split_cuts_where_a_concat_joined() -> None:
    joined = TEMPLATE["concat1"].apply([Type((2, 1)), Type((2, 3))])
    split = TEMPLATE["split1"].apply(joined[1])
    assert [each.shape for each in split[1]] == [(2, 1), (2, 3)]
    assert TEMPLATE["split1"].apply([Type((2, 4))]) is None


def test_pairs_do_not_differ_in_names_only() -> None:
    """One is left of the orders in which three inputs are added."""
    matched = match(enumerate_terms(read_vocabulary("matmul", "2x2*3"), 2))
    assert matched.hits == 27  # a product of three, of any three, by two orders
    assert matched.renamed == 5  # of one input, of two in three ways, of three


def test_more_graphs_than_fit_in_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enumeration, "_MOST_GRAPHS", 100)
    with pytest.raises(OptionError, match="graphs of 2 ops"):
        enumerate_terms(read_vocabulary("matmul,add", "2x2*3"), 3)


def test_vocabularies_are_read_and_described() -> None:
    vocabulary = read_vocabulary("mul, concat", "2x4*2,scalar")
    assert vocabulary.inputs == ((2, 4), (2, 4), ())
    assert [each.name for each in vocabulary.templates] == ["mul", "scale", "concat0", "concat1"]
    assert describe(vocabulary.inputs) == "2x4*2,scalar"


@pytest.mark.parametrize(
    ("names", "inputs", "reason"),
    [
        ("addd", "2x4", "did you mean 'add'"),
        ("add", "2y4", "'2y4'"),
        ("add", "2x0", "'2x0'"),
        ("add", "2x4*99", "at most 8"),
        ("", "2x4", "`ops`"),
        ("add", "", "`inputs`"),
    ],
)
def test_what_is_no_vocabulary_is_refused(names: str, inputs: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        read_vocabulary(names, inputs)
