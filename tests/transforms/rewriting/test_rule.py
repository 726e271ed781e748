"""Rules check themselves when they are made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iossim.transforms.rewriting.expression import parse_expression
from iossim.transforms.rewriting.rule import PatternOp, Rule, RuleError

TWO = Rule(
    "associative",
    (PatternOp("matmul", ("a", "b"), ("t",)), PatternOp("matmul", ("t", "c"), ("y",))),
    (PatternOp("matmul", ("b", "c"), ("u",)), PatternOp("matmul", ("a", "u"), ("z",))),
    (("y", "z"),),
)


def test_inputs_and_hash() -> None:
    assert TWO.inputs == ("a", "b", "c")
    assert replace(TWO, name="other", origin="here").hash == TWO.hash
    assert replace(TWO, conditions=(parse_expression("len(a.shape) == 2"),)).hash != TWO.hash


def test_any_number_of_tensors_has_no_shape() -> None:
    add = PatternOp("add", ("a", "*others"), ("y",))
    assert Rule("sum", (add,), (replace(add, outputs=("z",)),), (("y", "z"),)).rests == {"others"}
    with pytest.raises(RuleError, match="output 'y' is replaced by 'others'"):
        Rule("sum", (add,), (), (("y", "others"),))
    with pytest.raises(RuleError, match="reads the tensor 'others'"):
        Rule("sum", (add,), (), (("y", "a"),), (parse_expression("len(others.shape) == 2"),))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"source": ()}, "has no op"),
        ({"outputs": ()}, "maps no outputs"),
        ({"outputs": (("y", "nothing"),)}, "'nothing'"),
        ({"outputs": (("a", "z"),)}, "made by no op"),
        ({"target": (PatternOp("matmul", ("a", "q"), ("z",)),)}, "nothing makes 'q'"),
        ({"target": (PatternOp("matmull", ("a", "b"), ("z",)),)}, "did you mean 'matmul'"),
        ({"target": (PatternOp("concat", ("a", "b"), ("z",), (("axes", parse_expression("0")),)),)}, "'axis'"),
        ({"conditions": (parse_expression("groups == 1"),)}, "'groups'"),
        ({"conditions": (parse_expression("q.shape == a.shape"),)}, "'q'"),
        ({"conditions": (parse_expression("is_constant(q)"),)}, "'q'"),
        ({"target": (PatternOp("add", ("*a", "b"), ("z",)),)}, r"'\*a' is elsewhere 'a'; write both alike"),
        (
            {"source": (PatternOp("add", ("a", "*b"), ("y",)), PatternOp("add", ("y", "b"), ("t",)))},
            r"'b' is elsewhere '\*b'",
        ),
        ({"source": TWO.source[::-1]}, "'t' is made later"),
    ],
)
def test_what_is_not_well_formed_is_refused(changed: dict[str, object], reason: str) -> None:
    with pytest.raises(RuleError, match=reason):
        replace(TWO, **changed)  # type: ignore[arg-type]
