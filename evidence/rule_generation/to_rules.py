"""Equations written as rules: one for each direction in which no input appears from nowhere.

Attributes that the templates fix and the equation does not need become variables: the axis of concats and splits, the
strides, padding and dilation of convolutions. Each is tested with other values. Constraints of templates on operands
become conditions. Verification decides whether a rule holds at all shapes that these allow, and finds the missing
conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from evidence.rule_generation.equations import TEMPLATE, Apply, Equation, Outputs, Term, inputs, ops, text
from evidence.rule_generation.vocabulary import OPERANDS
from iossim.proving.refute import compare
from iossim.transforms.rewriting.expression import Expression, Item, Literal, Shape, Variable
from iossim.transforms.rewriting.expression import Sequence as TupleOf
from iossim.transforms.rewriting.instance import NotMadeError, place
from iossim.transforms.rewriting.rule import PatternOp, Rule

#: Attributes of a convolution that may become variables, and the tested values.
_GEOMETRY = {"strides": "s", "pads": "p", "dilations": "d"}
_GEOMETRIES: tuple[dict[str, Any], ...] = (
    {"s": (1, 1), "p": (1, 1, 1, 1), "d": (1, 1)},
    {"s": (2, 1), "p": (0, 0, 0, 0), "d": (1, 1)},
    {"s": (2, 2), "p": (2, 0, 1, 1), "d": (1, 1)},
    {"s": (1, 1), "p": (2, 2, 2, 2), "d": (2, 2)},
)
_AXIS = "axis"
#: Ops that map matrices to matrices.
_MATRICES = frozenset({"matmul", "transpose"})
#: Each convolution of a source has its own number of groups: g0, g1, ...
_GROUPS = "g"


def to_rules(equations: Iterable[Equation], origin: str) -> tuple[Rule, ...]:
    """Rules from equations, in their order, each once; ``gen-007-back`` is ``gen-007`` reversed."""
    found: dict[str, Rule] = {}
    count = 0
    for equation in equations:
        rules = [rule for rule in _both_ways(equation, origin) if rule.hash not in found]
        for turn, rule in enumerate(rules):
            found[rule.hash] = replace(rule, name=f"gen-{count:03d}{'-back' if turn else ''}")
        count += bool(rules)
    return tuple(found.values())


def _both_ways(equation: Equation, origin: str) -> Iterator[Rule]:
    """The larger side is the first source."""
    forms = set()
    for source, target in (equation.sides, equation.sides[::-1]):
        if any(isinstance(term, str) for term in source) or not set(inputs(target)) <= set(inputs(source)):
            continue
        form = min(map(str, Equation(source, target, equation.shapes).namings()))
        if form not in forms:
            forms.add(form)
            yield _Writer(equation, source, target, origin).most_general()


@dataclass(frozen=True)
class _Writer:
    equation: Equation
    source: Outputs
    target: Outputs
    origin: str

    def most_general(self) -> Rule:
        variables: dict[str, str] = {}
        used = [TEMPLATE[op.template] for op in ops((*self.source, *self.target))]
        here = [TEMPLATE[op.template] for op in ops(self.source)]
        if len({each.axis for each in used} - {None}) == 1 and any(each.axis is not None for each in here):
            ranks = [len(shape) for shape in self.equation.shapes.values() if shape]
            axes = [{_AXIS: axis} for axis in range(min(ranks))]
            if self._holds(variables | {_AXIS: _AXIS}, axes):
                variables[_AXIS] = _AXIS
        if any(each.kind == "conv" for each in here) and self._holds(
            variables | _GEOMETRY, [geometry | dict.fromkeys(variables, 0) for geometry in _GEOMETRIES]
        ):
            variables |= _GEOMETRY
        return self._rule(variables)

    def _holds(self, variables: Mapping[str, str], values: Sequence[Mapping[str, Any]]) -> bool:
        """True where the rule holds for all possible values, more than one, of its attribute variables."""
        rule = self._rule(variables)
        shapes = dict(self.equation.shapes)
        first = next(shape for shape in shapes.values() if shape)
        alike = {name: first if shape else () for name, shape in shapes.items()}
        values_of = (value for op in rule.source for _, value in op.attributes)
        bound = dict.fromkeys(value.name for value in values_of if isinstance(value, Variable))
        groups = [name for name in bound if name.startswith(_GROUPS)]
        taken = set()
        for number, value in enumerate(values):
            for counts in product((1, 2, 4), repeat=len(groups)):
                for at in (shapes, alike):
                    attributes = {**value, **dict(zip(groups, counts, strict=True))}
                    try:
                        placed = place(rule, attributes, {name: at[name] for name in rule.inputs})
                    except NotMadeError:
                        continue
                    if compare(placed, 0) is not None:
                        return False
                    taken.add(number)
        return len(taken) > 1

    def _rule(self, variables: Mapping[str, str]) -> Rule:
        """The rule with its attribute variables; other attributes have the values of their templates."""
        names: dict[Term, str] = {name: name for name in self.equation.inputs}
        conditions: dict[Expression, None] = {}
        source = tuple(self._ops(self.source, "s", names, conditions, variables))
        target_names: dict[Term, str] = {name: name for name in self.equation.inputs}
        target = tuple(self._ops(self.target, "t", target_names, conditions, variables))
        pairs = tuple((names[one], target_names[other]) for one, other in zip(self.source, self.target, strict=True))
        return Rule("generated", source, target, pairs, tuple(conditions), origin=self.origin)

    def _ops(
        self,
        outputs: Outputs,
        side: str,
        names: dict[Term, str],
        conditions: dict[Expression, None],
        variables: Mapping[str, str],
    ) -> Iterator[PatternOp]:
        """Ops of one side in order; ``names`` receives those of their tensors, ``conditions`` their requirements on
        operands.
        """
        convolutions = 0
        implied: set[str] = set()
        for index, op in enumerate(ops(outputs)):
            template = TEMPLATE[op.template]
            operands = tuple(names[operand] for operand in op.operands)
            of = dict(zip(OPERANDS, operands, strict=False))
            several = tuple(f"{side}{index}_{output}" for output in range(template.outputs))
            made = several if template.outputs > 1 else (f"{side}{index}",)
            names |= {op._replace(output=output): name for output, name in enumerate(made)}
            attributes = {name: _with_tensors(value, of) for name, value in template.attributes}
            if template.kind == "split":
                assert template.axis is not None
                sizes = _sizes(op.operands[0], template.axis, names, variables)
                assert sizes is not None, f"{text(op)} splits what no concat put together"
                attributes["sizes"] = sizes
            if template.axis is not None and _AXIS in variables:
                attributes["axis"] = Variable(_AXIS)
            if template.kind == "conv":
                attributes |= {name: Variable(_GEOMETRY[name]) for name in _GEOMETRY if name in variables}
                if side == "s":  # any number of groups that the op has
                    attributes["groups"] = Variable(f"{_GROUPS}{convolutions}")
                convolutions += 1
            if side == "s" or all(isinstance(operand, str) for operand in op.operands):
                asked = (_with_tensors(condition, of) for condition in template.conditions)
                conditions |= dict.fromkeys(each for each in asked if str(each) not in implied)
            if template.kind in _MATRICES:
                implied |= {f"len({name}.shape) == 2" for name in made}
            yield PatternOp(template.kind, operands, made, tuple(attributes.items()))


def _sizes(term: Term, axis: int, names: Mapping[Term, str], variables: Mapping[str, str]) -> Expression | None:
    """Sizes along an axis of the pieces that a concat joined, followed through ops that keep them separate.

    They are followed as :meth:`Template.apply` does for the types of terms. None if there are no pieces.
    """
    if not isinstance(term, Apply):
        return None
    template, operands = TEMPLATE[term.template], term.operands
    if template.axis == axis:
        at = Variable(_AXIS) if _AXIS in variables else Literal(axis)
        return (
            TupleOf(tuple(Item(Shape(names[operand]), at) for operand in operands))
            if template.kind == "concat"
            else None
        )
    match template.kind:
        case "conv":
            return _sizes(operands[axis], 0, names, variables)
        case "matmul":
            return _sizes(operands[axis], axis, names, variables)
        case "transpose":
            return _sizes(operands[0], 1 - axis, names, variables)
    return next((found for each in operands if (found := _sizes(each, axis, names, variables)) is not None), None)


def _with_tensors(expression: Expression, names: Mapping[str, str]) -> Expression:
    if isinstance(expression, Shape):
        return Shape(names[expression.tensor])
    changed: dict[str, Any] = {}
    for each in fields(expression):  # type: ignore[arg-type]
        value = getattr(expression, each.name)
        if isinstance(value, Expression):
            changed[each.name] = _with_tensors(value, names)
        elif isinstance(value, tuple):
            changed[each.name] = tuple(_with_tensors(item, names) for item in value)
    return replace(expression, **changed) if changed else expression  # type: ignore[type-var]
