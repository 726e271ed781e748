"""Basis of a verdict besides its rule: axioms, prover, refutation. A verdict is kept with a hash of these files, and is
trusted while the hash is the same. Comments and docstrings do not count.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
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
    """Whether the verdicts of a file (:func:`written`) were found by what is installed; raises KeyError for others."""
    return bool(kept["text"] == checker_text_hash() or kept["checker"] == checker_hash())


@cache
def checker_hash() -> str:
    """Hash of the meaning (:func:`checker_meaning`) of the installed files."""
    return _hash(checker_meaning(name, text) for name, text in _checker())


@cache
def checker_text_hash() -> str:
    """Hash of the text of the same files: quicker, and if it is equal, so is :func:`checker_hash`."""
    return _hash(text for _, text in _checker())


def _checker() -> Iterator[tuple[str, str]]:
    files = ((name, resources.files(package) / name) for package, names in CHECKER.items() for name in names)
    return ((name, file.read_text(encoding="utf-8")) for name, file in files)


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


def checker_meaning(name: str, text: str) -> str:
    """Content of a file without comments, docstrings and layout; the same in every version of Python."""
    if not name.endswith(".py"):
        return "\n".join(line for line in text.splitlines() if line and not line.startswith("#"))
    return repr(_meaning(ast.parse(text)))


def _meaning(node: Any) -> Any:
    """A part of a syntax tree: its fields but for empty ones, which come and go with versions."""
    match node:
        case list():
            return [_meaning(each) for each in node if not _is_remark(each)]
        case ast.AST():
            fields = ((name, getattr(node, name, None)) for name in node._fields)
            given = [(name, _meaning(value)) for name, value in fields if value is not None and value != []]
            return type(node).__name__, *given
    return node


def _is_remark(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def remember(rule: Rule, verification: Verification) -> None:
    """Keep a verdict in the user's cache, where that can be written."""
    with suppress(OSError):
        write_atomically(place_of(rule), written([(rule, verification)]))


def written(verdicts: Iterable[tuple[Rule, Verification]]) -> str:
    """Verdicts on rules as the text of a file."""
    by_hash = {rule.hash: {"rule": rule.name, **verification.to_json()} for rule, verification in verdicts}
    return json.dumps({"checker": checker_hash(), "text": checker_text_hash(), "verdicts": by_hash}, indent=1) + "\n"
