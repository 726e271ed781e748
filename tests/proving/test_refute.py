"""One difference refutes, and can be found again; what is right is never refuted."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter
from some_rules import ASSOCIATIVE, MERGED, rule

from iossim.proving.refute import refute, replay, trials
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.verdict import Counterexample

RIGHT = {
    "associative": ASSOCIATIVE,
    # Squares are never negative: true of real numbers, and not in the field.
    "relu of a square": rule("t = mul(x, x); y = relu(t)", "y1 = mul(x, x)", "y: y1"),
    "tanh is odd": rule(
        "t = unary(x, function='neg'); y = unary(t, function='tanh')",
        "u = unary(x, function='tanh'); y1 = unary(u, function='neg')",
        "y: y1",
    ),
    "relu behind max pool": rule(
        "t = relu(x); y = max_pool(t, kernel=k, strides=s, pads=p)",
        "u = max_pool(x, kernel=k, strides=s, pads=p); y1 = relu(u)",
        "y: y1",
    ),
    "batch norm of two": rule(
        "y = batch_norm(x, a, b, c, d, epsilon=e)",
        "n = unary(c, function='neg'); w = reshape(n, shape=(1, n.shape[0], 1, 1)); u = add(x, w); "
        "z = mul(c, zero); y1 = batch_norm(u, a, b, z, d, epsilon=e)",
        "y: y1",
        "len(x.shape) == 4",
        filled=("zero = filled(shape=c.shape, value=0.0)",),
    ),
    "softmax and concat": rule(
        "a = softmax(x, axis=1); b = softmax(y, axis=1); z = concat(a, b, axis=0)",
        "t = concat(x, y, axis=0); z1 = softmax(t, axis=1)",
        "z: z1",
    ),
}
WRONG = {
    "not commutative": rule("y = matmul(a, b)", "y1 = matmul(b, a)", "y: y1"),
    "relu of a sum": rule("t = add(a, b); y = relu(t)", "u = relu(a); v = relu(b); y1 = add(u, v)", "y: y1"),
    "average for maximum": rule(
        "y = max_pool(x, kernel=k, strides=s, pads=p)", "y1 = average_pool(x, kernel=k, strides=s, pads=p)", "y: y1"
    ),
    "another epsilon": rule(
        "y = batch_norm(x, a, b, c, d, epsilon=e)", "y1 = batch_norm(x, a, b, c, d, epsilon=e + 0.001)", "y: y1"
    ),
    "padding counted": rule(
        "y = average_pool(x, kernel=k, strides=s, pads=p, count_include_pad=True)",
        "y1 = average_pool(x, kernel=k, strides=s, pads=p)",
        "y: y1",
    ),
    "bias lost": rule("y = conv(x, w, b?)", "y1 = conv(x, w)", "y: y1"),
    "pads of the other side": rule("y = conv(x, w, pads=p)", "y1 = conv(x, w, pads=(p[2], p[3], p[0], p[1]))", "y: y1"),
    "groups": MERGED,
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_refuted(name: str) -> None:
    tried = list(trials(RIGHT[name], 40))
    assert len(tried) >= 10
    wrong = [each.counterexample for each in tried if each.counterexample is not None]
    assert not [each for each in wrong if each.element is not None]


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refuted_and_the_counterexample_replays(name: str) -> None:
    found = refute(WRONG[name], 60)
    assert found is not None
    kept = TypeAdapter(Counterexample).validate_python(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert kept == found
    assert replay(kept, WRONG[name]) == found


def test_a_counterexample_is_none_of_another_rule() -> None:
    wrong = WRONG["not commutative"]
    found = refute(wrong)
    assert found is not None
    right = Rule("right", wrong.source, wrong.source, (("y", "y"),))
    assert replay(found, right) is None


def test_a_target_that_does_not_fit_is_told_from_one_that_is_wrong() -> None:
    reversed_rows = rule("y = matmul(a, b)", "y1 = matmul(b, a)", "y: y1", "len(a.shape) == 2", "len(b.shape) == 2")
    found = [trial.counterexample for trial in trials(reversed_rows, 40)]
    kinds = {each.element is None for each in found if each is not None}
    assert kinds == {True, False}
