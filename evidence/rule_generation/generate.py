"""Generation of rules from a vocabulary alone: enumerated, matched, pruned and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from evidence.rule_generation.candidates import equation, match
from evidence.rule_generation.derivation import Derivations
from evidence.rule_generation.enumeration import enumerate_terms
from evidence.rule_generation.equations import Equation, generalised, holds
from evidence.rule_generation.to_rules import to_rules
from evidence.rule_generation.vocabulary import Vocabulary, describe
from iossim.transforms.rewriting.rule import Rule

#: Called with a label of the stage that starts; the result is called with the finished and the total work.
Stages = Callable[[str], Callable[[int, int], None]]


@dataclass(frozen=True)
class Counts:
    """Number of candidates left by each stage, in order."""

    graphs: int  #: enumerated
    hits: int  #: pairs with equal fingerprints
    renamed: int  # that differ in more than the names of inputs of one shape
    shapes: int  # that differ in more than shapes
    canonical: int  # that differ in more than names, commuting operands, and order of the sides
    equal: int  #: that are equal for other inputs too
    equations: int  # that do not follow from smaller ones, after common subgraphs became inputs
    rules: int  # directions of those in which no input appears from nowhere

    def to_json(self) -> dict[str, int]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class Generated:
    """Rules in canonical order, their equations, and the counts of generation."""

    rules: tuple[Rule, ...]
    equations: tuple[Equation, ...]
    counts: Counts


def generate(
    vocabulary: Vocabulary, size: int, seed: int = 0, stages: Stages = lambda label: lambda done, total: None
) -> Generated:
    """Rules between graphs of up to ``size`` ops; ``seed`` draws the inputs that distinguish graphs."""
    terms = enumerate_terms(vocabulary, size, seed, stages("enumerate"))
    matched = match(terms)
    progress = stages("compare")
    named: dict[str, Equation] = {}
    for done, pair in enumerate(matched.all_pairs()):
        found = equation(terms, pair).named_by_appearance()
        named.setdefault(str(found), found)
        progress(done + 1, matched.renamed)
    progress = stages("name")
    canonical: dict[str, Equation] = {}
    for done, each in enumerate(named.values()):
        found = each.canonical()
        canonical.setdefault(str(found), found)
        progress(done + 1, len(named))
    progress = stages("prune")
    known = Derivations()
    kept: list[Equation] = []
    equal = len(canonical)
    for done, each in enumerate(sorted(canonical.values(), key=lambda each: each.order)):
        progress(done + 1, len(canonical))
        if known.follows(each.left, each.right, each.shapes):
            continue
        if not holds(each, seed + 1):
            equal -= 1
            continue
        general = generalised(each).canonical()
        if str(general) != str(each) and known.follows(general.left, general.right, general.shapes):
            # The search is one step too short for it: the general equation is known, and this is an instance of it.
            general = each
        known.add(general)
        kept.append(general)
    kept.sort(key=lambda each: each.order)
    rules = to_rules(kept, f"generated from {describe(vocabulary.inputs)}")
    counts = Counts(
        matched.graphs, matched.hits, matched.renamed, len(named), len(canonical), equal, len(kept), len(rules)
    )
    return Generated(rules, tuple(kept), counts)
