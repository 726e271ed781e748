"""Find sets of rules: those that ship, those of plugins, and files.

A package of others adds a set by an entry point ``iossim.rules``, a function that returns YAML text as
:mod:`iossim.transforms.rewriting.rule_file` reads it (:mod:`iossim.base.registry`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from iossim.base.registry import Extension, Group, Plugin
from iossim.base.shipped_yaml import shipped_files
from iossim.base.user_files import read_text
from iossim.transforms.rewriting.published import read_published
from iossim.transforms.rewriting.rule import Rule, RuleError
from iossim.transforms.rewriting.rule_file import read_rules

#: What is meant by ``default`` in place of the names of sets.
DEFAULT_RULES = "metaflow,simplify"
_FOLDER = "iossim.transforms.rewriting.rules"
_REMEDY = "give a .yaml file of rules, a .pb file of TASO's, or the name of a set (see 'iossim rules list')"


@cache
def _own(name: str) -> tuple[Rule, ...] | None:
    if name not in shipped_files(_FOLDER):
        return None
    entry = resources.files(_FOLDER) / f"{name}.yaml"
    return read_rules(entry.read_text(encoding="utf-8"), entry.name)


def _of_plugin(added: Plugin, found: Callable[[], Any]) -> tuple[Rule, ...]:
    text = added.guarded(found)()
    if not isinstance(text, str):
        raise added.error(f"returns {type(text).__name__}, not YAML")
    return read_rules(text, f"of {added}")


#: Sets of rules by name; entry points are functions that return YAML text.
RULE_SETS: Group[tuple[Rule, ...]] = Group(
    "unknown rules {!r}",
    lambda: shipped_files(_FOLDER),
    _own,
    Extension("iossim.rules", "a function that returns rules as YAML", _of_plugin),
    RuleError,
)


def rule_set(name_or_path: str) -> tuple[Rule, ...]:
    """The rules of a set that ships or is a plugin's, by name, or of a file: ``.yaml``, or ``.pb`` as TASO publishes them.

    Raises RuleError for an unknown name, and for a file that cannot be read, naming line, rule and field.
    """
    path = Path(name_or_path)
    if path.suffix == ".pb":
        return read_published(_read_bytes(path), str(path))
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return read_rules(read_text(path, "rules", _REMEDY, RuleError), str(path))
    found = RULE_SETS.get(name_or_path)
    if found is None:
        raise RuleError(f"{RULE_SETS.refusal(name_or_path, RULE_SETS.names())}; or give a .yaml or .pb file")
    return found


def rules_named(names: str) -> tuple[Rule, ...]:
    """The rules of several sets or files, separated by commas, ``default`` among them; raises RuleError."""
    sets = (DEFAULT_RULES if name == "default" else name for name in names.split(","))
    return tuple(rule for several in sets for name in several.split(",") for rule in rule_set(name))


def origin(name: str) -> str:
    """Where the set of that name comes from: ``shipped``, or the package of a plugin."""
    added = RULE_SETS.plugins().get(name)
    return "shipped" if added is None or name in shipped_files(_FOLDER) else added.package


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise RuleError(f"cannot read rules {path}: {problem.strerror}; {_REMEDY}") from None
