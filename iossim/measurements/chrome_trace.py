"""Chrome traces as the PyTorch profiler (Kineto) writes them: the complete events, with what each was called with."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: How a file says in its first letters that it is one.
_MARKS = ('"traceEvents"', '"ph"', '"deviceProperties"')


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A complete event of a trace; names of arguments in lower case, as their spelling changed between versions."""

    name: str
    category: str
    thread: str
    begin_us: float
    duration_us: float
    arguments: dict[str, Any]

    def number(self, name: str) -> int | None:
        """An argument that links events; 0 links none."""
        value = self.arguments.get(name)
        return value if isinstance(value, int) and value else None


def is_chrome_trace(head: str) -> bool:
    """Whether a file that begins with this text is a trace."""
    begin = head.lstrip()
    return begin.startswith(("{", "[")) and any(mark in begin for mark in _MARKS)


def parse_trace(text: str) -> dict[str, Any]:
    """The document, its events under ``traceEvents``; raises ValueError for what is no whole JSON."""
    try:
        trace = json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return trace if isinstance(trace, dict) else {"traceEvents": trace}


def complete_events(trace: dict[str, Any]) -> Iterator[TraceEvent]:
    """The events with a begin and a duration, in the order of the file; raises ValueError where there is no list of them."""
    records = trace.get("traceEvents")
    if not isinstance(records, list):
        raise ValueError("the trace has no list 'traceEvents'")
    for record in records:
        if not isinstance(record, dict) or record.get("ph") != "X":
            continue
        arguments = record.get("args")
        yield TraceEvent(
            str(record.get("name", "")),
            str(record.get("cat", "")).lower(),
            f"{record.get('pid')} {record.get('tid')}",
            _microseconds(record.get("ts")),
            _microseconds(record.get("dur")),
            {str(key).lower(): value for key, value in arguments.items()} if isinstance(arguments, dict) else {},
        )


def _microseconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
