"""Expressions over attributes and shapes: what a rule says of them, in Python's syntax.

``strides``, ``x.shape[1] // groups``, ``(0, 0, *pads)``, ``w.shape[2:] == v.shape[2:]`` and ``is_constant(w)`` are
expressions. Numbers are integers or floats; shapes and most attributes are tuples of integers. ``//`` and ``%`` are
Python's.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain
from typing import Any, ClassVar

from iossim.base.errors import IossimError


class ExpressionError(IossimError):
    """An expression that cannot be read, or has no value at a place."""


class Expression:
    """Base of all expressions: immutable, equal if written alike; ``str`` gives the text that reads back to it.

    ``TEXT`` is that text of a class, its fields in braces: those of format ``atom`` in brackets where they need them.
    """

    __slots__ = ()
    TEXT: ClassVar[str]

    def __str__(self) -> str:
        return self.TEXT.format(**{each.name: getattr(self, each.name) for each in fields(self)})  # type: ignore[arg-type]

    def __format__(self, form: str) -> str:
        text = str(self)
        return f"({text})" if form == "atom" and isinstance(self, Arithmetic | Comparison | AnyOf) else text

    def children(self) -> Iterator[Expression]:
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if isinstance(value, Expression):
                yield value
            elif isinstance(value, tuple):
                yield from (item for item in value if isinstance(item, Expression))

    def walk(self) -> Iterator[Expression]:
        """This expression and all inside it."""
        yield self
        for child in self.children():
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Literal(Expression):
    """A number, a boolean or a string."""

    TEXT = "{value!r}"
    value: int | float | bool | str


@dataclass(frozen=True, slots=True)
class Variable(Expression):
    """An attribute variable: bound where it stands alone as an attribute of a source op."""

    TEXT = "{name}"
    name: str


@dataclass(frozen=True, slots=True)
class Shape(Expression):
    """The shape of a tensor of the rule, a tuple of integers."""

    TEXT = "{tensor}.shape"
    tensor: str


@dataclass(frozen=True, slots=True)
class IsConstant(Expression):
    """Condition that a tensor is known before the network runs (a weight, or computed from weights alone)."""

    TEXT = "is_constant({tensor})"
    tensor: str


@dataclass(frozen=True, slots=True)
class Length(Expression):
    """Number of items of a tuple: for a shape, the rank."""

    TEXT = "len({of})"
    of: Expression


@dataclass(frozen=True, slots=True)
class Item(Expression):
    """One item of a tuple; a negative index counts from its end."""

    TEXT = "{of:atom}[{index}]"
    of: Expression
    index: Expression


@dataclass(frozen=True, slots=True)
class Part(Expression):
    """Items ``[start:stop]`` of a tuple, None where open."""

    of: Expression
    start: int | None
    stop: int | None

    def __str__(self) -> str:
        start, stop = ("" if bound is None else bound for bound in (self.start, self.stop))
        return f"{self.of:atom}[{start}:{stop}]"


@dataclass(frozen=True, slots=True)
class Spread(Expression):
    """The items of a tuple, inside another."""

    TEXT = "*{of:atom}"
    of: Expression


@dataclass(frozen=True, slots=True)
class Sequence(Expression):
    """A tuple of its items."""

    items: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))}{',' if len(self.items) == 1 else ''})"


@dataclass(frozen=True, slots=True)
class Arithmetic(Expression):
    """``+``, ``-``, ``*``, ``//`` or ``%`` of two numbers."""

    TEXT = "{left:atom} {sign} {right:atom}"
    sign: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Comparison(Expression):
    """``==``, ``!=``, ``<``, ``<=``, ``>`` or ``>=``: a boolean. Tuples are only compared for equality."""

    TEXT = "{left:atom} {sign} {right:atom}"
    sign: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class AnyOf(Expression):
    """Condition that one of several holds."""

    conditions: tuple[Expression, ...]

    def __str__(self) -> str:
        return " or ".join(f"{each:atom}" for each in self.conditions)


def shapes_in(expressions: Iterable[Expression]) -> set[str]:
    """The tensors whose shapes expressions read."""
    return {part.tensor for each in expressions for part in each.walk() if isinstance(part, Shape)}


@cache
def tensors_of(expression: Expression) -> frozenset[str]:
    """Tensors that an expression refers to."""
    return frozenset(part.tensor for part in expression.walk() if isinstance(part, Shape | IsConstant))


