"""Random shapes and attributes that the source of a rule takes and its conditions allow, fixed by a seed.

Draws differ in style: few or many sizes, plain attributes or groups, strides, dilations, uneven padding and
broadcasting. A draw goes through the source op by op, proposes values for what is free there
(:mod:`iossim.proving.proposals`) and begins anew where an op refuses. Conditions that are equations set
what they speak of; the others are only checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from iossim.base.errors import GraphError
from iossim.ir.types import DType
from iossim.proving.proposals import DrawStyle, Request, propose
from iossim.transforms.rewriting.expression import (
    Binding,
    Comparison,
    Expression,
    ExpressionError,
    Item,
    Length,
    Literal,
    Part,
    Shape,
    Variable,
    evaluate,
    tensors_of,
)
from iossim.transforms.rewriting.instance import InputShape, Placed, SideAtShapes, place
from iossim.transforms.rewriting.rule import PatternOp, Rule, attribute_defaults, is_optional, is_rest, tensor_of

#: Sizes that draws keep to, in turn: with few, tensors fit each other by chance; with many, no two are equal by chance.
_SIZES = ((2,), (3,), (2, 3), (1, 2), (4, 2), (1, 3, 2), (2, 4, 6), (1, 2, 3, 4, 5))
#: Draws before a style is given up.
_DRAWS = 40
#: Draws that all fail before the rule is.
_VAIN_DRAWS = 1200


def samples(rule: Rule, count: int, seed: int = 0, dtype: DType = DType.FLOAT64) -> Iterator[Placed]:
    """Up to ``count`` different places that the source takes, fewer where they are hard to find."""
    random = Random(f"{seed}:{rule.hash}")
    sampler = _Sampler(rule, dtype)
    seen: set[str] = set()
    failed = 0
    for turn in range(count):
        for _ in range(_DRAWS):
            sizes = _SIZES[turn % len(_SIZES)]
            style = DrawStyle(
                random,
                tuple(dict.fromkeys((*sizes, *sampler.numbers))) if random.random() < 0.3 else sizes,
                random.choice(sampler.ranks),
                wild=turn % 3 > 0,
            )
            drawn = sampler.draw(style, seen)
            if drawn is not None:
                yield drawn
                break
            failed += 1
            if not seen and failed >= _VAIN_DRAWS:
                return


@dataclass(frozen=True)
class _Sampler:
    rule: Rule
    dtype: DType

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of dimensions to try: those that conditions name, and what the ops of the source are made for."""
        named = [
            known.value
            for part, known in self.equations
            if isinstance(part, Length) and isinstance(known, Literal)
            if known.value != 0  # a number beside tensors says nothing of those
        ]
        if named:
            return tuple(dict.fromkeys(rank for rank in named if isinstance(rank, int)))
        kinds = {op.kind for op in self.rule.source}
        if any("strides" in attribute_defaults(kind) for kind in kinds):
            return (4,)
        return (2, 2, 3) if kinds & {"matmul", "gemm"} else (4, 2, 3, 1)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Sizes that conditions name."""
        parts = [part for condition in self.rule.conditions for part in condition.walk()]
        values = {part.value for part in parts if isinstance(part, Literal)}
        return tuple(sorted(value for value in values if type(value) is int and 1 < value < 8))

    @cached_property
    def equations(self) -> tuple[tuple[Expression, Expression], ...]:
        """Parts of a tensor's shape, and attribute variables, each with what it has to be."""
        equal = [each for each in self.rule.conditions if isinstance(each, Comparison) and each.sign == "=="]
        pairs = (pair for each in equal for pair in ((each.left, each.right), (each.right, each.left)))
        return tuple((part, known) for part, known in pairs if _settable(part))

    def draw(self, style: DrawStyle, seen: set[str]) -> Placed | None:
        """One place that was not seen before, or None."""
        draw = _Draw(self, style)
        try:
            for op in self.rule.source:
                draw.extend(op)
            key = f"{draw.attributes} {draw.shapes}"
            if key in seen:
                return None
            seen.add(key)
            return place(self.rule, draw.attributes, draw.shapes, self.dtype)
        except (GraphError, ExpressionError, TypeError, ValueError, IndexError, ZeroDivisionError):
            return None  # it does not fit, or an odd shape or attribute leaves a proposal without a value


