"""The results of ``gpu_report.py`` as JSON lines: each record is on disk before the next thing is measured."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: File in the folder of results, and the record in it after which tests count anew.
REPORT, TESTS_ANEW = "report.jsonl", "tests anew"
#: State of a running test: a test whose newest record has it never ended.
BEGUN = "begun"


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record to JSON lines, complete and on disk on return."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def read_records(path: Path) -> list[dict[str, Any]]:
    """Records of JSON lines; a truncated last one is left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def sections_done(out: Path) -> set[str]:
    """Sections that were completed in an earlier run."""
    last = {row["section"]: row["outcome"] for row in read_records(out / REPORT) if row["record"] == "section"}
    return {section for section, outcome in last.items() if outcome == "done"}


def newest_tests(records: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Newest record of each test, over all commands since tests were last begun anew."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in records:
        if row["record"] == TESTS_ANEW:
            found = {}
        elif row["record"] == "test":
            found[row["test"]] = row
    return found
