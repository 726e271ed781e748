"""Shapes and attributes are drawn as a rule takes them; one difference refutes, and can be found again; evaluation over the prime field."""

import json

import numpy as np
import pytest
from case_files import cases
from command_line import printed_everywhere
from place_rules import ASSOCIATIVE, MERGED, rule
from pydantic import TypeAdapter

from iossim.ir.graph import Graph, Node
from iossim.ir.op import Op
from iossim.ir.types import DType, TensorType
from iossim.proving.refute import (
    PRIME,
    evaluate_exact,
    evaluate_op,
    in_field,
    is_exact,
    random_elements,
    replay,
    trials,
)
from iossim.proving.sampling import samples
from iossim.transforms.rewriting.instance import holds
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.verdict import Counterexample

CASES = cases(__file__, "rules.yaml")
CONV = rule("y = conv(x, w, b?, strides=s, pads=p, dilations=d, groups=g)", "", "y: x")


def test_a_convolution_is_tried_with_all_that_it_has() -> None:
    drawn = list(samples(CONV, 80))
    assert len(drawn) == 80
    assert len({str((each.attributes, each.shapes)) for each in drawn}) == 80
    attributes = [each.attributes for each in drawn]
    assert {each["g"] for each in attributes} >= {1, 2}
    assert any(each["s"][0] != each["s"][1] for each in attributes)
    assert any(max(each["d"]) > 1 for each in attributes)
    assert any(each["p"][:2] != each["p"][2:] for each in attributes)
    kernels = {each.shapes["w"][2:] for each in drawn}  # type: ignore[index]
    assert {(3, 3), (1, 1)} < kernels
    assert any(size % 2 == 0 for kernel in kernels for size in kernel)
    assert {each.shapes["b"] is None for each in drawn} == {True, False}
    depthwise = [each for each in drawn if 1 < each.attributes["g"] == each.shapes["x"][1]]  # type: ignore[index]
    assert depthwise


def test_conditions_hold() -> None:
    for each in samples(MERGED, 30):
        assert holds(MERGED.conditions, each.binding)
    shapes = [each.binding.shapes for each in samples(ASSOCIATIVE, 30)]
    assert len({shape["a"] for shape in shapes}) > 5
    assert all(shape["a"][1] == shape["b"][0] for shape in shapes)


def test_sums_are_tried_with_broadcasting() -> None:
    drawn = list(samples(rule("y = add(a, b)", "y1 = add(b, a)", "y: y1"), 40))
    shapes = [(each.binding.shapes["a"], each.binding.shapes["b"]) for each in drawn]
    assert any(a == b for a, b in shapes)
    assert any(len(a) != len(b) for a, b in shapes)
    assert any(len(a) == len(b) and a != b for a, b in shapes)


@pytest.mark.parametrize("source", CASES["placed"])
def test_ops_of_many_kinds_are_placed(source: str) -> None:
    assert len(list(samples(rule(source, "", "y: a"), 20))) >= 10


def test_where_nothing_fits_nothing_is_drawn() -> None:
    impossible = rule("y = matmul(a, b)", "", "y: a", "a.shape[1] == 2", "b.shape[0] == 3", "len(b.shape) == 2")
    assert not list(samples(impossible, 20))


def test_a_seed_draws_the_same_everywhere() -> None:
    program = (
        "from iossim.transforms.rewriting.rule_sets import rule_set; from iossim.proving.sampling import samples; "
        "print([(s.attributes, s.binding.shapes) for r in rule_set('metaflow')[:3] for s in samples(r, 6, seed=5)])"
    )
    assert printed_everywhere(program)


