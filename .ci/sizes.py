#!/usr/bin/env python3
"""Print lines and files of each layer of the product beside the last ones that were kept: size is a budget.

    python .ci/sizes.py [--write]

``--write`` keeps the sizes of now in ``.ci/sizes.json``; a change that moves them says why in its message.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".ci" / "sizes.json"


def lines_of_files() -> dict[str, list[int]]:
    """The lines of each Python file, by layer: the folders of the package, its modules, the backends, and the evidence."""
    found: dict[str, list[int]] = {}
    for folder in ("iossim", "backends", "evidence"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT).parts
            layer = "/".join(inside[:2]) if folder != "evidence" and len(inside) > 2 else folder
            found.setdefault(layer, []).append(len(path.read_text(encoding="utf-8").splitlines()))
    return found


def main(arguments: list[str]) -> int:
    now = lines_of_files()
    sizes = {layer: [sum(lines), len(lines)] for layer, lines in now.items()}
    product = [lines for layer, lines in now.items() if layer != "evidence"]
    sizes["product"] = [sum(map(sum, product)), sum(map(len, product))]
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for layer in [*sizes, *(kept.keys() - sizes.keys())]:
        lines, files = sizes.get(layer, [0, 0])
        before, files_before = kept.get(layer, [0, 0])
        print(f"{layer:28} {lines:6} lines ({lines - before:+5}) {files:4} files ({files - files_before:+3})")
    every = [each for lines in product for each in lines]
    print(f"median file of the product {median(every):.0f} lines, largest {max(every)}")
    if "--write" in arguments:
        KEPT.write_text(json.dumps(sizes, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
