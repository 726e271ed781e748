"""Generation of rules from a vocabulary alone: enumerated, matched, pruned and written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evidence.rule_generation.candidates import equation, match
from evidence.rule_generation.derivation import Derivations
from evidence.rule_generation.enumeration import enumerate_terms
from evidence.rule_generation.equations import Equation, generalised, holds
from evidence.rule_generation.to_rules import to_rules
from evidence.rule_generation.vocabulary import Vocabulary, describe
from iossim.base.errors import Progress, StartProgress, silent
from iossim.transforms.rewriting.rule import Rule

#: The stages of generation, by the name of the count of candidates that each leaves.
STAGES = {
    "graphs": "enumeration: graphs",
    "hits": "matching: pairs with equal fingerprints",
    "renamed": "renaming of inputs",
    "shapes": "forgetting shapes",
    "canonical": "one order of operands and sides",
    "equal": "other inputs",
    "equations": "removing consequences of smaller ones, and common subgraphs",
    "rules": "rules, by direction",
}


@dataclass(frozen=True)
class Generated:
    """Rules in canonical order, their equations, and the number of candidates left by each of :data:`STAGES`."""

    rules: tuple[Rule, ...]
    equations: tuple[Equation, ...]
    counts: dict[str, int]


def generate(vocabulary: Vocabulary, size: int, seed: int = 0, stages: StartProgress = silent) -> Generated:
    """Rules between graphs of up to ``size`` ops; ``seed`` draws the inputs that distinguish graphs."""
    terms = enumerate_terms(vocabulary, size, seed, stages("enumerate"))
    matched = match(terms)
    found = (equation(terms, pair).named_by_appearance() for pair in matched.all_pairs())
    named = _each_once(found, matched.renamed, stages("compare"))
    canonical = _each_once((each.canonical() for each in named), len(named), stages("name"))
    progress = stages("prune")
    known = Derivations()
    kept: list[Equation] = []
    equal = len(canonical)
    for done, each in enumerate(sorted(canonical, key=lambda each: each.order)):
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
    left = matched.graphs, matched.hits, matched.renamed, len(named), len(canonical), equal, len(kept), len(rules)
    return Generated(rules, tuple(kept), dict(zip(STAGES, left, strict=True)))


def _each_once(equations: Iterable[Equation], count: int, progress: Progress) -> list[Equation]:
    """The first of the equations with each text."""
    found: dict[str, Equation] = {}
    for done, each in enumerate(equations):
        found.setdefault(str(each), each)
        progress(done + 1, count)
    return list(found.values())
