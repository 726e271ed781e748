"""Patterns made real: the op that a pattern stands for, once attributes and shapes are known."""

from __future__ import annotations

from collections.abc import Iterable

from iossim.errors import GraphError
from iossim.ir.op import Op
from iossim.rewriting.expression import Binding, Expression, ExpressionError, evaluate
from iossim.rewriting.rule import PatternOp


class NotMadeError(GraphError):
    """A pattern whose attributes have no value, or no valid one, for these shapes."""


def make_op(pattern: PatternOp, binding: Binding) -> Op:
    """The op of a pattern; raises NotMadeError where an attribute has no value or the op refuses it."""
    try:
        attributes = {name: evaluate(value, binding) for name, value in pattern.attributes}
        return Op.from_attributes(pattern.kind, attributes)
    except (ExpressionError, GraphError) as error:
        raise NotMadeError(f"{pattern}: {error}") from None


def holds(conditions: Iterable[Expression], binding: Binding) -> bool:
    """Whether all conditions are true; one that has no value (an axis that a shape has not) is not."""
    try:
        return all(evaluate(condition, binding) for condition in conditions)
    except ExpressionError:
        return False
