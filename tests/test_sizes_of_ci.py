"""``.ci/sizes.py``: a size beyond its limit is named, and so is one without a limit."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "sizes.py"


def test_sizes_beyond_their_limits_are_named() -> None:
    spec = importlib.util.spec_from_file_location("sizes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    sizes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sizes)
    limits = {"product, lines": 10, "product, files": 2}
    assert sizes.beyond_limits({"product, lines": 10, "product, files": 2}, limits) == []
    assert sizes.beyond_limits({"product, lines": 11, "product, files": 1, "tests, lines": 5}, limits) == [
        "product, lines: 11, above the limit of 10 in .ci/limits.json",
        "tests, lines: 5, above the limit of 0 in .ci/limits.json",
    ]