#: By sign: its class in Python's syntax tree, and its function.
_OPERATORS: dict[str, tuple[type[ast.AST], Callable[[Any, Any], Any]]] = {
    "+": (ast.Add, operator.add),
    "-": (ast.Sub, operator.sub),
    "*": (ast.Mult, operator.mul),
    "//": (ast.FloorDiv, operator.floordiv),
    "%": (ast.Mod, operator.mod),
    "==": (ast.Eq, operator.eq),
    "!=": (ast.NotEq, operator.ne),
    "<": (ast.Lt, operator.lt),
    "<=": (ast.LtE, operator.le),
    ">": (ast.Gt, operator.gt),
    ">=": (ast.GtE, operator.ge),
}
_SIGNS = {tree: sign for sign, (tree, _) in _OPERATORS.items()}


def literal(value: Any) -> Expression:
    """A value as an expression."""
    return Sequence(tuple(map(literal, value))) if isinstance(value, tuple) else Literal(value)


def parse_expression(text: str) -> Expression:
    """The expression that a text spells; raises ExpressionError naming the part.

    >>> str(parse_expression("x.shape[1]//groups")) 'x.shape[1] // groups'
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"{text!r} is not an expression; write as in Python, `x.shape[1] // groups`") from None
    return _read(tree, text)


def _read(tree: ast.expr, text: str) -> Expression:
    match tree:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return Literal(value)
        case ast.Name(id=name):
            return Variable(name)
        case ast.Attribute(value=ast.Name(id=name), attr="shape"):
            return Shape(name)
        case ast.Call(func=ast.Name(id="is_constant"), args=[ast.Name(id=name)], keywords=[]):
            return IsConstant(name)
        case ast.Call(func=ast.Name(id="len"), args=[of], keywords=[]):
            return Length(_read(of, text))
        case ast.Subscript(value=of, slice=ast.Slice(lower=lower, upper=upper, step=None)):
            return Part(_read(of, text), _bound(lower, text), _bound(upper, text))
        case ast.Subscript(value=of, slice=index):
            return Item(_read(of, text), _read(index, text))
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return Sequence(tuple(_read(item, text) for item in items))
        case ast.Starred(value=of):
            return Spread(_read(of, text))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return Literal(-value)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            return Arithmetic(_SIGNS[type(sign)], _read(left, text), _read(right, text))
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _SIGNS:
            return Comparison(_SIGNS[type(sign)], _read(left, text), _read(right, text))
        case ast.BoolOp(op=ast.Or(), values=values):
            return AnyOf(tuple(_read(value, text) for value in values))
    raise ExpressionError(
        f"{text!r} has {ast.unparse(tree)!r}, which expressions of rules cannot contain; use numbers, attributes, "
        "`x.shape`, tuples, `+ - * // %`, comparisons and `is_constant(x)`"
    )


def _bound(tree: ast.expr | None, text: str) -> int | None:
    if tree is None:
        return None
    found = _read(tree, text)
    if isinstance(found, Literal) and type(found.value) is int:
        return found.value
    raise ExpressionError(f"{text!r} cuts a tuple at {found}; give an integer")


@dataclass(frozen=True, slots=True)
class Binding:
    """Meaning of names in one place: attribute variables, shapes of tensors, and which tensors are constants."""

    attributes: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    constants: frozenset[str] = frozenset()


def evaluate(expression: Expression, binding: Binding) -> Any:
    """The value of an expression; raises ExpressionError for unbound names, absent items and division by zero."""
    try:
        return _evaluate(expression, binding)
    except (KeyError, IndexError, ZeroDivisionError, TypeError) as error:
        reason = f"{error.args[0]!r} is not bound" if isinstance(error, KeyError) else str(error)
        raise ExpressionError(f"{expression} has no value: {reason}") from None


def _evaluate(expression: Expression, binding: Binding) -> Any:
    match expression:
        case Literal(value):
            return value
        case Variable(name):
            return binding.attributes[name]
        case Shape(tensor):
            return binding.shapes[tensor]
        case IsConstant(tensor):
            return tensor in binding.constants
        case Length(of):
            return len(_evaluate(of, binding))
        case Item(of, index):
            return _evaluate(of, binding)[_evaluate(index, binding)]
        case Part(of, start, stop):
            return _evaluate(of, binding)[start:stop]
        case Sequence(items):
            parts = (
                _evaluate(item.of, binding) if isinstance(item, Spread) else (_evaluate(item, binding),)
                for item in items
            )
            return tuple(chain.from_iterable(parts))
        case Arithmetic(sign, left, right) | Comparison(sign, left, right):
            return _OPERATORS[sign][1](_evaluate(left, binding), _evaluate(right, binding))
        case AnyOf(conditions):
            return any(_evaluate(condition, binding) for condition in conditions)
    raise TypeError(f"{type(expression).__name__} stands outside a tuple")
