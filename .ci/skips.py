#!/usr/bin/env python3
"""List what no run of pytest ran and why, and fail where a reason is not an expected one.

    python .ci/skips.py .ci/expected_skips.txt RUN.xml [RUN.xml ...]

The JUnit files are those of all runs together: a test that one run skips and another runs is not skipped. A module that a
run skips whole counts as run where another run ran a test of it. Exit code 1 where something was skipped for a reason that
no pattern of the file of expected ones matches, or where there is nothing to read.

A line of that file is a regular expression that is sought in ``MODULE.TEST: REASON``; ``#`` begins a comment line. The
standard library is all that is needed.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

#: What pytest says of a module that is skipped before its tests are known; the reason stands in the element's text.
_WHOLE_MODULE = "collection skipped"


def _reason(skipped: ElementTree.Element) -> str:
    message = skipped.get("message") or ""
    if message != _WHOLE_MODULE:
        return message
    found = re.search(r"""["']Skipped: (.*)["']\)\s*$""", skipped.text or "", re.DOTALL)
    return found.group(1) if found else (skipped.text or "").strip()


def read(files: Iterable[Path]) -> tuple[int, dict[str, str]]:
    """How many tests ran, and the reason of each that no run ran, by its full name."""
    ran: set[str] = set()
    skipped: dict[str, str] = {}
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            name = f"{case.get('classname') or ''}.{case.get('name') or ''}".strip(".")
            mark = case.find("skipped")
            if mark is None:
                ran.add(name)
            else:
                skipped[name] = _reason(mark)
    # A module stands there by its own name, its tests by names that begin with it.
    modules = {".".join(parts[:end]) for parts in (name.split(".") for name in ran) for end in range(1, len(parts))}
    return len(ran), {name: reason for name, reason in skipped.items() if name not in ran | modules}


def expected_patterns(file: Path) -> list[re.Pattern[str]]:
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


def main(arguments: list[str]) -> int:
    expected, *files = map(Path, arguments)
    ran, skipped = read(files)
    patterns = expected_patterns(expected)
    by_reason: dict[tuple[bool, str], list[str]] = defaultdict(list)
    for name, reason in sorted(skipped.items()):
        known = any(pattern.search(f"{name}: {reason}") for pattern in patterns)
        by_reason[known, reason].append(name)
    print(f"{ran} tests ran in {len(files)} runs; {len(skipped)} tests or modules were skipped in all of them:")
    for (known, reason), names in sorted(by_reason.items()):
        modules = sorted({name.partition("[")[0] for name in names})
        shown = ", ".join(modules[:4]) + (f" and {len(modules) - 4} more" if len(modules) > 4 else "")
        print(f"  {len(names):4}  {reason}{'' if known else '  <- NOT EXPECTED'}\n        {shown}")
    unexpected = sum(len(names) for (known, _), names in by_reason.items() if not known)
    if unexpected:
        print(
            f"{unexpected} skipped for reasons that {expected} does not name: make them run, or name the reason there"
        )
    return 1 if unexpected or not ran else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
