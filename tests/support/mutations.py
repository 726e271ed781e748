"""Rules with one thing changed: an attribute, an input or an op of either side, or an output."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random

from iossim.base.errors import IossimError
from iossim.ir.op import op_class
from iossim.transforms.rewriting.expression import Arithmetic, Expression, Literal, Sequence, Shape, Variable
from iossim.transforms.rewriting.rule import PatternOp, Rule, tensor_of

#: Kinds that take the same inputs.
_ALIKE = [{"add", "mul", "matmul", "concat"}, {"relu", "sigmoid", "identity", "softmax"}, {"max_pool", "average_pool"}]


def mutated(rule: Rule, random: Random) -> Rule | None:
    """The rule with one thing changed; None where the change makes no rule, or none that is another."""
    side = random.choice(("source", "target"))
    ops: tuple[PatternOp, ...] = getattr(rule, side)
    if not ops:
        return None
    place = random.randrange(len(ops))
    change = random.choice((_other_attribute, _other_input, _other_kind, _other_output))
    try:
        if change is _other_output:
            changed = _other_output(rule, random)
        else:
            tensors = [*rule.inputs, *(name for op in ops[:place] for name in op.outputs)]
            changed = replace(rule, **{side: (*ops[:place], change(ops[place], tensors, random), *ops[place + 1 :])})
    except (IossimError, IndexError):
        return None
    return None if changed.hash == rule.hash else changed


def _other_attribute(op: PatternOp, tensors: list[str], random: Random) -> PatternOp:
    given = dict(op.attributes)
    name = random.choice([each.name for each in fields(op_class(op.kind))])
    default = next(each.default for each in fields(op_class(op.kind)) if each.name == name)
    before = given.get(name, Sequence(tuple(map(Literal, default))) if isinstance(default, tuple) else Literal(default))
    given[name] = _other_value(before, random)
    return replace(op, attributes=tuple(given.items()))


def _other_value(value: Expression, random: Random) -> Expression:
    match value:
        case Literal(bool() as truth):
            return Literal(not truth)
        case Literal(int() as number):
            return Literal(number + random.choice((-1, 1)))
        case Literal(float() as number):
            return Literal(number * 2 + 1)
        case Sequence(items):
            place = random.randrange(len(items))
            return Sequence((*items[:place], _other_value(items[place], random), *items[place + 1 :]))
        case Variable():
            return Literal(1)
        case Shape():
            return Literal(2)
    return Arithmetic(random.choice("+-"), value, Literal(1))


def _other_input(op: PatternOp, tensors: list[str], random: Random) -> PatternOp:
    inputs = list(op.inputs)
    place = random.randrange(len(inputs))
    if len(inputs) > 1 and random.random() < 0.4:
        other = random.randrange(len(inputs))
        inputs[place], inputs[other] = inputs[other], inputs[place]
    else:
        inputs[place] = random.choice([name for name in tensors if name != tensor_of(inputs[place])])
    return replace(op, inputs=tuple(inputs))


def _other_kind(op: PatternOp, tensors: list[str], random: Random) -> PatternOp:
    kinds = sorted(next(alike for alike in _ALIKE if op.kind in alike) - {op.kind}) if _has_alike(op.kind) else []
    kind = random.choice(kinds)
    known = {each.name for each in fields(op_class(kind))}
    return replace(op, kind=kind, attributes=tuple((name, value) for name, value in op.attributes if name in known))


def _has_alike(kind: str) -> bool:
    return any(kind in alike for alike in _ALIKE)


def _other_output(rule: Rule, random: Random) -> Rule:
    place = random.randrange(len(rule.outputs))
    made = [name for op in rule.target for name in op.outputs]
    source, target = rule.outputs[place]
    other = random.choice([name for name in (*made, *rule.inputs) if name != target])
    return replace(rule, outputs=(*rule.outputs[:place], (source, other), *rule.outputs[place + 1 :]))
