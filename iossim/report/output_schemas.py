"""JSON schemas of what commands print with ``--json``, from the short form of ``outputs.yaml`` in each room.

A command's entry (its words joined by hyphens) has ``about`` and ``json``. The latter is ``text``, ``int``, ``number``,
``bool``, ``us`` (microseconds, not negative), ``object`` or ``any``, each with ``~`` if it may be null; a list of the
form of its items; ``{either: FORMS}``; ``{or_null: FORM}``; or the keys of an object, where a key with ``~`` may be
missing and the key ``*`` gives the form of all others. Objects may gain keys in later versions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

Schema = dict[str, Any]
_PLAIN: dict[str, Schema] = {
    "text": {"type": "string"},
    "int": {"type": "integer"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "us": {"type": "number", "minimum": 0},
    "object": {"type": "object"},
    "any": {},
}


@cache
def outputs() -> dict[str, tuple[str, Callable[[], Schema]]]:
    """Titles and makers of the schemas of all rooms, by name."""
    import yaml

    files = sorted(file for folder in import_module("iossim").__path__ for file in Path(folder).glob("*/outputs.yaml"))
    entries = [each for file in files for each in yaml.safe_load(file.read_text(encoding="utf-8")).items()]
    return {name: _output(name, **entry) for name, entry in sorted(entries) if not name.startswith("_")}


def _output(name: str, about: str, json: Any, command: str = "") -> tuple[str, Callable[[], Schema]]:
    """``command`` differs from the name where a file's schema has that name."""
    group, _, rest = name.partition("-")
    words = command or (f"{group} {rest}" if group in _GROUPS else name)
    return f"Output of iossim {words} --json", lambda: {"description": about, **expanded(json)}


_GROUPS = frozenset({"dataflow", "devices", "measurements", "models", "rules", "study"})


def expanded(form: Any) -> Schema:
    """The JSON schema of a short form."""
    match form:
        case str():
            plain = _PLAIN[form.removesuffix("~")]
            return plain | {"type": [plain["type"], "null"]} if form.endswith("~") else plain
        case [items]:
            return {"type": "array", "items": expanded(items)}
        case {"either": list(forms)}:
            return {"anyOf": [expanded(each) for each in forms]}
        case {"or_null": other}:
            return {"anyOf": [expanded(other), {"type": "null"}]}
    keys = {key.removesuffix("~"): expanded(each) for key, each in form.items()}
    rest = keys.pop("*", None)
    made: Schema = {"type": "object"} if not keys else {"type": "object", "properties": keys}
    made |= {} if rest is None else {"additionalProperties": rest}
    required = [key for key in form if key != "*" and not key.endswith("~")]
    return made | ({"required": required} if required else {})
