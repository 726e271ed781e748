"""The YAML files that ship with iossim: their names, and a quick reader for them."""

from __future__ import annotations

from importlib import resources
from typing import Any


def shipped_files(package: str) -> list[str]:
    """The names of a package's YAML files, without their suffix, sorted."""
    names = (entry.name for entry in resources.files(package).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def shipped(package: str, name: str) -> Any:
    """The values of a YAML file that ships in a package."""
    return read_shipped((resources.files(package) / name).read_text("utf-8"))


def read_shipped(text: str) -> Any:
    """The values of a shipped YAML file, by LibYAML if PyYAML is built with it, in an eighth of the time.

    Not for users' files: LibYAML overflows the stack on deep nesting.
    """
    import yaml

    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
