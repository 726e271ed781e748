"""Files of profilers that no reader accepts: their descriptions, and the export to use instead
(``other_exports.yaml``).
"""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path
from typing import Any

from iossim.base.shipped_yaml import shipped
from iossim.base.user_files import read_json
from iossim.measurements.measurement import SCHEMA

SET_READERS = "'iossim calibrate' and 'iossim validate' read it"
_REPORT_AS_TEXT = re.compile(r"\*\* .*\((\w+)\):")


@cache
def _known(section: str) -> Any:
    return shipped("iossim.measurements", "other_exports.yaml")[section]


def remedy(name: str) -> str:
    """The export to use instead of some files."""
    return str(_known("remedies")[name])


def _told(sentence: str) -> str:
    return sentence.format_map(_known("remedies"))


def binary_export(path: Path, data: bytes) -> str:
    """The name of a binary file's format, with the remedy; empty for an unknown one."""
    for mark, told in _known("binary").items():
        if path.name.endswith(mark) if mark.startswith(".") else data.startswith(mark.encode()):
            return _told(told)
    return ""


def text_export(text: str, expected: str) -> str:
    """The name of a text format that no reader accepts, with the remedy; empty for an unknown one.

    ``expected`` is the remedy for JSON that is neither a profile nor a known document.
    """
    if text.lstrip()[:1] in ("{", "["):
        return _json_export(text, expected)
    lines = text.splitlines()[:200]
    for line in lines:
        if told := _REPORT_AS_TEXT.search(line):
            return f"a report of Nsight Systems as text ({told[1]}); {remedy('nsys')}"
        columns = {re.sub(r"\s*\(.*\)", "", cell.strip()) for cell in next(csv.reader([line]), [])}
        tables = [(needed, _told(told)) for needed, told in _known("tables")]
        of_reports = "Nsight Systems' report {}, which does not have each kernel's start and grid; {}"
        reports = [(needed, of_reports.format(name, remedy("nsys"))) for name, needed in _known("reports").items()]
        for needed, sentence in (tables[0], *reports, *tables[1:]):
            if columns.issuperset(needed):
                return sentence
    return next(
        (_told(told) for pattern, told in _known("lines").items() if any(re.search(pattern, line) for line in lines)),
        "",
    )


def _json_export(text: str, expected: str) -> str:
    if f'"{SCHEMA}' in text[:4096]:
        return f"a set of measurements; {SET_READERS}"
    try:
        document = read_json(text)
    except ValueError as error:
        return f"JSON that is not whole ({error}); record it again, or {expected}"
    several = document if isinstance(document, list) else [document]
    keys = {key for one in several if isinstance(one, dict) for key in one}
    found = next((told for needed, told in _known("json") if keys.issuperset(needed)), None)
    if found:
        return _told(found)
    named = f"with the keys {', '.join(sorted(map(str, keys))[:5])}" if keys else "without any objects"
    return f"JSON {named}; {expected}"
