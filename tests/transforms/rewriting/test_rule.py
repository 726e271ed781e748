"""Rules check themselves when they are made; their expressions, rules at concrete shapes, and which rules are used."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from place_rules import rule

from iossim.ir.graph import Graph
from iossim.proving.refute import evaluate_real
from iossim.transforms.rewriting import verdict as module
from iossim.transforms.rewriting.expression import Binding, ExpressionError, evaluate, parse_expression
from iossim.transforms.rewriting.instance import ConditionFailsError, InputShape, NotMadeError, place
from iossim.transforms.rewriting.rule import Rule, RuleError
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.verdict import Verdict, Verification, trusted

TWO = rule("t = matmul(a, b); y = matmul(t, c)", "u = matmul(b, c); z = matmul(a, u)", "y: z")


def test_inputs_and_hash() -> None:
    assert TWO.inputs == ("a", "b", "c")
    assert replace(TWO, name="other", origin="here").hash == TWO.hash
    assert replace(TWO, conditions=(parse_expression("len(a.shape) == 2"),)).hash != TWO.hash


@pytest.mark.parametrize(
    ("source", "target", "outputs", "reason"),
    [
        ("y = add(a, *others)", "", "y: others", "output 'y' is replaced by 'others'"),
        ("y = add(a, b)", "z = add(*a, b)", "y: z", r"'\*a' is elsewhere 'a'; write both alike"),
        ("y = add(a, *b); t = add(y, b)", "", "t: a", r"'b' is elsewhere '\*b'"),
    ],
)
def test_what_is_not_well_formed_is_refused(source: str, target: str, outputs: str, reason: str) -> None:
    with pytest.raises(RuleError, match=reason):
        rule(source, target, outputs)


def test_any_number_of_tensors_has_no_shape() -> None:
    add = rule("y = add(a, *others)", "z = add(a, *others)", "y: z")
    assert add.rests == {"others"}
    with pytest.raises(RuleError, match="reads the tensor 'others'"):
        add.under([parse_expression("len(others.shape) == 2")])


BINDING = Binding({"g": 2, "pads": (1, 2)}, {"x": (1, 8, 5, 7), "w": (4, 4, 3, 3)}, frozenset({"w"}))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x.shape[1] // g", 4),
        ("(0, 0, *pads)", (0, 0, 1, 2)),
        ("x.shape[2:]", (5, 7)),
        ("x.shape[-1] * 2 - 3", 11),
        ("w.shape[2:] == (3, 3)", True),
        ("len(x.shape) == 4", True),
        ("is_constant(w)", True),
        ("is_constant(x) or g != 2", False),
        ("-1", -1),
        ("(3,)", (3,)),
    ],
)
def test_value_and_text(text: str, value: object) -> None:
    read = parse_expression(text)
    assert evaluate(read, BINDING) == value
    assert parse_expression(str(read)) == read


@pytest.mark.parametrize("text", ["x.", "__import__('os')", "x.dtype", "lambda: 0", "x.shape[g:]", "[a for a in b]"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_expression(text)


@pytest.mark.parametrize("text", ["unknown", "y.shape", "x.shape[9]", "g // 0", "g < pads"])
def test_what_has_no_value_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="has no value"):
        evaluate(parse_expression(text), BINDING)


CONV = "strides=s, pads=p, groups=g, dilations=d"
#: Two convolutions of one input become one with the filters of both.
MERGED = rule(
    f"y = conv(x, v, b?, {CONV}); z = conv(x, w, c?, {CONV})",
    f"vw = concat(v, w, axis=0); bc = concat(b?, c?, axis=0); yz = conv(x, vw, bc?, {CONV}); "
    "y1, z1 = split(yz, axis=1, sizes=(v.shape[0], w.shape[0]))",
    "y: y1, z: z1",
    "g == 1",
    "v.shape[2:] == w.shape[2:]",
)
Shapes = Mapping[str, InputShape]


def instantiate(tried: Rule, attributes: Mapping[str, Any], shapes: Shapes) -> tuple[Graph, Graph] | None:
    """Both sides of a rule at shapes of its inputs; None where a side cannot take these, or a condition fails."""
    try:
        placed = place(tried, attributes, shapes)
        return placed.source, placed.target()
    except NotMadeError:
        return None


PLAIN = {"s": (1, 1), "p": (1, 1, 1, 1), "d": (1, 1), "g": 1}
SHAPES = {"x": (1, 2, 5, 5), "v": (3, 2, 3, 3), "w": (4, 2, 3, 3), "b": (3,), "c": None}


@pytest.mark.parametrize(("b", "c"), [((3,), (4,)), ((3,), None), (None, (4,)), (None, None)])
def test_what_is_left_out_stands_for_zeros(b: tuple[int] | None, c: tuple[int] | None) -> None:
    found = instantiate(MERGED, PLAIN, {**SHAPES, "b": b, "c": c})
    assert found is not None
    source, target = found
    assert len(source.nodes[0].inputs) == (2 if b is None else 3)
    assert len(target.nodes) == (3 if b is None and c is None else 4)
    random = np.random.default_rng(0)
    inputs = {name: random.standard_normal(source.types[name].shape) for name in source.inputs}
    made, by = evaluate_real(source, inputs), evaluate_real(target, inputs)
    for one, other in zip(source.outputs, target.outputs, strict=True):
        np.testing.assert_allclose(made[one], by[other])


def test_conditions_exclude() -> None:
    with pytest.raises(ConditionFailsError):
        place(MERGED, {**PLAIN, "g": 2}, {**SHAPES, "v": (4, 1, 3, 3), "w": (4, 1, 3, 3), "b": (4,)})
    assert instantiate(MERGED, {**PLAIN, "p": (1, 1, 2, 2)}, {**SHAPES, "w": (4, 2, 1, 1)}) is None


def test_a_source_that_does_not_take_the_shapes() -> None:
    with pytest.raises(NotMadeError, match="channels"):
        place(MERGED, PLAIN, {**SHAPES, "x": (1, 3, 5, 5)})


def test_sides_of_other_shapes() -> None:
    other = rule(f"y = conv(x, v, b?, {CONV})", "y1 = identity(x)", "y: y1")
    with pytest.raises(NotMadeError, match=r"y is \[1, 3, 5, 5\], but y1, which replaces it, is \[1, 2, 5, 5\]"):
        place(other, PLAIN, SHAPES).target()


def test_any_number_of_tensors() -> None:
    flat = rule("t = concat(x, y, axis=a); z = concat(t, *rest, axis=a)", "u = concat(x, y, *rest, axis=a)", "z: u")
    found = instantiate(flat, {"a": 1}, {"x": (2, 1), "y": (2, 3), "rest": ((2, 2), (2, 5))})
    assert found is not None
    source, target = found
    assert source.inputs == ("x", "y", "rest.0", "rest.1")
    assert target.types["u"].shape == (2, 11)
    assert instantiate(flat, {"a": 1}, {"x": (2, 1), "y": (2, 3), "rest": ()}) is not None


@pytest.mark.parametrize("groups", [1, 2])
def test_the_identity_of_a_convolution(groups: int) -> None:
    wider = rule(
        "y = relu(x); z = conv(y, w, groups=g)",
        f"same = conv(x, one, groups={groups}, pads=(1, 1, 1, 1)); y1 = relu(same)",
        "y: y1",
        filled=(f"one = filled(shape=(x.shape[1], x.shape[1] // {groups}, 3, 3), identity=True)",),
    )
    found = instantiate(wider, {"g": 1}, {"x": (1, 4, 5, 6), "w": (2, 4, 1, 1)})
    assert found is not None
    x = np.random.default_rng(0).standard_normal((1, 4, 5, 6))
    (made,) = evaluate_real(found[1], {"x": x, "w": np.zeros((2, 4, 1, 1))}).values()
    np.testing.assert_allclose(made, np.maximum(x, 0))


def test_only_proved_rules_are_used_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = rule_set("metaflow")[8:12]
    proved, refuted, unknown, never = rules
    verdicts = {
        proved.hash: Verification(Verdict.PROVED, "", conditions=("w1.shape[0] == w2.shape[0]",)),
        refuted.hash: Verification(Verdict.REFUTED, ""),
        unknown.hash: Verification(Verdict.UNKNOWN, ""),
    }
    monkeypatch.setattr(module, "recall", lambda rule: verdicts.get(rule.hash))
    used, left_out = trusted(rules)
    assert [rule.name for rule in used] == [proved.name]
    assert len(used[0].conditions) == len(proved.conditions) + 1
    assert left_out == (refuted, unknown, never)
    used, left_out = trusted(rules, unproved=True)
    assert used[1:] == (unknown, never)
    assert left_out == (refuted,)
