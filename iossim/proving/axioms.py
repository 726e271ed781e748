"""Axioms of proofs (``axioms.yaml``): equations between small patterns of ops that hold under their conditions.

An axiom is a :class:`~iossim.transforms.rewriting.rule.Rule`, read in both directions: where its conditions hold and
ops take their inputs, each of its outputs equals the tensor of the target that it is mapped to. Ops of any number of
inputs are written with two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import compress, product

from iossim.transforms.rewriting.expression import Expression, Part, Sequence, Shape, Spread, Variable, shapes_in
from iossim.transforms.rewriting.instance import Zeros, operands
from iossim.transforms.rewriting.rule import Filled, PatternOp, Rule, tensor_of
from iossim.transforms.rewriting.rule_file import read_rules


@dataclass(frozen=True)
class Pattern:
    """One output of an op as a tree: ``arguments`` are trees, names of inputs, constants; ``name`` is the tensor's."""

    name: str
    kind: str
    attributes: tuple[Expression, ...]
    arguments: tuple[Pattern | Filled | str, ...]
    output: int
    outputs: int


@dataclass(frozen=True)
class Equation:
    """One direction of an axiom: a term, and another one that is equal to it."""

    axiom: str
    left: Pattern
    right: Pattern | Filled | str
    conditions: tuple[Expression, ...]


@cache
def axioms() -> tuple[Rule, ...]:
    """The axioms as they are written."""
    file = resources.files("iossim.proving") / "axioms.yaml"
    return read_rules(file.read_text(encoding="utf-8"), file.name)


@cache
def equations() -> tuple[Equation, ...]:
    """The directions in which the axioms can be read: where matching the left side says all of the right one."""
    return tuple(equation for axiom in axioms() for equation in _equations(axiom))


def subsets(names: Iterable[str]) -> Iterator[frozenset[str]]:
    """All subsets of some names, such as the omitted ones of a rule's optional inputs; the empty one first."""
    ordered = sorted(names)
    for choice in product((False, True), repeat=len(ordered)):
        yield frozenset(compress(ordered, choice))


def _equations(axiom: Rule) -> Iterator[Equation]:
    for left_out in subsets(axiom.optional):
        values: dict[str, str | None] = {name: None if name in left_out else name for name in axiom.inputs}
        source = _tensors(axiom, axiom.source, values)
        target = _tensors(axiom, axiom.target, values)
        for made, by in axiom.outputs:
            a, b = source[made], target[by]
            for left, right in ((a, b), (b, a)):
                if isinstance(left, Pattern) and _says_all(left, right, axiom.conditions):
                    yield Equation(axiom.name, left, right, axiom.conditions)


def _tensors(
    axiom: Rule, ops: tuple[PatternOp, ...], values: Mapping[str, str | None]
) -> dict[str, Pattern | Filled | str]:
    found: dict[str, Pattern | Filled | str] = {name: name for name in axiom.inputs}
    found |= dict(axiom.filled)
    known: dict[str, str | tuple[str, ...] | None] = {**values, **{name: name for name, _ in axiom.filled}}
    for op in ops:
        reads = operands(op, known)
        known |= dict.fromkeys(op.outputs) if reads is None else {name: name for name in op.outputs}
        if reads is None:
            continue
        arguments = [_zeros(axiom, each.tensor) if isinstance(each, Zeros) else found[each] for each in reads]
        attributes = tuple(op.all_attributes.values())
        for index, name in enumerate(op.outputs):
            found[name] = Pattern(name, op.kind, attributes, tuple(arguments), index, len(op.outputs))
    return found


def spread(filled: Filled) -> str | None:
    """The attribute variable that a filled shape ends in, ``k`` in ``(n, n, *k)``: matching a constant binds it."""
    match filled.shape:
        case Sequence(items=(*_, Spread(of=Variable(name=name)))):
            return name
    return None


def _zeros(axiom: Rule, tensor: str) -> Filled:
    """Zeros that a bias which is left out stands for."""
    reader = next(op for op in axiom.source if tensor in map(tensor_of, op.inputs))
    return Filled(Part(Shape(tensor_of(reader.inputs[1])), 0, 1))


def _says_all(left: Pattern, right: Pattern | Filled | str, conditions: tuple[Expression, ...]) -> bool:
    tensors, attributes = set[str](), set[str]()
    for part in parts(left):
        if isinstance(part, str):
            tensors.add(part)
        elif isinstance(part, Pattern):
            tensors.add(part.name)
            attributes |= {value.name for value in part.attributes if isinstance(value, Variable)}
        elif (rest := spread(part)) is not None:
            attributes.add(rest)
    expressions = list(conditions)
    if not shapes_in(conditions) <= tensors:
        return False
    for side in (left, right):
        for part in parts(side):
            match part:
                case str() if part not in tensors:
                    return False
                case Filled(shape=shape):
                    expressions.append(shape)
                case Pattern():
                    expressions += part.attributes
                    tensors.add(part.name)
    read = {part.name for each in expressions for part in each.walk() if isinstance(part, Variable)}
    return read <= attributes and shapes_in(expressions) <= tensors


def parts(tree: Pattern | Filled | str) -> Iterator[Pattern | Filled | str]:
    """A tree and all inside it."""
    yield tree
    if isinstance(tree, Pattern):
        for argument in tree.arguments:
            yield from parts(argument)
