"""The YAML files that ship with iossim: which there are, and quick reading of them."""

from __future__ import annotations

from importlib import resources
from typing import Any


def shipped_files(package: str) -> list[str]:
    """The names of a package's YAML files, without their suffix, sorted."""
    names = (entry.name for entry in resources.files(package).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def read_shipped(text: str) -> Any:
    """The values of a YAML file of ours, by LibYAML where PyYAML is built with it: an eighth of the time.

    Not for files of others: LibYAML overflows the stack on what is nested deeply.
    """
    import yaml

    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
