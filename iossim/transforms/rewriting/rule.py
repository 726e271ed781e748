"""Substitution rules: a source pattern of ops, a target pattern that computes the same, and when that holds.

A pattern is a small graph in single assignment: ops over named tensors. A tensor that no op of the source makes is an
input of the rule; it stands for any value of the graph. Names have the same meaning in both patterns, so inputs and
source attributes may be read in the target.

Two notations stand for what would otherwise take many rules:

- ``b?`` as an input may be left out (the bias of a convolution). Left out, it stands for zeros; the result of a
  target op all of whose inputs are left out is left out too.
- ``*rest`` as an input of an op that takes any number of tensors stands for any number of them, none included, in
  order. It is written with its star wherever it is read, and has no shape of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache, cached_property
from typing import Any

from iossim.base.errors import GraphError, IossimError, did_you_mean
from iossim.ir.op import op_class
from iossim.transforms.rewriting.expression import Expression, IsConstant, Shape, Variable, literal


class RuleError(IossimError):
    """A rule that is not well formed. ``place`` is where in the rule: ``("source", 1)`` is its second source op."""

    def __init__(self, message: str = "", place: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.place = place


@cache
def attribute_defaults(kind: str) -> dict[str, Any]:
    """Attributes of an op kind in order, with their defaults; :data:`dataclasses.MISSING` where there is none."""
    return {field.name: field.default for field in fields(op_class(kind))}


def is_optional(operand: str) -> bool:
    """True for an operand, as it is written in a rule, that may be left out."""
    return operand.endswith("?")


def is_rest(operand: str) -> bool:
    """True for an operand, as it is written in a rule, that stands for any number of tensors."""
    return operand.startswith("*")


def tensor_of(operand: str) -> str:
    """The name of the tensor that an operand stands for: without its mark."""
    return operand.removeprefix("*").removesuffix("?")


@dataclass(frozen=True, slots=True)
class PatternOp:
    """One op of a pattern. ``inputs`` are operands; attributes that are not given have the default of the op's class.

    A source attribute that is a variable alone binds it, where it stands first; any other expression must have the
    value that the op of the graph has. A target attribute says the value of the op that is made.
    """

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Expression], ...] = ()

    @property
    def all_attributes(self) -> dict[str, Expression]:
        """The attributes in the order of the op's class, with their defaults, but those that have neither."""
        every = attribute_defaults(self.kind) | dict(self.attributes)
        pairs = ((name, value) for name, value in every.items() if value is not MISSING)
        return {name: value if isinstance(value, Expression) else literal(value) for name, value in pairs}

    def __str__(self) -> str:
        given = [f"{name}={value}" for name, value in self.attributes]
        return f"{', '.join(self.outputs)} = {self.kind}({', '.join([*self.inputs, *given])})"


@dataclass(frozen=True, slots=True)
class Filled:
    """A constant that the target brings along: all elements ``value``, or the ``identity`` of a product or convolution.

    An identity of shape ``[C, C / groups, *kernel]`` is the convolution with ``groups`` that returns its input: 1 at
    the middle of each channel's own filter. Of shape ``[n, n]`` it is the unit matrix.
    """

    shape: Expression
    value: float = 0.0
    identity: bool = False

    def __str__(self) -> str:
        return f"filled(shape={self.shape}, {'identity=True' if self.identity else f'value={self.value!r}'})"


