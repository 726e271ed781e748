"""Expressions read, print and evaluate as Python's do."""

from __future__ import annotations

import pytest

from iossim.transforms.rewriting.expression import Binding, ExpressionError, evaluate, parse_expression

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
