"""Rules for tests of matching and application."""

from __future__ import annotations

from pathlib import Path

from iossim.transforms.rewriting.rule_file import read_rules
from iossim.transforms.rewriting.rule_sets import rule_set

_FILE = Path(__file__).with_name("place_rules.yaml")
RULES = read_rules(_FILE.read_text(encoding="utf-8"), _FILE.name)
RULE = {rule.name: rule for rule in RULES}
SHIPPED = (*rule_set("metaflow"), *rule_set("simplify"), *rule_set("layouts"))
