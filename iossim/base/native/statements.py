"""C of a whole function, statement by statement."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from functools import cache

import numpy as np

from iossim.base.native.expressions import Expression, Expressions, own_name
from iossim.base.native.library import Function
from iossim.base.native.types import INTEGER, Array, Number, Record, Tuple, Type, Unit


class FunctionText(Expressions):
    """The C of one function."""

    def __init__(self, unit: Unit, function: Function, inline: bool):
        super().__init__(unit, function)
        self.count = 0
        self.owned: list[str] = []
        self.lines: list[str] = []
        self.body(_definition(function).body)
        self.text = self._text(inline)

    def _text(self, inline: bool) -> str:
        unit, returned = self.unit, self.signature.returned
        given = (
            ", ".join(f"{unit.declare(kind)} {own_name(name)}" for name, kind in self.signature.parameters) or "void"
        )
        head = "static inline __attribute__((always_inline)) " if inline else "static "
        own = [(name, kind) for (owner, name), kind in unit.locals.items() if owner == self.name]
        declared = [f"    {unit.declare(kind)} {own_name(name)};" for name, kind in own]
        declared += [f"    void *{name} = 0;" for name in self.owned]
        ends = ["done:;", *(f"    free({name});" for name in self.owned)]
        if returned is not None:
            declared.append(f"    {unit.declare(returned)} returned;")
            ends.append("    return returned;")
        kind = "void" if returned is None else unit.declare(returned)
        return "\n".join([f"{head}{kind} {self.name}({given}) {{", *declared, *self.lines, *ends, "}"])

    def say(self, line: str) -> None:
        self.lines.append(f"    {line}")

    def fresh(self) -> str:
        self.count += 1
        return f"t{self.count}"

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
        if node.orelse:
            raise self.refuse(node)
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
        result = self.operation(node, node.op, (f"*{at}", kind), self.value(node.value))
        self.say(f"*{at} = {self.converted(node, result, kind)};")

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
        """A value that is computed now and kept in a temporary."""
        text, kind = self.value(node)
        place = self.fresh()
        self.say(f"{self.unit.declare(kind)} {place} = {text};")
        return place, kind

    def items(self, node: ast.expr, count: int) -> list[Expression]:
        """The items that a value is unpacked into."""
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
            self.say(f"{own_name(target.id)} = {self.converted(target, value, self.widened(target, value[1]))};")
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
        """The type of a variable after assigning ``kind`` to it: integers widen to floats when both are assigned."""
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

    def is_room(self, function: ast.expr) -> bool:
        return self.found(function) in (np.empty, np.zeros, np.full)

    def make_room(self, target: ast.expr, call: ast.Call) -> None:
        """Allocate a local array of the function."""
        if not isinstance(target, ast.Name):
            raise self.refuse(target)
        shape = call.args[0]
        sizes = [self.number(each, INTEGER) for each in (shape.elts if isinstance(shape, ast.Tuple) else [shape])]
        made = self.found(call.func)
        dtype = next((self.found(each.value) for each in call.keywords if each.arg == "dtype"), np.float64)
        kind = Array(np.dtype(dtype), len(sizes))
        self.widened(target, kind)
        owner = f"{own_name(target.id)}_room"
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
        self.say(
            f"{own_name(target.id)} = ({self.unit.declare(kind)}){{({kind.c_element} *){owner}, {', '.join(held)}}};"
        )
        if made is np.full:
            index, element = self.fresh(), kind.element
            assert isinstance(element, Number)
            value = self.number(call.args[1], element)
            self.say(
                f"for (int64_t {index} = 0; {index} < {count}; {index}++) {own_name(target.id)}.at[{index}] = {value};"
            )


@cache
def _definition(function: Function) -> ast.FunctionDef:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    return definition
