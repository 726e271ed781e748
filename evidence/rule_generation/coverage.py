"""Coverage of rules of another origin: whether they are among the generated ones, or follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import product

from evidence.rule_generation.derivation import Derivations
from evidence.rule_generation.equations import TEMPLATE, Equation, Evaluation, Outputs, Term, apply, inputs
from evidence.rule_generation.vocabulary import Shape
from iossim.transforms.rewriting.expression import Literal
from iossim.transforms.rewriting.rule import PatternOp, Rule


class Coverage(StrEnum):
    """Relation of generated equations to a rule."""

    FOUND = "found"  # the rule is one of them
    IDENTITY = "identity"  # both sides are one graph up to an op's name, or commuting operands
    DERIVED = "derived"  #: it follows from them in two steps
    WRONG = "wrong"  # its sides compute the same for no shapes of the vocabulary
    MISSING = "missing"
    OUT_OF_REACH = "out of reach"  # one of its ops has no template


#: Coverages of rules that were found again, or follow from found ones.
AMONG_FOUND = frozenset({Coverage.FOUND, Coverage.IDENTITY, Coverage.DERIVED})


def coverage(rules: Iterable[Rule], equations: Iterable[Equation], shapes: Iterable[Shape]) -> dict[str, Coverage]:
    """Coverage of each rule by name. ``shapes`` are those that its inputs may have, tried in order."""
    known = Derivations()
    texts = set()
    for each in equations:
        known.add(each)
        texts.add(str(each.canonical()))
    tried = tuple(dict.fromkeys(shapes))
    return {rule.name: _coverage(rule, known, texts, tried) for rule in rules}


def _coverage(rule: Rule, known: Derivations, texts: set[str], shapes: tuple[Shape, ...]) -> Coverage:
    sides = _sides(rule)
    if sides is None:
        return Coverage.OUT_OF_REACH
    left, right = sides
    if left == right:
        return Coverage.IDENTITY
    at = _shapes(left, right, shapes)
    if at is None:
        return Coverage.WRONG
    if str(Equation(left, right, at).canonical()) in texts:
        return Coverage.FOUND
    return Coverage.DERIVED if known.follows(left, right, at) else Coverage.MISSING


def _shapes(left: Outputs, right: Outputs, shapes: tuple[Shape, ...]) -> Mapping[str, Shape] | None:
    names = inputs((*left, *right))
    for chosen in product(shapes, repeat=len(names)):
        at = dict(zip(names, chosen, strict=True))
        if Evaluation(at).agree(left, right):
            return at
    return None


def _sides(rule: Rule) -> tuple[Outputs, Outputs] | None:
    """Sides of a rule as terms; None if an op has no template."""
    found = []
    for ops, outputs in (
        (rule.source, [one for one, _ in rule.outputs]),
        (rule.target, [other for _, other in rule.outputs]),
    ):
        terms: dict[str, Term] = {name: name for name in rule.inputs}
        for op in ops:
            template = _template(op)
            if template is None:
                return None
            for place, output in enumerate(op.outputs):
                terms[output] = apply(template, [terms[name] for name in op.inputs], place)
        found.append(tuple(terms[name] for name in outputs))
    return found[0], found[1]


def _template(op: PatternOp) -> str | None:
    """Template of an op. Kernels of a convolution are those of its weight, with the padding that keeps its size."""
    attributes = dict(op.attributes)
    axis = attributes.get("axis")
    for name, template in TEMPLATE.items():
        same_axis = template.axis is None or axis == Literal(template.axis)
        if template.kind == op.kind and template.operands == len(op.inputs) and same_axis and name != "scale":
            return name
    return None
