"""Reads the YAML files that ship with iossim, quickly."""

from __future__ import annotations

from typing import Any


def read_shipped(text: str) -> Any:
    """The values of a YAML file of ours, by LibYAML where PyYAML is built with it: an eighth of the time.

    Not for files of others: LibYAML overflows the stack on what is nested deeply.
    """
    import yaml

    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
