"""Dimensions that a model file names, and those that it computes of names: ``past + seq``, as exporters write them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

#: Characters up to which a dimension is read as arithmetic.
_LONGEST = 200
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def dimension_names(dimension: str) -> set[str]:
    """The names that a dimension is computed of: its own where it is a plain name, or no arithmetic on whole numbers."""
    tree = _arithmetic(dimension)
    return {dimension} if tree is None else {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}


def dimension_size(dimension: str, sizes: Mapping[str, int]) -> int | None:
    """The size of a dimension, given by itself or computed of given names; None where one is not given."""
    if dimension in sizes:
        return sizes[dimension]
    tree = _arithmetic(dimension)
    try:
        return None if tree is None else _value(tree, sizes)
    except (KeyError, ArithmeticError):
        return None


def _arithmetic(dimension: str) -> ast.expr | None:
    """A dimension as arithmetic on names and whole numbers; None for any other text."""
    if len(dimension) > _LONGEST:
        return None
    try:
        tree = ast.parse(dimension, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if _is_arithmetic(tree) else None


def _is_arithmetic(tree: ast.expr) -> bool:
    match tree:
        case ast.Name():
            return True
        case ast.Constant(value=value):
            return type(value) is int
        case ast.BinOp(left=left, op=op, right=right):
            return type(op) in _OPERATORS and _is_arithmetic(left) and _is_arithmetic(right)
        case _:
            return False


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    match tree:
        case ast.Name(id=name):
            return sizes[name]
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case _:
            raise KeyError(ast.unparse(tree))
