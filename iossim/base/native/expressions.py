"""C of expressions: the same operations in the same order as Python's."""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iossim.base.native import types
from iossim.base.native.library import Function, c_name
from iossim.base.native.types import (
    FLOAT,
    INTEGER,
    MASK,
    TRUTH,
    Array,
    Number,
    Record,
    Row,
    Type,
    Unit,
    UntranslatableError,
)

_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_BITS = {ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>"}
_COMPARED = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_MATHS = {
    (module, name): name
    for module in (math, np)
    for name in ("ceil", "floor", "log1p", "log", "exp", "sqrt")
    if module is math or name not in ("ceil", "floor")
}
_ROUNDED = ("ceil", "floor")
#: An expression in C, and its type.
Expression = tuple[str, Type]


class Expressions:
    """The expressions of one function, translated."""

    def __init__(self, unit: Unit, function: Function):
        self.unit, self.function, self.name = unit, function, c_name(function)
        self.signature = unit.signature(function)
        self.parameters = dict(self.signature.parameters)

    def refuse(self, node: ast.AST, why: str = "it is not translated") -> UntranslatableError:
        return UntranslatableError(f"{self.name}: {ast.unparse(node)}: {why}")

    def value(self, node: ast.expr) -> Expression:
        translate = getattr(self, f"of_{type(node).__name__.lower()}", None)
        if translate is None:
            raise self.refuse(node)
        expression: Expression = translate(node)
        return expression

    def number(self, node: ast.expr, kind: Number) -> str:
        return self.converted(node, self.value(node), kind)

    def converted(self, node: ast.AST, value: Expression, kind: Type) -> str:
        text, own = value
        if own == kind or (type(own) is type(kind) and not isinstance(own, Number)):
            return text
        if not isinstance(own, Number) or not isinstance(kind, Number) or self.joined(node, own, kind) != kind:
            raise self.refuse(node, f"it is no {kind}")
        return f"({kind.c_name}){text}"

    def condition(self, node: ast.expr) -> str:
        text, kind = self.value(node)
        if not isinstance(kind, Number):
            raise self.refuse(node)
        return text

    def array(self, node: ast.expr, dimensions: int = 1) -> tuple[str, Array]:
        """An array expression, with at least this number of dimensions."""
        text, kind = self.value(node)
        if not isinstance(kind, Array):
            raise self.refuse(node)
        if kind.dimensions < dimensions:
            if not kind.place[0]:
                raise self.refuse(node)
            self.unit.widen(kind.place, dimensions)
        self.unit.used.add(kind.place)
        return text, kind

    def found(self, node: ast.expr) -> Any:
        """The value of a global or builtin name, None for a variable."""
        if isinstance(node, ast.Attribute):
            return getattr(self.found(node.value), node.attr, None)
        if not isinstance(node, ast.Name) or node.id in self.parameters or (self.name, node.id) in self.unit.locals:
            return None
        return self.function.__globals__.get(node.id, getattr(builtins, node.id, None))

    def of_constant(self, node: ast.Constant) -> Expression:
        return literal(node.value)

    def of_name(self, node: ast.Name) -> Expression:
        if node.id in self.parameters:
            return own_name(node.id), self.parameters[node.id]
        own = self.unit.locals.get((self.name, node.id))
        if own is not None:
            return own_name(node.id), own
        value = self.found(node)
        if isinstance(value, bool | int | float):
            return literal(value)
        if isinstance(value, tuple | np.ndarray):
            return self.constant(f"{self.function.__module__}_{node.id}".replace(".", "_"), value)
        raise self.refuse(node)

    def of_attribute(self, node: ast.Attribute) -> Expression:
        if isinstance(value := self.found(node), int | float):
            return literal(value)
        text, kind = self.value(node.value)
        if not isinstance(kind, Record):
            raise self.refuse(node)
        return self.field(text, kind, node.attr)

    def field(self, text: str, kind: Record, name: str) -> Expression:
        return f"({text}).{name}", dict(kind.fields)[name]

    def of_subscript(self, node: ast.Subscript) -> Expression:
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            axis = ast.literal_eval(node.slice)
            return f"{self.array(node.value.value, axis + 1)[0]}.n{axis}", INTEGER
        text, kind = self.value(node.value)
        if isinstance(kind, Row) and kind.dtype.fields is not None and isinstance(node.slice, ast.Constant):
            element, offset, *_ = kind.dtype.fields[str(node.slice.value)]
            own = Array(element)
            return f"(*(const {own.c_element} *)({text} + {offset}))", own.element
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        text, array = self.array(node.value, len(indices))
        return self.element(text, array, [self.index(text, axis, each) for axis, each in enumerate(indices)])

    def index(self, array: str, axis: int, node: ast.expr) -> str:
        text = self.value(node)
        if text[1] not in (INTEGER, MASK, TRUTH):
            raise self.refuse(node, "it is no index")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return f"({array}.n{axis} + {text[0]})"
        return text[0]

    def element(self, text: str, kind: Array, indices: Sequence[str]) -> Expression:
        sizes = [f"{text}.n{axis}" for axis in range(kind.dimensions)]
        place = "".join(f"({index})" for index in indices[:1])
        for axis in range(1, kind.dimensions):
            place = f"({place} * {sizes[axis]}" + (f" + ({indices[axis]}))" if axis < len(indices) else ")")
        if len(indices) == kind.dimensions:
            if kind.dtype.kind == "V":
                return f"({text}.at + {place} * {kind.dtype.itemsize})", kind.element
            return f"{text}.at[{place}]", kind.element
        rest = Array(kind.dtype, kind.dimensions - len(indices))
        return f"(({self.unit.declare(rest)}){{{text}.at + {place}, {', '.join(sizes[len(indices) :])}}})", rest

    def stored(self, node: ast.expr) -> str:
        """The C type of the element that a subscript denotes."""
        assert isinstance(node, ast.Subscript)
        return self.array(node.value)[1].c_element

    def of_unaryop(self, node: ast.UnaryOp) -> Expression:
        text, kind = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return f"(!{text})", TRUTH
        if isinstance(node.op, ast.USub) and kind in (INTEGER, FLOAT):
            return f"(-{text})", kind
        if isinstance(node.op, ast.Invert) and kind in (INTEGER, MASK):
            return f"(~{text})", kind
        raise self.refuse(node)

    def of_binop(self, node: ast.BinOp) -> Expression:
        return self.operation(node, node.op, self.value(node.left), self.value(node.right))

    def operation(self, node: ast.AST, operator: ast.operator, left: Expression, right: Expression) -> Expression:
        if isinstance(operator, ast.Div | ast.Pow):
            one, other = (self.converted(node, each, FLOAT) for each in (left, right))
            return (f"({one} / {other})" if isinstance(operator, ast.Div) else f"pow({one}, {other})"), FLOAT
        kind = self.joined(node, left[1], right[1])
        if type(operator) in _BITS:
            if kind == FLOAT:
                raise self.refuse(node)
            return f"({left[0]} {_BITS[type(operator)]} {right[0]})", kind
        kind = INTEGER if kind == TRUTH else kind
        one, other = (self.converted(node, each, kind) for each in (left, right))
        if isinstance(operator, ast.FloorDiv | ast.Mod):
            if kind != INTEGER:
                raise self.refuse(node)
            return f"{'over' if isinstance(operator, ast.FloorDiv) else 'modulo'}({one}, {other})", kind
        if type(operator) not in _ARITHMETIC:
            raise self.refuse(node)
        return f"({one} {_ARITHMETIC[type(operator)]} {other})", kind

    def of_boolop(self, node: ast.BoolOp) -> Expression:
        sign = " && " if isinstance(node.op, ast.And) else " || "
        return f"({sign.join(self.condition(each) for each in node.values)})", TRUTH

    def of_compare(self, node: ast.Compare) -> Expression:
        parts = []
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            one, other = self.value(left), self.value(right)
            if {one[1], other[1]} == {MASK, INTEGER} and not isinstance(right, ast.Constant):
                raise self.refuse(node, "whole numbers with and without a sign do not mix")
            if type(operator) not in _COMPARED:
                raise self.refuse(node)
            parts.append(f"({one[0]} {_COMPARED[type(operator)]} {other[0]})")
        return (parts[0] if len(parts) == 1 else f"({' && '.join(parts)})"), TRUTH

    def of_ifexp(self, node: ast.IfExp) -> Expression:
        one, other = self.value(node.body), self.value(node.orelse)
        kind = self.joined(node, one[1], other[1])
        chosen = " : ".join(self.converted(node, each, kind) for each in (one, other))
        return f"({self.condition(node.test)} ? {chosen})", kind

    def of_call(self, node: ast.Call) -> Expression:
        called = self.found(node.func)
        if node.keywords:
            raise self.refuse(node)
        if called is len:
            return f"{self.array(node.args[0])[0]}.n0", INTEGER
        if called is max or called is min:
            values = [self.value(each) for each in node.args]
            kind = self.joined(node, values[0][1], values[0][1])
            for _, own in values[1:]:
                kind = self.joined(node, kind, own)
            text = self.converted(node, values[0], kind)
            for each in values[1:]:
                text = f"{called.__name__}_{kind.code}({text}, {self.converted(node, each, kind)})"
            return text, kind
        for (module, name), spelt in _MATHS.items():
            if called is getattr(module, name):
                text = f"{spelt}({self.number(node.args[0], FLOAT)})"
                return (f"((int64_t){text})", INTEGER) if name in _ROUNDED else (text, FLOAT)
        for cast, kind in types.NUMBERS.items():
            if called is cast:
                text = self.condition(node.args[0])
                return (f"({text} != 0)" if cast is bool else f"(({kind.c_name}){text})"), kind
        callee = self.unit.callee(called)
        if callee is None:
            raise self.refuse(node)
        return self.call(node, *callee)

    def call(self, node: ast.Call, function: Function, is_inlined: bool) -> Expression:
        name = self.unit.define(function, is_inlined)
        self.unit.called.add(name)
        signature = self.unit.signature(function)
        given = []
        for argument, (_, kind) in zip(node.args, signature.parameters, strict=True):
            text, own = self.value(argument)
            if isinstance(kind, Array):
                if not isinstance(own, Array):
                    # A row of an array that is not yet known to have two dimensions.
                    if isinstance(argument, ast.Subscript):
                        count = len(argument.slice.elts) if isinstance(argument.slice, ast.Tuple) else 1
                        self.array(argument.value, count + kind.dimensions)
                    raise self.refuse(argument)
                if own.dimensions < kind.dimensions:
                    self.array(argument, kind.dimensions)
                if own.dimensions > kind.dimensions:
                    self.unit.widen(kind.place, own.dimensions)
                if own.dtype != kind.dtype:
                    raise self.refuse(argument, f"it is no {kind.dtype}")
                if kind.place in self.unit.used:
                    self.unit.used.add(own.place)
                given.append(text)
            else:
                given.append(self.converted(argument, (text, own), kind))
        returned = signature.returned
        return f"{name}({', '.join(given)})", (INTEGER if returned is None else returned)

    def joined(self, node: ast.AST, one: Type, other: Type) -> Number:
        kinds = {one, other}
        for widest, narrower in ((FLOAT, {FLOAT, INTEGER, TRUTH}), (INTEGER, {INTEGER, TRUTH}), (MASK, {MASK})):
            if widest in kinds and kinds <= narrower:
                return widest
        if kinds == {TRUTH}:
            return TRUTH
        raise self.refuse(node, "whole numbers with and without a sign do not mix")

    def constant(self, name: str, values: Sequence[object] | NDArray[np.generic]) -> Expression:
        """A numeric table among the globals of the function's module."""
        array = np.asarray(values)
        kind = Array(array.dtype)
        text = ", ".join(literal(value)[0] for value in array.tolist())
        self.unit.parts[f"constant_{name}"] = f"static const {kind.c_element} constant_{name}[] = {{{text}}};"
        return f"(({self.unit.declare(kind)}){{({kind.c_element} *)constant_{name}, {len(array)}}})", kind


def own_name(name: str) -> str:
    """A variable's name in C, distinct from C's keywords."""
    return f"{name}_"


def literal(value: object) -> Expression:
    """A Python number as a C literal."""
    if isinstance(value, bool):
        return str(int(value)), TRUTH
    if isinstance(value, int):
        return (f"{value}LL" if value < 2**63 else f"{value}ULL"), INTEGER
    if isinstance(value, float):
        if math.isnan(value):
            return '__builtin_nan("")', FLOAT
        infinity = "(-__builtin_inf())" if value < 0 else "__builtin_inf()"
        return (infinity if math.isinf(value) else f"({value.hex()})"), FLOAT
    raise UntranslatableError(f"the constant {value!r}")