RIGHT = {name: rule(*parts) for name, parts in CASES["right"].items()} | {
    "associative": ASSOCIATIVE,
    "batch norm of two": rule(
        "y = batch_norm(x, a, b, c, d, epsilon=e)",
        "n = unary(c, function='neg'); w = reshape(n, shape=(1, n.shape[0], 1, 1)); u = add(x, w); "
        "z = mul(c, zero); y1 = batch_norm(u, a, b, z, d, epsilon=e)",
        *("y: y1", "len(x.shape) == 4"),
        filled=("zero = filled(shape=c.shape, value=0.0)",),
    ),
}
WRONG = {name: rule(*parts) for name, parts in CASES["refuted"].items()} | {
    "groups": MERGED,
    "a thousandth more": rule(
        "y = relu(x)", "t = relu(x); y1 = mul(t, c)", "y: y1", filled=("c = filled(shape=(1,), value=1.001)",)
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_refuted(name: str) -> None:
    tried = list(trials(RIGHT[name], 40))
    assert len(tried) >= 10
    wrong = [each.counterexample for each in tried if each.counterexample is not None]
    assert not [each for each in wrong if each.element is not None]


def refutation(wrong: Rule) -> Counterexample:
    """The first difference that is found."""
    found = (trial.counterexample for trial in trials(wrong, 60))
    return next(each for each in found if each is not None)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refuted_and_the_counterexample_replays(name: str) -> None:
    found = refutation(WRONG[name])
    kept = TypeAdapter(Counterexample).validate_python(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert kept == found
    assert replay(kept, WRONG[name]) == found


def test_a_counterexample_is_none_of_another_rule() -> None:
    wrong = WRONG["not commutative"]
    found = refutation(wrong)
    right = Rule("right", wrong.source, wrong.source, (("y", "y"),))
    assert replay(found, right) is None


def test_a_target_that_does_not_fit_is_told_from_one_that_is_wrong() -> None:
    reversed_rows = rule("y = matmul(a, b)", "y1 = matmul(b, a)", "y: y1", "len(a.shape) == 2", "len(b.shape) == 2")
    found = [trial.counterexample for trial in trials(reversed_rows, 40)]
    kinds = {each.element is None for each in found if each is not None}
    assert kinds == {True, False}


X = random_elements(np.random.default_rng(0), (2, 3, 50))


def made(kind: str, *inputs: np.ndarray, **attributes: object) -> np.ndarray:
    return evaluate_op(Op.from_attributes(kind, attributes), inputs)[0]


def test_products_are_those_of_whole_numbers() -> None:
    random = np.random.default_rng(1)
    x, w = random_elements(random, (1, 4, 6, 5)), random_elements(random, (6, 2, 3, 3))
    found = made("conv", x, w, groups=2, pads=(1, 0, 1, 2), strides=(2, 1))
    exact = Op.from_attributes("conv", {"groups": 2, "pads": (1, 0, 1, 2), "strides": (2, 1)})
    whole = exact.evaluate([x.astype(np.int64), w.astype(np.int64)])[0] % PRIME
    assert (found == whole).all()
    a, b, c = (random_elements(random, shape) for shape in ((3, 40), (40, 5), (5,)))
    doubled = made("gemm", a, b, c, alpha=0.5, beta=2.0)
    whole = (a.astype(np.int64) @ b.astype(np.int64) * pow(2, -1, PRIME) + 2 * c.astype(np.int64)) % PRIME
    assert (doubled == whole).all()


def test_fractions_go_with_sums_and_products() -> None:
    a, b = np.array([0.75, -2.5, 3.0, 0.1]), np.array([0.5, 0.25, -7.0, 0.0])
    assert (in_field(a + b) == np.mod(in_field(a) + in_field(b), PRIME)).all()
    assert (in_field(a * b) == np.mod(in_field(a) * in_field(b), PRIME)).all()


def test_what_activations_keep() -> None:
    relu = made("relu", X)
    assert 0.3 < (relu == 0).mean() < 0.7
    assert (made("relu", relu) == relu).all()
    assert (made("clip", X, minimum=0.0) == relu).all()
    minus = np.mod(-X, PRIME)
    assert (np.mod(relu - made("relu", minus), PRIME) == X).all()
    assert (np.mod(relu + made("relu", minus), PRIME) == made("unary", X, function="abs")).all()
    six = made("clip", X, minimum=0.0, maximum=6.0)
    assert (made("clip", six, minimum=0.0, maximum=6.0) == six).all()
    assert (made("relu", six) == six).all()


@pytest.mark.parametrize("kind", ["sigmoid", "unary"])
def test_other_functions_look_random(kind: str) -> None:
    attributes = {"function": "tanh"} if kind == "unary" else {}
    y = made(kind, X, **attributes)
    assert (y == made(kind, X.copy(), **attributes)).all()
    assert len(np.unique(y)) > 290
    assert y[0, 0, 0] == made(kind, X[:1, :1, :1], **attributes)


def test_what_the_field_has_not() -> None:
    assert not is_exact(Op.from_attributes("softmax", {}))
    assert not is_exact(Op.from_attributes("unary", {"function": "floor"}))
    assert not is_exact(Op.from_attributes("nary", {"function": "div"}))
    assert is_exact(Op.from_attributes("nary", {"function": "sub"}))


def test_graphs() -> None:
    x = TensorType((2, 3), DType.FLOAT64)
    graph = Graph.create(
        {"x": x, "y": x},
        ["z"],
        [
            Node("a", Op.from_attributes("add", {}), ("x", "y"), ("s",)),
            Node("b", Op.from_attributes("mul", {}), ("s", "s"), ("z",)),
        ],
        {},
    )
    whole = np.full((2, 3), PRIME - 1.0)
    assert (evaluate_exact(graph, {"x": whole, "y": whole})["z"] == 4).all()
