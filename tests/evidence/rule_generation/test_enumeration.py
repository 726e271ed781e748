"""All terms, each once, and fingerprints that tell them apart: against terms built and compared one by one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from evidence.rule_generation import enumeration
from evidence.rule_generation.candidates import match, term
from evidence.rule_generation.enumeration import enumerate_terms
from evidence.rule_generation.equations import TEMPLATE, Evaluation, Term, apply, ops
from evidence.rule_generation.fingerprints import evaluate_stacked
from evidence.rule_generation.vocabulary import Type, Vocabulary, describe, read_vocabulary
from iossim.base.errors import OptionError
from iossim.proving.refute import evaluate_op, random_elements

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
    """Of the orders in which three inputs are added, one is left."""
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
