"""Verdicts on rules, and where they are kept: beside the rules that ship, and in the user's cache.

A verdict rests on the rule, and on what found it (:mod:`iossim.proving`): it is kept by the hash of the rule, with
one of all the rest, and trusted only while both are the same. Without that room the verdicts that ship stand as they
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, TypeAdapter

from iossim.base.registry import guest_part
from iossim.base.user_files import read_json
from iossim.base.user_folders import own_folder, user_cache
from iossim.transforms.rewriting.expression import ExpressionError, parse_expression
from iossim.transforms.rewriting.instance import InputShape
from iossim.transforms.rewriting.rule import Rule

#: Start of the reason where only the time limit ended a proof.
OUT_OF_TIME = "out of time"
_SHIPPED = "iossim.transforms.rewriting.rules"


class Verdict(StrEnum):
    """Outcome of verifying a rule."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


def _frozen(value: object) -> object:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Counterexample:
    """Attributes and shapes at which the sides of a rule differ. ``reason`` says how.

    ``element`` of the output ``output`` is the first that differs for inputs of ``seed``: None where the target does
    not take the shapes, or makes others. ``source`` and ``target`` are its values, None where that is no finite number.
    """

    attributes: Mapping[str, Annotated[object, BeforeValidator(_frozen)]]
    shapes: Mapping[str, InputShape]
    reason: str
    seed: int = 0
    output: str | None = None
    element: tuple[int, ...] | None = None
    source: float | None = None
    target: float | None = None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Verification:
    """The verdict on a rule. ``conditions`` are those that it lacked, as text; a proof is under these, too.

    ``counterexample`` is of the rule as it is written, without them. ``axioms`` are the names of those that a proof
    used, ``seconds`` the total time.
    """

    verdict: Verdict
    reason: str
    conditions: tuple[str, ...] = ()
    counterexample: Counterexample | None = None
    axioms: tuple[str, ...] = ()
    seconds: float = 0.0

    def restricted(self, rule: Rule) -> Rule:
        """The rule under the conditions that were found besides its own."""
        return rule.under(map(parse_expression, self.conditions))

    def to_json(self) -> dict[str, object]:
        return asdict(self) | {"seconds": round(self.seconds, 3)}


#: Verdicts by hash of the rule, as a file has them.
_VERDICTS = TypeAdapter(dict[str, Verification])


def recall(rule: Rule) -> Verification | None:
    """The kept verdict on a rule, the user's own or a shipped one; None if there is none to be trusted."""
    with suppress(OSError):
        kept = _trusted(place_of(rule).read_text(encoding="utf-8"))
        if rule.hash in kept:
            return kept[rule.hash]
    return _shipped().get(rule.hash)


def place_of(rule: Rule) -> Path:
    """The file of a rule's verdict; raises OSError where others can write there, who could call any rule proved."""
    return own_folder(user_cache() / "verdicts") / f"{rule.hash}.json"


@cache
def _shipped() -> Mapping[str, Verification]:
    found: dict[str, Verification] = {}
    for entry in resources.files(_SHIPPED).iterdir():
        if entry.name.endswith(".json"):
            found |= _trusted(entry.read_text(encoding="utf-8"), ships=True)
    return found


def _trusted(text: str, ships: bool = False) -> dict[str, Verification]:
    """The verdicts of a file by the hash of their rule; none where it is of another checker, or damaged."""
    found_by = guest_part("checker", "verdict", "found_by")  # None without the room that finds verdicts
    try:
        data = read_json(text)
        if not (ships if found_by is None else found_by(data)):
            return {}
        found = _VERDICTS.validate_python(data["verdicts"])
        for condition in chain.from_iterable(each.conditions for each in found.values()):
            parse_expression(condition)
        return found
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
