"""Lists of cases in a YAML file beside the tests that take them: what is given, and what is said of it."""

from pathlib import Path
from typing import Any

import yaml


def cases(test_file: str, name: str) -> Any:
    """What the file ``name`` beside a test file holds: lists of cases, or cases by name, mostly by what they are of."""
    return yaml.safe_load(Path(test_file).with_name(name).read_text(encoding="utf-8"))
