"""Which rules graphs are rewritten by: those that are proved, under the conditions of their proof."""

from __future__ import annotations

from collections.abc import Iterable

from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.verdict import Verdict, recall


def trusted(rules: Iterable[Rule], unproved: bool = False) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """The rules that may be used, and those that are left out.

    A rule with a verdict is used under the conditions that were found besides its own. With ``unproved`` rules that are unknown, or were
    never verified, are used as they are; one that is refuted never is.
    """
    used: list[Rule] = []
    left_out: list[Rule] = []
    for rule in rules:
        known = recall(rule)
        if known is not None and known.verdict is Verdict.PROVED:
            used.append(known.restricted(rule))
        elif unproved and (known is None or known.verdict is Verdict.UNKNOWN):
            used.append(rule)
        else:
            left_out.append(rule)
    return tuple(used), tuple(left_out)
