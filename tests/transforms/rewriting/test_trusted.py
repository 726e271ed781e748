"""Rules are used under the conditions of their proof, and only if there is one, unless asked."""

from __future__ import annotations

import pytest

from iossim.transforms.rewriting import verdict as module
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_sets import rule_set
from iossim.transforms.rewriting.verdict import Verdict, Verification, trusted


def test_only_proved_rules_are_used_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = rule_set("metaflow")[8:12]
    proved, refuted, unknown, never = rules
    verdicts = {
        proved.hash: Verification(Verdict.PROVED, "", conditions=("w1.shape[0] == w2.shape[0]",)),
        refuted.hash: Verification(Verdict.REFUTED, ""),
        unknown.hash: Verification(Verdict.UNKNOWN, ""),
    }

    def recall(rule: Rule) -> Verification | None:
        return verdicts.get(rule.hash)

    monkeypatch.setattr(module, "recall", recall)
    used, left_out = trusted(rules)
    assert [rule.name for rule in used] == [proved.name]
    assert len(used[0].conditions) == len(proved.conditions) + 1
    assert left_out == (refuted, unknown, never)
    used, left_out = trusted(rules, unproved=True)
    assert used[1:] == (unknown, never)
    assert left_out == (refuted,)
