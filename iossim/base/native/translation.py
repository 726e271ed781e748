"""C of compiled functions: a translation of the small part of Python that they are written in.

Numbers have 64 bits and arrays know their sizes; every operation is the same one in the same order, so that results are
those of numba to the last bit. What is not known here raises UntranslatableError. Indices are not checked, and none is
negative but for those that are written so.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from iossim.base.native import calls
from iossim.base.native.types import (
    FLOAT,
    INTEGER,
    MASK,
    TRUTH,
    Array,
    Dimensions,
    Number,
    Record,
    Row,
    Signature,
    Tuple,
    Type,
    UntranslatableError,
    c_name,
)

_PRELUDE = """\
typedef signed char int8_t; typedef unsigned char uint8_t; typedef int int32_t;
typedef long long int64_t; typedef unsigned long long uint64_t;
void *malloc(__SIZE_TYPE__); void *calloc(__SIZE_TYPE__, __SIZE_TYPE__); void free(void *);
double pow(double, double), log1p(double), log(double), exp(double), sqrt(double), ceil(double), floor(double);
static inline void *kept(void *room) { if (!room) __builtin_trap(); return room; }
static inline int64_t over(int64_t a, int64_t b) { int64_t q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
static inline int64_t modulo(int64_t a, int64_t b) { return a - over(a, b) * b; }
#define LEAST(T, name) static inline T name(T a, T b) { return b < a ? b : a; }
#define MOST(T, name) static inline T name(T a, T b) { return b > a ? b : a; }
LEAST(int64_t, min_q) LEAST(uint64_t, min_Q) LEAST(double, min_d) MOST(int64_t, max_q) MOST(uint64_t, max_Q)
MOST(double, max_d)
"""
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
_CASTS = {int: INTEGER, float: FLOAT, bool: TRUTH, np.uint64: MASK, np.int64: INTEGER}
Callee = tuple[Callable[..., Any], bool]
#: An expression in C, and its type.
Expression = tuple[str, Type]


class _MoreKnownError(Exception):
    """More became known of a type: what was translated with less is translated anew."""


def translate(functions: Sequence[Callable[..., Any]], callee: Callable[[Any], Callee | None]) -> str:
    """The C of those functions that can be translated, and of all that they call.

    ``callee`` gives the function behind a compiled one, and whether it is inlined; None for anything else.
    """
    try:
        return Translation(functions, callee).text
    except (UntranslatableError, OSError):
        pass
    able = []
    for function in functions:
        with suppress(UntranslatableError, OSError):
            Translation([function], callee)
            able.append(function)
    return Translation(able, callee).text


class Translation:
    """The C of functions and of all that they call, see :func:`translate`; raises UntranslatableError."""

    def __init__(self, functions: Sequence[Callable[..., Any]], callee: Callable[[Any], Callee | None]):
        self.callee = callee
        self.dimensions = Dimensions()
        self.locals: dict[tuple[str, str], Type] = {}
        self.types: dict[str, str] = {}
        self.parts: dict[str, str] = {}
        self.called: set[str] = set()
        #: The places of arrays with which something is done: others may have any number of dimensions.
        self.used: set[tuple[str, str]] = set()
        self.widened = 0
        while True:
            self.types.clear()
            self.parts.clear()
            try:
                for function in functions:
                    self.define(function)
                called = [function for function in functions if not self._is_inner(function)]
                entries = [*map(self._entry, called), calls.table([c_name(function) for function in called])]
                break
            except _MoreKnownError:
                continue
        self.text = "\n".join([_PRELUDE, calls.DECLARATIONS, *self.types.values(), *self.parts.values(), *entries])

    def signature(self, function: Callable[..., Any]) -> Signature:
        return Signature.of(function, self.dimensions)

    def declare(self, kind: Type) -> str:
        """The name of a type in C, which is declared."""
        if isinstance(kind, Array) and kind.c_name not in self.types:
            sizes = ", ".join(f"n{axis}" for axis in range(kind.dimensions))
            self.types[kind.c_name] = f"typedef struct {{ {kind.c_element} *at; int64_t {sizes}; }} {kind.c_name};"
        if isinstance(kind, Record) and kind.name not in self.types:
            fields = " ".join(f"{self.held(own)} {name};" for name, own in kind.fields)
            self.types[kind.name] = f"typedef struct {{ {fields} }} {kind.name};"
        if isinstance(kind, Tuple) and kind.c_name not in self.types:
            fields = " ".join(f"{item.c_name} v{place};" for place, item in enumerate(kind.items))
            self.types[kind.c_name] = f"typedef struct {{ {fields} }} {kind.c_name};"
        return kind.c_name

    def held(self, kind: Type) -> str:
        """The name of a type in C, as what holds a value of it."""
        name = self.declare(kind)
        return kind.name if isinstance(kind, Record) else name

    def widen(self, place: tuple[str, str], dimensions: int) -> None:
        """The array of a place has at least so many dimensions."""
        if self.dimensions.of.get(place, 1) < dimensions:
            self.dimensions.of[place] = dimensions
            raise _MoreKnownError

    def define(self, function: Callable[..., Any], inline: bool = False) -> str:
        """The name of a function in C, which is defined."""
        name = c_name(function)
        if name not in self.parts:
            before = -1
            while before != len(self.locals) + self.widened:
                before = len(self.locals) + self.widened
                self.parts[name] = _Function(self, function, inline).text
            # Behind those that it calls, which were defined meanwhile.
            self.parts[name] = self.parts.pop(name)
        return name

    def constant(self, name: str, values: Sequence[Any] | np.ndarray[Any, Any]) -> Expression:
        """A table of numbers that a function finds among the names of its module."""
        array = np.asarray(values)
        kind = Array(array.dtype)
        text = ", ".join(_literal(value)[0] for value in array.tolist())
        self.parts[f"constant_{name}"] = f"static const {kind.c_element} constant_{name}[] = {{{text}}};"
        return f"(({self.declare(kind)}){{({kind.c_element} *)constant_{name}, {len(array)}}})", kind

    def _is_inner(self, function: Callable[..., Any]) -> bool:
        """Whether a function is there for compiled ones alone: calls from elsewhere go to numba."""
        takes_rows = any(isinstance(kind, Row) for _, kind in self.signature(function).parameters)
        return takes_rows or (function.__name__.startswith("_") and c_name(function) in self.called)

    def _entry(self, function: Callable[..., Any]) -> str:
        name = self.define(function)
        return calls.entry(name, self.signature(function), self.held, lambda array: array.place in self.used)


class _Function:
    """The C of one function."""

    def __init__(self, unit: Translation, function: Callable[..., Any], inline: bool):
        self.unit, self.function, self.name = unit, function, c_name(function)
        self.signature = unit.signature(function)
        self.parameters = dict(self.signature.parameters)
        self.known = [name for owner, name in unit.locals if owner == self.name]
        self.count = 0
        self.owned: list[str] = []
        self.lines: list[str] = []
        self.body(_definition(function).body)
        self.text = self._text(inline)

    def _text(self, inline: bool) -> str:
        unit, returned = self.unit, self.signature.returned
        given = ", ".join(f"{unit.declare(kind)} {_own(name)}" for name, kind in self.signature.parameters) or "void"
        head = "static inline __attribute__((always_inline)) " if inline else "static "
        own = [(name, kind) for (owner, name), kind in unit.locals.items() if owner == self.name]
        declared = [f"    {unit.declare(kind)} {_own(name)};" for name, kind in own]
        declared += [f"    void *{name} = 0;" for name in self.owned]
        ends = ["done:;", *(f"    free({name});" for name in self.owned)]
        if returned is not None:
            declared.append(f"    {unit.declare(returned)} returned;")
            ends.append("    return returned;")
        kind = "void" if returned is None else unit.declare(returned)
        return "\n".join([f"{head}{kind} {self.name}({given}) {{", *declared, *self.lines, *ends, "}"])

    def refuse(self, node: ast.AST, why: str = "it is not translated") -> UntranslatableError:
        return UntranslatableError(f"{self.name}: {ast.unparse(node)}: {why}")

    def say(self, line: str) -> None:
        self.lines.append(f"    {line}")

    def fresh(self) -> str:
        self.count += 1
        return f"t{self.count}"

    # Statements.

    def body(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            translate = getattr(self, f"do_{type(statement).__name__.lower()}", None)
            if translate is None:
                raise self.refuse(statement)
            translate(statement)

    def do_pass(self, node: ast.Pass) -> None: ...

    def do_break(self, node: ast.Break) -> None:
        self.say("break;")

    def do_continue(self, node: ast.Continue) -> None:
        self.say("continue;")

    def do_expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.say(f"{self.value(node.value)[0]};")

    def do_while(self, node: ast.While) -> None:
        self.say(f"while ({self.condition(node.test)}) {{")
        self.body(node.body)
        self.say("}")

    def do_if(self, node: ast.If) -> None:
        self.say(f"if ({self.condition(node.test)}) {{")
        self.body(node.body)
        if node.orelse:
            self.say("} else {")
            self.body(node.orelse)
        self.say("}")

    def do_for(self, node: ast.For) -> None:
        if not isinstance(node.target, ast.Name) or node.orelse:
            raise self.refuse(node)
        place = self.fresh()
        if isinstance(node.iter, ast.Call) and self.found(node.iter.func) is range:
            bounds = [self.number(each, INTEGER) for each in node.iter.args]
            begin, end = ("0", bounds[0]) if len(bounds) == 1 else bounds[:2]
            step = ast.literal_eval(node.iter.args[2]) if len(bounds) > 2 else 1
            sign = "<" if step > 0 else ">"
            self.say(
                f"for (int64_t {place} = {begin}, {place}e = {end}; {place} {sign} {place}e; {place} += {step}) {{"
            )
            self.assign(node.target, (place, INTEGER))
        else:
            array, kind = self.array(node.iter)
            if kind.dimensions != 1:
                raise self.refuse(node.iter)
            self.say(f"for (int64_t {place} = 0; {place} < {array}.n0; {place}++) {{")
            self.assign(node.target, self.element(array, kind, [place]))
        self.body(node.body)
        self.say("}")

    def do_return(self, node: ast.Return) -> None:
        returned = self.signature.returned
        if isinstance(returned, Tuple) and isinstance(node.value, ast.Tuple):
            values = [self.number(each, kind) for each, kind in zip(node.value.elts, returned.items, strict=True)]
            self.say(f"returned = ({returned.c_name}){{{', '.join(values)}}};")
        elif isinstance(returned, Number) and node.value is not None:
            self.say(f"returned = {self.number(node.value, returned)};")
        elif returned is not None or node.value is not None:
            raise self.refuse(node)
        self.say("goto done;")

    def do_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value))

    def do_augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            read: ast.expr = ast.Name(node.target.id, ast.Load())
            self.assign(node.target, self.value(ast.BinOp(read, node.op, node.value)))
            return
        text, kind = self.value(node.target)
        if not isinstance(kind, Number):
            raise self.refuse(node)
        at = self.fresh()
        stored = self.stored(node.target)
        self.say(f"{stored} *{at} = &{text};")
        self.say(f"*{at} = {self.operation(node, node.op, (f'*{at}', kind), self.value(node.value))[0]};")

    def do_assign(self, node: ast.Assign) -> None:
        (first, *others), value = node.targets, node.value
        if isinstance(first, ast.Tuple) and isinstance(value, ast.Tuple) and not others:
            values = [self.held(each) for each in value.elts]
            for target, one in zip(first.elts, values, strict=True):
                self.assign(target, one)
        elif isinstance(first, ast.Tuple) and not others:
            for target, one in zip(first.elts, self.items(value, len(first.elts)), strict=True):
                self.assign(target, one)
        elif isinstance(value, ast.Call) and self.is_room(value.func):
            self.make_room(first, value)
        elif others:
            one = self.held(value)
            for target in node.targets:
                self.assign(target, one)
        else:
            self.assign(first, self.value(value))

    def held(self, node: ast.expr) -> Expression:
        """A value that is computed now, for later."""
        text, kind = self.value(node)
        place = self.fresh()
        self.say(f"{self.unit.declare(kind)} {place} = {text};")
        return place, kind

    def items(self, node: ast.expr, count: int) -> list[Expression]:
        """What a value that is taken apart consists of."""
        if isinstance(node, ast.Attribute) and node.attr == "shape":
            array, own = self.array(node.value, count)
            return [(f"{array}.n{axis}", INTEGER) for axis in range(own.dimensions)]
        text, kind = self.value(node)
        if isinstance(kind, Record):
            return [self.field(text, kind, name) for name, _ in kind.fields]
        if isinstance(kind, Tuple):
            place = self.fresh()
            self.say(f"{kind.c_name} {place} = {text};")
            return [(f"{place}.v{item}", own) for item, own in enumerate(kind.items)]
        raise self.refuse(node)

    def assign(self, target: ast.expr, value: Expression) -> None:
        if isinstance(target, ast.Name):
            self.say(f"{_own(target.id)} = {self.converted(target, value, self.widened(target, value[1]))};")
            return
        if not isinstance(target, ast.Subscript):
            raise self.refuse(target)
        place, own = self.value(target)
        if isinstance(own, Array):  # all elements of a row
            index = self.fresh()
            if own.dimensions != 1 or not isinstance(own.element, Number):
                raise self.refuse(target)
            filled = self.converted(target, value, own.element)
            self.say(f"for (int64_t {index} = 0; {index} < {place}.n0; {index}++) {place}.at[{index}] = {filled};")
        elif isinstance(own, Number):
            self.say(f"{place} = {self.converted(target, value, own)};")
        else:
            raise self.refuse(target)

    def widened(self, target: ast.Name, kind: Type) -> Type:
        """The type of a variable that is given a value of one; a number of it may be both whole and not."""
        if target.id in self.parameters:
            return self.parameters[target.id]
        key = self.name, target.id
        before = self.unit.locals.get(key)
        if before is None:
            self.unit.locals[key] = kind
            return kind
        if before == kind or not isinstance(kind, Number) or not isinstance(before, Number):
            if type(before) is not type(kind):
                raise self.refuse(target, "it is of two types")
            self.unit.locals[key] = kind
            return kind
        joined = self.joined(target, before, kind)
        if joined != before:
            self.unit.locals[key] = joined
            self.unit.widened += 1
        return joined

    def joined(self, node: ast.AST, one: Type, other: Type) -> Number:
        kinds = {one, other}
        for widest, narrower in ((FLOAT, {FLOAT, INTEGER, TRUTH}), (INTEGER, {INTEGER, TRUTH}), (MASK, {MASK})):
            if widest in kinds and kinds <= narrower:
                return widest
        if kinds == {TRUTH}:
            return TRUTH
        raise self.refuse(node, "whole numbers with and without a sign do not mix")

    def is_room(self, function: ast.expr) -> bool:
        return self.found(function) in (np.empty, np.zeros, np.full)

    def make_room(self, target: ast.expr, call: ast.Call) -> None:
        """An array that the function has for itself."""
        if not isinstance(target, ast.Name):
            raise self.refuse(target)
        shape = call.args[0]
        sizes = [self.number(each, INTEGER) for each in (shape.elts if isinstance(shape, ast.Tuple) else [shape])]
        made = self.found(call.func)
        dtype = next((self.found(each.value) for each in call.keywords if each.arg == "dtype"), np.float64)
        kind = Array(np.dtype(dtype), len(sizes))
        self.widened(target, kind)
        owner = f"{_own(target.id)}_room"
        if owner not in self.owned:
            self.owned.append(owner)
        held = []
        for size in sizes:
            held.append(self.fresh())
            self.say(f"int64_t {held[-1]} = {size};")
        count = " * ".join(held)
        room = f"calloc({count} + 1, sizeof({kind.c_element}))"
        room = room if made is np.zeros else f"malloc(({count} + 1) * sizeof({kind.c_element}))"
        self.say(f"free({owner}); {owner} = kept({room});")
        self.say(f"{_own(target.id)} = ({self.unit.declare(kind)}){{({kind.c_element} *){owner}, {', '.join(held)}}};")
        if made is np.full:
            index, element = self.fresh(), kind.element
            assert isinstance(element, Number)
            value = self.number(call.args[1], element)
            self.say(
                f"for (int64_t {index} = 0; {index} < {count}; {index}++) {_own(target.id)}.at[{index}] = {value};"
            )

    # Expressions.

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
        """An array of at least so many dimensions."""
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
        """What a name that is no variable stands for, None if it is one."""
        if isinstance(node, ast.Attribute):
            return getattr(self.found(node.value), node.attr, None)
        if not isinstance(node, ast.Name) or node.id in self.parameters or (self.name, node.id) in self.unit.locals:
            return None
        return self.function.__globals__.get(node.id, getattr(builtins, node.id, None))

    def of_constant(self, node: ast.Constant) -> Expression:
        return _literal(node.value)

    def of_name(self, node: ast.Name) -> Expression:
        if node.id in self.parameters:
            return _own(node.id), self.parameters[node.id]
        own = self.unit.locals.get((self.name, node.id))
        if own is not None:
            return _own(node.id), own
        value = self.found(node)
        if isinstance(value, bool | int | float):
            return _literal(value)
        if isinstance(value, tuple | np.ndarray):
            return self.unit.constant(f"{self.function.__module__}_{node.id}".replace(".", "_"), value)
        raise self.refuse(node)

    def of_attribute(self, node: ast.Attribute) -> Expression:
        if isinstance(value := self.found(node), int | float):
            return _literal(value)
        text, kind = self.value(node.value)
        if not isinstance(kind, Record):
            raise self.refuse(node)
        return self.field(text, kind, node.attr)

    def field(self, text: str, kind: Record, name: str) -> Expression:
        own = dict(kind.fields)[name]
        return f"{'&' if isinstance(own, Record) else ''}({text})->{name}", own

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
        """The type in C of the element that a subscript names."""
        assert isinstance(node, ast.Subscript)
        return self.array(node.value)[1].c_element

    def of_unaryop(self, node: ast.UnaryOp) -> Expression:
        text, kind = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return f"(!{text})", TRUTH
        if not isinstance(kind, Number):
            raise self.refuse(node)
        return f"({'-' if isinstance(node.op, ast.USub) else '~'}{text})", kind

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
            kind = values[0][1]
            for _, own in values:
                kind = self.joined(node, kind, own)
            assert isinstance(kind, Number)
            text = self.converted(node, values[0], kind)
            for each in values[1:]:
                text = f"{called.__name__}_{kind.code}({text}, {self.converted(node, each, kind)})"
            return text, kind
        for (module, name), spelt in _MATHS.items():
            if called is getattr(module, name):
                text = f"{spelt}({self.number(node.args[0], FLOAT)})"
                return (f"((int64_t){text})", INTEGER) if name in _ROUNDED else (text, FLOAT)
        for cast, kind in _CASTS.items():
            if called is cast:
                return f"(({kind.c_name}){self.condition(node.args[0])})", kind
        callee = self.unit.callee(called)
        if callee is None:
            raise self.refuse(node)
        return self.call(node, *callee)

    def call(self, node: ast.Call, function: Callable[..., Any], is_inlined: bool) -> Expression:
        name = self.unit.define(function, is_inlined)
        self.unit.called.add(name)
        signature = self.unit.signature(function)
        given = []
        for argument, (_, kind) in zip(node.args, signature.parameters, strict=True):
            text, own = self.value(argument)
            if isinstance(kind, Array):
                if not isinstance(own, Array):
                    # A row of an array that is not known yet to have rows.
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


@cache
def _definition(function: Callable[..., Any]) -> ast.FunctionDef:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    return definition


def _own(name: str) -> str:
    """A variable's name in C, none of C's own words."""
    return f"{name}_"


def _literal(value: object) -> Expression:
    if isinstance(value, bool):
        return str(int(value)), TRUTH
    if isinstance(value, int):
        return (f"{value}LL" if value < 2**63 else f"{value}ULL"), INTEGER
    if isinstance(value, float):
        if math.isinf(value) or math.isnan(value):
            return ("(-" if value < 0 else "(") + (
                '__builtin_nan(""))' if math.isnan(value) else "__builtin_inf())"
            ), FLOAT
        return f"({value.hex()})", FLOAT
    raise UntranslatableError(f"the constant {value!r}")