class _Draw:
    """Shapes and attributes as they are chosen, op by op."""

    def __init__(self, sampler: _Sampler, style: DrawStyle) -> None:
        self._sampler, self._style = sampler, style
        rule = sampler.rule
        self.attributes: dict[str, Any] = {}
        self.shapes: dict[str, InputShape] = {}
        constants = frozenset((*rule.inputs, *rule.made_by_source))
        self._side = SideAtShapes(rule, {}, Binding(self.attributes, {}, constants), sampler.dtype)

    def extend(self, op: PatternOp) -> None:
        """Choose what the op leaves free, and add it; raises GraphError where it does not fit."""
        shapes, style = self._side.shapes, self._style
        free: list[str] = []
        known: list[tuple[int, ...] | None] = []
        for operand in op.inputs:
            name = tensor_of(operand)
            if name in self.shapes or name in shapes:
                known.extend(self._known(name))
            elif is_optional(operand) and style.chance(0.4):
                self._take(name, None)
            elif is_rest(operand):
                count = style.random.randrange(3)
                free += [name] * count
                known += [None] * count
                if not count:
                    self._take(name, ())
            else:
                free += [name] * (name not in free)
                known.append(None)
        request = self._request(op, known)
        proposed = propose(request, style)
        chosen = [shape for shape, before in zip(proposed, known, strict=True) if before is None]
        for name, value in op.attributes:
            if isinstance(value, Variable) and value.name not in self.attributes:
                self.attributes[value.name] = request.given[name]
        for name in dict.fromkeys(free):
            if name in self._sampler.rule.rests:
                self._take(name, tuple(chosen))
            else:
                self._take(name, self._bent(name, chosen[free.index(name)]))
        self._side.add(op)

    def _known(self, name: str) -> list[tuple[int, ...] | None]:
        shape = self.shapes.get(name, self._side.shapes.get(name))
        if name in self._sampler.rule.rests:
            return list(shape or ())  # type: ignore[arg-type]
        return [] if shape is None else [shape]  # type: ignore[list-item]

    def _request(self, op: PatternOp, known: list[tuple[int, ...] | None]) -> Request:
        given = dict(attribute_defaults(op.kind))
        unbound: list[str] = []
        for name, value in op.attributes:
            del given[name]
            if isinstance(value, Variable) and value.name not in self.attributes:
                for part, known_part in self._sampler.equations:
                    if part == value and (wanted := self._value(known_part)) is not None:
                        given[name] = wanted
                if name not in given:
                    unbound.append(name)
            elif (wanted := self._value(value)) is not None:
                given[name] = wanted
        others = [shape for shape in self.shapes.values() if shape and isinstance(shape[0], int)]
        return Request(op.kind, len(op.outputs), known, given, tuple(unbound), others)

    def _value(self, expression: Expression) -> Any:
        try:
            return evaluate(expression, self._side.binding)
        except ExpressionError:
            return None

    def _bent(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape as the equations want it that speak of this tensor, as far as the rest of them is known."""
        for part, known in self._sampler.equations:
            if name not in tensors_of(part):
                continue
            self._side.shapes[name] = shape
            wanted = self._value(known)
            del self._side.shapes[name]
            if wanted is not None:
                shape = _with_part(shape, part, wanted, self._style)
        return shape

    def _take(self, name: str, shape: InputShape) -> None:
        self.shapes[name] = shape
        self._side.add_input(name, shape)


def _settable(part: Expression) -> bool:
    match part:
        case Variable() | Shape() | Length(Shape()) | Part(Shape()) | Item(Shape(), Literal()):
            return True
    return False


def _with_part(shape: tuple[int, ...], part: Expression, wanted: Any, style: DrawStyle) -> tuple[int, ...]:
    """The shape with one part of it as wanted; as it was where that makes no shape."""
    new = list(shape)
    match part:
        case Shape():
            return tuple(wanted)
        case Length():
            while len(new) < wanted:
                new.insert(0, style.size())
            del new[: len(new) - wanted]
        case Part(_, start, stop):
            new[start:stop] = wanted
        case Item(_, Literal(int() as index)) if -len(new) <= index < len(new):
            new[index] = wanted
    return tuple(new) if min(new, default=1) > 0 else shape