@dataclass(frozen=True)
class Rule:
    """``outputs`` maps each tensor of the source that is replaced to the tensor of the target that replaces it.

    ``conditions`` on attributes and shapes all have to hold. ``origin`` says where the rule comes from. The
    name does not enter :attr:`hash`, nor does the origin. Creating one checks that it is well formed, and raises
    RuleError; that both sides have the same shapes is for verification to say.
    """

    name: str
    source: tuple[PatternOp, ...]
    target: tuple[PatternOp, ...]
    outputs: tuple[tuple[str, str], ...]
    conditions: tuple[Expression, ...] = ()
    filled: tuple[tuple[str, Filled], ...] = ()
    origin: str = ""

    def __post_init__(self) -> None:
        if not self.source:
            raise self._error((), "its source has no op; give at least one")
        self._check_ops("source", self.source, set())
        known = set(self.inputs)
        for index, (name, _) in enumerate(self.filled):
            if name in known:
                raise self._error(("filled", index), f"filled {name!r} has the name of another; give it its own")
            known.add(name)
        made = self._check_ops("target", self.target, known)
        if not self.outputs:
            raise self._error(
                ("outputs",), "maps no outputs; say which tensor of the target replaces which of the source"
            )
        for source, target in self.outputs:
            where = ("outputs", source)
            if source not in self.made_by_source:
                known_outputs = did_you_mean(source, self.made_by_source)
                raise self._error(where, f"output {source!r} is made by no op of its source; {known_outputs}")
            if target not in (known | made) - self.rests:
                raise self._error(
                    where,
                    f"output {source!r} is replaced by {target!r}, which is not in its target; "
                    f"{did_you_mean(target, (known | made) - self.rests)}",
                )
        tensors = known | self.made_by_source | made
        for place, text, expression in self._expressions():
            self._check_names(place, text, expression, tensors)

    def _expressions(self) -> Iterator[tuple[tuple[str | int, ...], str, Expression]]:
        """All that the rule says of attributes and shapes: the place, what it is in words, the expression."""
        for side, ops in (("source", self.source), ("target", self.target)):
            for index, op in enumerate(ops):
                yield from (((side, index), f"{side} op {op}: {name}", value) for name, value in op.attributes)
        for index, condition in enumerate(self.conditions):
            yield ("conditions", index), "condition", condition
        for index, (name, filled) in enumerate(self.filled):
            yield ("filled", index), f"shape of filled {name!r}", filled.shape

    def _check_names(self, place: tuple[str | int, ...], what: str, expression: Expression, tensors: set[str]) -> None:
        bound = {value.name for op in self.source for _, value in op.attributes if isinstance(value, Variable)}
        for part in expression.walk():
            if isinstance(part, Variable) and part.name not in bound:
                remedy = did_you_mean(part.name, bound) if bound else "give it as an attribute of a source op"
                raise self._error(
                    place,
                    f"{what} {expression} reads the attribute {part.name!r}, which no op of its source binds; {remedy}",
                )
            read = tensors - self.rests if isinstance(part, Shape) else tensors
            if isinstance(part, Shape | IsConstant) and part.tensor not in read:
                remedy = did_you_mean(part.tensor, read)
                raise self._error(
                    place, f"{what} {expression} reads the tensor {part.tensor!r}, which is not in the rule; {remedy}"
                )

    def _check_ops(self, side: str, ops: tuple[PatternOp, ...], known: set[str]) -> set[str]:
        """The tensors that a pattern makes; the source may read what nothing makes."""
        made: set[str] = set()
        for index, op in enumerate(ops):
            place, where = (side, index), f"{side} op {op}"
            try:
                attributes = attribute_defaults(op.kind)
            except GraphError as error:
                raise self._error(place, f"{where}: {error}") from None
            for name, _ in op.attributes:
                if name not in attributes:
                    remedy = did_you_mean(name, attributes)
                    raise self._error(place, f"{where}: {op.kind} has no attribute {name!r}; {remedy}")
            for operand in op.inputs:
                tensor = tensor_of(operand)
                if is_rest(operand) != (tensor in self.rests):
                    spelled = tensor if is_rest(operand) else f"*{tensor}"
                    raise self._error(place, f"{where}: {operand!r} is elsewhere {spelled!r}; write both alike")
                if side == "target" and tensor not in known | made:
                    raise self._error(place, f"{where}: nothing makes {tensor!r}; {did_you_mean(tensor, known | made)}")
                if side == "source" and tensor in self.made_by_source - made:
                    raise self._error(place, f"{where}: {tensor!r} is made later; give the ops in order")
            for output in op.outputs:
                if output in made | known:
                    raise self._error(place, f"{where}: {output!r} is made twice; give each tensor a name of its own")
                made.add(output)
        return made

    def _error(self, place: tuple[str | int, ...], reason: str) -> RuleError:
        return RuleError(f"rule {self.name!r}: {reason}", place)

    @cached_property
    def made_by_source(self) -> frozenset[str]:
        return frozenset(output for op in self.source for output in op.outputs)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Tensors of the graph that the source reads, in the order in which it does."""
        operands = (tensor_of(operand) for op in self.source for operand in op.inputs)
        return tuple(dict.fromkeys(name for name in operands if name not in self.made_by_source))

    @cached_property
    def optional(self) -> frozenset[str]:
        """Inputs that may be left out."""
        return frozenset(tensor_of(each) for op in self.source for each in op.inputs if is_optional(each))

    @cached_property
    def rests(self) -> frozenset[str]:
        """Inputs that stand for any number of tensors, which are written ``*rest``."""
        return frozenset(tensor_of(each) for op in self.source for each in op.inputs if is_rest(each))

    def under(self, conditions: Iterable[Expression]) -> Rule:
        """The rule with further conditions."""
        return replace(self, conditions=tuple(dict.fromkeys((*self.conditions, *conditions))))

    @cached_property
    def hash(self) -> str:
        """Hash of all that the rule says but its name and origin; the same in every process."""
        parts = [
            *map(str, self.source),
            "=>",
            *map(str, self.target),
            *(f"{source}->{target}" for source, target in self.outputs),
            *sorted(map(str, self.conditions)),
            *(f"{name}: {filled}" for name, filled in self.filled),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]

    def __hash__(self) -> int:
        return hash(self.hash)

    def __str__(self) -> str:
        lines = [f"{self.name}:", *(f"  {op}" for op in self.source), "=>"]
        lines += [f"  {name} = {filled}" for name, filled in self.filled]
        lines += [f"  {op}" for op in self.target]
        lines += [f"  {source} -> {target}" for source, target in self.outputs]
        lines += [f"  if {condition}" for condition in self.conditions]
        return "\n".join(lines)
