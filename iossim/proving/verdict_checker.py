"""Basis of a verdict besides its rule: axioms, prover, refutation. A verdict is kept with a hash of these files, and is
trusted while the hash is the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Any

from iossim.base.user_files import write_atomically
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.verdict import Verification, place_of

#: The files, by package: of this one all but its command and what keeps verdicts.
CHECKER = {
    __package__: sorted(
        file.name
        for file in resources.files(__package__).iterdir()
        if file.name.endswith((".py", ".yaml")) and not file.name.startswith(("__", "outputs", "rules_", "verdict_"))
    ),
    "iossim.transforms.rewriting": ["expression.py", "instance.py", "rule.py"],
}


def found_by(kept: Mapping[str, Any]) -> bool:
    """True if the verdicts of a file (:func:`written`) were found by the installed files; KeyError for others."""
    return bool(kept["checker"] == checker_hash())


@cache
def checker_hash() -> str:
    """Hash of the installed files."""
    files = (resources.files(package) / name for package, names in CHECKER.items() for name in names)
    texts = "\0".join(file.read_text(encoding="utf-8") for file in files)
    return hashlib.sha256(texts.encode()).hexdigest()[:24]


def remember(rule: Rule, verification: Verification) -> None:
    """Keep a verdict in the user's cache, where that can be written."""
    with suppress(OSError):
        write_atomically(place_of(rule), written([(rule, verification)]))


def written(verdicts: Iterable[tuple[Rule, Verification]]) -> str:
    """Verdicts on rules as the text of a file."""
    by_hash = {rule.hash: {"rule": rule.name, **verification.to_json()} for rule, verification in verdicts}
    return json.dumps({"checker": checker_hash(), "verdicts": by_hash}, indent=1) + "\n"
