"""Both sides of a rule as terms of tensors whose shapes are known as far as its conditions tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_type_hints

import z3

from iossim.base.errors import IossimError
from iossim.ir.op import op_class
from iossim.proving.congruence import Congruence, Symbol, Term
from iossim.proving.symbolic import (
    Arithmetic,
    Claim,
    NotSymbolicError,
    Tuple,
    equal,
    everywhere,
    integer,
    is_integer,
    named_value,
    same,
)
from iossim.proving.symbolic_expressions import Evaluator
from iossim.proving.symbolic_types import Typed, always, typed
from iossim.transforms.rewriting.expression import Comparison, Shape, Variable, shapes_in
from iossim.transforms.rewriting.instance import Zeros, operands
from iossim.transforms.rewriting.rule import Filled, PatternOp, Rule, attribute_defaults, tensor_of

#: Ops of any number of inputs that can be applied to the first ones, and then to that result and the rest.
_FOLDED = frozenset({"add", "concat"})
#: Attributes that count axes; those of terms are counted from the front.
_AXIS = frozenset({"concat", "split"})


class VoidError(IossimError):
    """A rule that cannot be applied where all of this is left out."""


class Terms:
    """Terms of tensors, equal ones in one class, with shapes; attributes are numbered, equal ones by one number."""

    def __init__(self) -> None:
        self.arithmetic = Arithmetic()
        self.congruence = Congruence()
        #: The values of attributes by their numbers, the shapes of tensors by their classes.
        self.values: list[Any] = []
        self.shapes: dict[int, Tuple] = {}

    def intern(self, value: Any) -> int:
        """Number of a value of an attribute; values that are known to be equal share one."""
        for number, other in enumerate(self.values):
            if value is other:
                return number
        for number, other in enumerate(self.values):
            if self._are_equal(value, other):
                return number
        self.values.append(value)
        return len(self.values) - 1

    def equalities(self) -> list[Claim]:
        """Equalities of attributes that turned out to be equal after they were numbered."""
        values = self.values
        pairs = ((a, b) for index, b in enumerate(values) for a in values[:index] if self._are_equal(a, b))
        return [equal(a, b, self.arithmetic) for a, b in pairs]

    def _are_equal(self, a: Any, b: Any) -> bool:
        if isinstance(a, Tuple) != isinstance(b, Tuple) or is_integer(a) != is_integer(b):
            return False
        try:
            return self.arithmetic.knows(equal(a, b, self.arithmetic))
        except NotSymbolicError:
            return False

    def tensor(self, name: str, shape: Tuple) -> int:
        """A tensor of which nothing is known but its shape."""
        return self._put(Term(Symbol(f"tensor {name}"), ()), shape)

    def constant(self, filled: Filled, shape: Tuple) -> int:
        """A constant that is filled, of a shape that it is assumed to have."""
        self.arithmetic.assume(_positive(shape))
        return self._put(self.filled(filled, shape), shape)

    def filled(self, filled: Filled, shape: Tuple) -> Term:
        """The term of a constant."""
        number = self.intern(shape)
        if filled.identity:
            return Term(Symbol("filled identity", (number,)), ())
        return Term(Symbol("filled", (number, self.intern(float(filled.value)))), ())

    def op(
        self, kind: str, attributes: Sequence[Any], arguments: Sequence[int], outputs: int, assume: str = ""
    ) -> tuple[int, ...] | None:
        """The outputs of an op. None where it is not known to take these inputs. That it does is assumed of an op
        that the rule has; ``assume`` says which, and names the shapes of which nothing is known.
        """
        if kind in _FOLDED and outputs == 1:
            if len(arguments) == 1:
                return tuple(arguments)
            if len(arguments) > 2:
                front = self.op(kind, attributes, arguments[:-1], 1, assume)
                return None if front is None else self.op(kind, attributes, (front[0], arguments[-1]), 1, assume)
        arguments = tuple(map(self.congruence.find, arguments))
        numbers = self.attributes(kind, attributes, arguments)
        terms = [Term(Symbol(kind, numbers, output, outputs), arguments) for output in range(outputs)]
        found = [self.congruence.get(term) for term in terms]
        if all(number is not None for number in found):
            return tuple(number for number in found if number is not None)
        named = dict(zip(attribute_defaults(kind), map(self.values.__getitem__, numbers), strict=True))
        shapes = [self.shapes[argument] for argument in arguments]
        if assume and shapes:
            self.arithmetic.assume(*always(kind, named, shapes[0], outputs))
        try:
            fits = typed(kind, named, shapes, self.arithmetic)
        except NotSymbolicError:
            fits = None
        if fits is None or len(fits.outputs) != outputs:
            if not assume:
                return None
            fits = Typed((), tuple(Tuple.unknown(f"{assume}.{output}") for output in range(outputs)))
        if assume:
            self.arithmetic.assume(*fits.needs, *map(_positive, fits.outputs))
        elif not all(self.arithmetic.knows(claim) for claim in fits.needs):
            return None
        return tuple(self._put(term, shape) for term, shape in zip(terms, fits.outputs, strict=True))

    def attributes(self, kind: str, values: Sequence[Any], arguments: Sequence[int]) -> tuple[int, ...]:
        """The numbers of the attributes of an op that reads these classes."""
        if kind in _AXIS:
            values = [self._from_front(values[0], self._rank(arguments[0])), *values[1:]]
        if kind == "slice" and values[2].items is not None:
            axes = Tuple.of([integer(self._from_front(axis, self._rank(arguments[0]))) for axis in values[2].items])
            values = [*values[:2], axes, values[3]]
        return tuple(map(self.intern, values))

    def _rank(self, number: int) -> Any:
        return self.shapes[self.congruence.find(number)].length

    def _from_front(self, axis: Any, rank: Any) -> Any:
        axis = z3.simplify(integer(axis))
        if z3.is_int_value(axis):
            return axis if axis.as_long() >= 0 else z3.simplify(axis + rank)
        return axis if self.arithmetic.knows(axis >= 0) else z3.If(axis < 0, axis + rank, axis)

    def _put(self, term: Term, shape: Tuple) -> int:
        number = self.congruence.add(term)
        self.shapes.setdefault(number, shape)
        return number


def _positive(shape: Tuple) -> Claim:
    """Claim that no dimension is empty."""
    return everywhere(shape, lambda place: integer(shape.at(place)) >= 1)


class Sides:
    """The two sides of a rule, some of its optional inputs left out, each ``*rest`` empty or not.

    It is assumed that the rule's conditions hold, that the ops of both sides take their inputs, and that what is
    replaced has the shape of what replaces it: a rule is applied nowhere else. ``outputs`` are the pairs of classes
    to be shown equal. ``lengths`` of tuples and ``known`` equalities are what was found of the same sides before.
    """

    def __init__(
        self,
        rule: Rule,
        left_out: frozenset[str],
        empty: frozenset[str],
        lengths: Mapping[str, int],
        known: Sequence[Claim],
    ) -> None:
        self.terms = Terms()
        self.terms.arithmetic.assume(*known)
        self.lengths: dict[str, Any] = {}
        self._rule, self._known_lengths = rule, lengths
        self._attributes: dict[str, Any] = {}
        self._tensors: dict[str, int] = {}
        self._shapes: dict[str, Tuple] = {}
        self._rests: dict[tuple[str, str, tuple[int, ...]], int] = {}
        self._conditions = list(rule.conditions)
        # Inputs that are said to have one shape are given one.
        equal = [each for each in rule.conditions if isinstance(each, Comparison) and each.sign == "=="]
        twins = [shapes_in([each]) for each in equal if isinstance(each.left, Shape) and isinstance(each.right, Shape)]
        values: dict[str, str | tuple[str, ...] | None] = {}
        for name in rule.inputs:
            if name in rule.rests:
                values[name] = () if name in empty else (name,)
                continue
            values[name] = None if name in left_out else name
            if name not in left_out:
                twin = next((other for other in self._shapes if {name, other} in twins), None)
                shape = self._unknown(name) if twin is None else self._shapes[twin]
                self._tensors[name], self._shapes[name] = self.terms.tensor(name, shape), shape
                self.terms.arithmetic.assume(_positive(shape))
        self._bind_attributes()
        self._assume_conditions()
        self._add_ops("source", rule.source, values)
        source = [self._tensors.get(name) for name, _ in rule.outputs]
        for name, filled in rule.filled:
            evaluator = self._evaluator()
            shape = evaluator.value(filled.shape)
            if not isinstance(shape, Tuple):
                raise NotSymbolicError(f"the shape of {filled} is not a tuple")
            self.terms.arithmetic.assume(*evaluator.needed)
            values[name], self._tensors[name], self._shapes[name] = name, self.terms.constant(filled, shape), shape
        self._tensors = {name: number for name, number in self._tensors.items() if name not in rule.made_by_source}
        self._add_ops("target", rule.target, values)
        if self._conditions:
            raise NotSymbolicError(f"condition {self._conditions[0]} reads a shape that is left out")
        target = [self._tensors.get(name) for _, name in rule.outputs]
        if None in source or None in target:
            raise NotSymbolicError("an output is left out")
        self.outputs: list[tuple[int, int]] = list(zip(source, target, strict=True))  # type: ignore[arg-type]
        for a, b in self.outputs:
            self.terms.arithmetic.assume(same(self.terms.shapes[a], self.terms.shapes[b]))

    def _unknown(self, name: str) -> Tuple:
        found = Tuple.unknown(name, self._known_lengths.get(name))
        self.lengths[name] = found.length
        self.terms.arithmetic.assume(Claim(integer(found.length) >= 0))
        return found

    def _bind_attributes(self) -> None:
        for op in self._rule.source:
            hints = get_type_hints(op_class(op.kind))
            for name, value in op.attributes:
                if not isinstance(value, Variable) or value.name in self._attributes:
                    continue
                spelled = f"attribute {value.name}"
                if hints[name] is int:
                    self._attributes[value.name] = z3.Int(spelled)
                elif hints[name] == tuple[int, ...]:
                    self._attributes[value.name] = self._unknown(spelled)
                else:
                    self._attributes[value.name] = named_value(spelled)

    def _evaluator(self) -> Evaluator:
        def shape(name: str) -> Tuple:
            if name not in self._shapes:
                raise NotSymbolicError(f"the shape of {name!r} is asked for, which is left out or a *rest")
            return self._shapes[name]

        return Evaluator(self._attributes, shape, self.terms.arithmetic, assumes=True)

    def _assume_conditions(self) -> None:
        """Assume the conditions on shapes that are known by now."""
        waiting = []
        for condition in self._conditions:
            if shapes_in([condition]) <= set(self._shapes):
                evaluator = self._evaluator()
                claim = evaluator.claim(condition)
                self.terms.arithmetic.assume(*evaluator.needed, claim)
            else:
                waiting.append(condition)
        self._conditions = waiting

    def _add_ops(self, side: str, ops: Sequence[PatternOp], values: dict[str, str | tuple[str, ...] | None]) -> None:
        for index, op in enumerate(ops):
            reads = operands(op, values)
            if reads is None and side == "source":
                raise VoidError(f"{op} reads nothing")
            if reads is None:
                values.update(dict.fromkeys(op.outputs))
                continue
            evaluator = self._evaluator()
            attributes = list(self._attributes_of(op, evaluator))
            self.terms.arithmetic.assume(*evaluator.needed)
            arguments = [self._argument(op, f"{side} op {index}", each, attributes) for each in reads]
            made = self.terms.op(op.kind, attributes, arguments, len(op.outputs), f"{side} op {index}")
            assert made is not None
            for name, number in zip(op.outputs, made, strict=True):
                values[name], self._tensors[name] = name, number
                self._shapes[name] = self.terms.shapes[number]
            self._assume_conditions()

    @staticmethod
    def _attributes_of(op: PatternOp, evaluator: Evaluator) -> Iterator[Any]:
        every, given, hints = op.all_attributes, dict(op.attributes), get_type_hints(op_class(op.kind))
        for name in attribute_defaults(op.kind):
            if name not in every:
                raise NotSymbolicError(f"{op} lacks its attribute {name!r}")
            value, wanted = evaluator.value(every[name]), hints[name]
            is_other = (wanted is int) != is_integer(value) or (wanted == tuple[int, ...]) != isinstance(value, Tuple)
            if name in given and is_other:
                raise NotSymbolicError(f"{op}: its {name} is of another type")
            yield value

    def _argument(self, op: PatternOp, place: str, read: str | Zeros, attributes: Sequence[Any]) -> int:
        if isinstance(read, Zeros):
            return self._zeros(read.tensor)
        if read not in self._rule.rests:
            return self._tensors[read]
        # Any number of tensors, at least one, are their sum or what they are when joined: one tensor for each such use.
        if op.kind not in _FOLDED:
            raise NotSymbolicError(f"{op.kind} of *{read}, of which proofs know only sums and concatenations")
        use = read, op.kind, tuple(map(self.terms.intern, attributes))
        if use not in self._rests:
            name = f"*{read} of {place}"
            shape = self._unknown(name)
            self._rests[use] = self.terms.tensor(name, shape)
            self.terms.arithmetic.assume(_positive(shape))
        return self._rests[use]

    def _zeros(self, tensor: str) -> int:
        reader = next((op for op in self._rule.source if tensor in map(tensor_of, op.inputs)), None)
        if reader is None or reader.kind == "layer_norm" or reader.outputs[0] not in self._shapes:
            raise NotSymbolicError(f"{tensor} is left out, and nothing says the shape of the zeros it stands for")
        channels = 3 if reader.kind == "conv_nhwc" else 1
        shape = Tuple.of([integer(self._shapes[reader.outputs[0]].at(channels))])
        return self.terms.constant(Filled(Variable("zeros")), shape)
