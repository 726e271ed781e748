#!/usr/bin/env python3
"""Hold the size of the project to its limits, and print lines and files of each layer beside the last ones kept.

    python .ci/sizes.py [--write]

Fails (exit code 1) where product, evidence, tests, or what ``compare`` loads is larger than ``.ci/limits.json`` allows. A change
that raises a limit says why in its message, and lowers another one. ``--write`` keeps the layers' sizes of now in
``.ci/sizes.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".ci" / "sizes.json"
LIMITS = ROOT / ".ci" / "limits.json"

LOADED = """
import sys
from contextlib import redirect_stdout
from io import StringIO
from iossim.cli.main import main
sys.argv = ["iossim", "compare", "squeezenet", "-d", "t4"]
with redirect_stdout(StringIO()):
    code = main()
print(*sorted(m.__file__ for n, m in sys.modules.items() if n.split(".")[0] == "iossim" and m.__file__), sep="\\n")
sys.exit(code)
"""


def lines_of_files() -> dict[str, list[int]]:
    """The lines of each Python file, by layer: the folders of the package, its modules, the backends, and the evidence."""
    found: dict[str, list[int]] = {}
    for folder in ("iossim", "backends", "evidence"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT).parts
            layer = "/".join(inside[:2]) if folder != "evidence" and len(inside) > 2 else folder
            found.setdefault(layer, []).extend(lines_of([path]))
    return found


def lines_of(paths: Iterable[Path]) -> list[int]:
    """The number of lines of each file."""
    return [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]


def loaded_by_compare() -> list[Path]:
    """The modules of the package that a warm ``iossim compare squeezenet -d t4`` imports; a cold one compiles code first."""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    return [Path(line) for line in done.stdout.splitlines()]


def beyond_limits(measured: dict[str, int], limits: dict[str, int]) -> list[str]:
    """One line for each size that exceeds its limit, and for each that has none."""
    return [
        f"{name}: {size}, above the limit of {limits.get(name, 0)} in .ci/limits.json"
        for name, size in measured.items()
        if size > limits.get(name, 0)
    ]


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
    tests, loaded = lines_of((ROOT / "tests").rglob("*.py")), lines_of(loaded_by_compare())
    limited = {"product": every, "evidence": now["evidence"], "tests": tests, "loaded by compare": loaded}
    measured = {
        f"{what}, {unit}": size
        for what, lines in limited.items()
        for unit, size in (("lines", sum(lines)), ("files", len(lines)))
    }
    limits = json.loads(LIMITS.read_text(encoding="utf-8"))
    for name, size in measured.items():
        print(f"{name:28} {size:6} of {limits.get(name, 0):6}")
    for line in (beyond := beyond_limits(measured, limits)):
        print(line, file=sys.stderr)
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
