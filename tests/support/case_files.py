"""Lists of cases in a YAML file beside the tests that take them: what is given, and what is said of it."""

from pathlib import Path
from typing import Any

import yaml


def cases(test_file: str, name: str) -> dict[str, Any]:
    """The lists of the file ``name`` beside a test file, or mappings from the names of cases, by what they are of."""
    found: dict[str, Any] = yaml.safe_load(Path(test_file).with_name(name).read_text(encoding="utf-8"))
    return found
