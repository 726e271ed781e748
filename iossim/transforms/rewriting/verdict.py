"""Verdicts on rules, and where they are kept: beside the rules that ship, and in the user's cache.

A verdict rests on the rule, and on what found it: axioms, prover, tries at refuting it. It is kept by the hash of the
rule, with one of all the rest, and trusted only while both are the same. Comments and docstrings of the rest do not
count.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from iossim.base.numbers import read_json
from iossim.base.user_files import own_folder, user_cache, write_atomically
from iossim.transforms.rewriting.expression import ExpressionError, parse_expression
from iossim.transforms.rewriting.refute import Counterexample
from iossim.transforms.rewriting.rule import Rule

#: What a verdict rests on besides the rule: these files of this package.
CHECKER = (
    "axioms.yaml",
    "axioms.py",
    "congruence.py",
    "expression.py",
    "instance.py",
    "proposals.py",
    "prover.py",
    "refute.py",
    "rule.py",
    "sampling.py",
    "symbolic.py",
    "symbolic_expressions.py",
    "symbolic_types.py",
    "terms.py",
    "verify.py",
)
#: Start of the reason where only the time limit ended a proof.
OUT_OF_TIME = "out of time"
_SHIPPED = "iossim.transforms.rewriting.rules"


class Verdict(StrEnum):
    """What is known of a rule."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verification:
    """The verdict on a rule. ``conditions`` are those that it lacked, as text; a proof is under these, too.

    ``counterexample`` is of the rule as it is written, without them. ``axioms`` are the names of those that a proof
    used, ``seconds`` what it all took.
    """

    verdict: Verdict
    reason: str
    conditions: tuple[str, ...] = ()
    counterexample: Counterexample | None = None
    axioms: tuple[str, ...] = ()
    seconds: float = 0.0

    def restricted(self, rule: Rule) -> Rule:
        """The rule under the conditions that were found besides its own."""
        found = map(parse_expression, self.conditions)
        return replace(rule, conditions=tuple(dict.fromkeys((*rule.conditions, *found))))

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": round(self.seconds, 3)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Verification:
        """Inverse of :meth:`to_json`; raises KeyError, TypeError, ValueError or ExpressionError for what is none."""
        found = data["counterexample"]
        verification = Verification(
            Verdict(data["verdict"]),
            str(data["reason"]),
            tuple(data["conditions"]),
            None if found is None else Counterexample.from_json(found),
            tuple(data["axioms"]),
            float(data["seconds"]),
        )
        for condition in verification.conditions:
            parse_expression(condition)
        return verification


@cache
def checker_hash() -> str:
    """Of what the axioms, the prover and what else a verdict rests on say, as they are installed."""
    return _hash(checker_meaning(name, text) for name, text in _checker())


@cache
def checker_text_hash() -> str:
    """Of the same files as they are written: quicker, and where it is the same, so is the other."""
    return _hash(text for _, text in _checker())


def _checker() -> Iterator[tuple[str, str]]:
    folder = resources.files("iossim.transforms.rewriting")
    return ((name, (folder / name).read_text(encoding="utf-8")) for name in CHECKER)


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


def checker_meaning(name: str, text: str) -> str:
    """What a file says without its comments, docstrings and layout; the same in every version of Python."""
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


def recall(rule: Rule) -> Verification | None:
    """The verdict on a rule that was kept, the user's own or shipped; None where there is none to be trusted."""
    with suppress(OSError):
        kept = _trusted(_place(rule).read_text(encoding="utf-8"))
        if rule.hash in kept:
            return kept[rule.hash]
    return _shipped().get(rule.hash)


def remember(rule: Rule, verification: Verification) -> None:
    """Keep a verdict in the user's cache, where that can be written."""
    with suppress(OSError):
        write_atomically(_place(rule), written([(rule, verification)]))


def written(verdicts: Iterable[tuple[Rule, Verification]]) -> str:
    """Verdicts on rules as the text of a file."""
    by_hash = {rule.hash: {"rule": rule.name, **verification.to_json()} for rule, verification in verdicts}
    return json.dumps({"checker": checker_hash(), "text": checker_text_hash(), "verdicts": by_hash}, indent=1) + "\n"


def _place(rule: Rule) -> Path:
    """The file of a rule's verdict; raises OSError where others can write there, who could call any rule proved."""
    return own_folder(user_cache() / "verdicts") / f"{rule.hash}.json"


@cache
def _shipped() -> Mapping[str, Verification]:
    found: dict[str, Verification] = {}
    for entry in resources.files(_SHIPPED).iterdir():
        if entry.name.endswith(".json"):
            found |= _trusted(entry.read_text(encoding="utf-8"))
    return found


def _trusted(text: str) -> dict[str, Verification]:
    """The verdicts of a file by the hash of their rule; none where it is of another checker, or damaged."""
    try:
        data = read_json(text)
        if data["text"] != checker_text_hash() and data["checker"] != checker_hash():
            return {}
        return {key: Verification.from_json(value) for key, value in data["verdicts"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, ExpressionError):
        return {}


def trusted(rules: Iterable[Rule], unproved: bool = False) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """The rules that may be used, and those that are left out.

    A rule with a verdict is used under the conditions that were found besides its own. With ``unproved`` rules that
    are unknown, or were never verified, are used as they are; one that is refuted never is.
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
