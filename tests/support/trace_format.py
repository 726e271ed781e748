"""Checks a trace against the Chrome trace event format, as far as ui.perfetto.dev and chrome://tracing rely on it."""

import json
from itertools import pairwise
from typing import Any


def check_trace(text: str) -> dict[str, list[dict[str, Any]]]:
    """The complete events of each named track, in order; fails where the text is not a trace, or a track overlaps."""
    document = json.loads(text)
    assert isinstance(document, dict)
    assert document.get("displayTimeUnit") in ("ms", "ns")
    events = document["traceEvents"]
    assert isinstance(events, list)
    assert events
    names: dict[tuple[int, int], str] = {}
    processes: set[int] = set()
    tracks: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        assert event["ph"] in ("M", "X", "C")
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        if event["ph"] == "M":
            check_metadata(event)
            if event["name"] == "process_name":
                processes.add(event["pid"])
            if event["name"] == "thread_name":
                track = (event["pid"], event["tid"])
                assert track not in names
                names[track] = event["args"]["name"]
                tracks[names[track]] = []
            continue
        assert event["pid"] in processes
        assert isinstance(event["args"], dict)
        if event["ph"] == "C":
            continue
        for field in ("ts", "dur"):
            assert isinstance(event[field], int | float)
            assert event[field] >= 0
        tracks[names[event["pid"], event["tid"]]].append(event)
    assert len(tracks) == len(names)
    for of_track in tracks.values():
        for left, right in pairwise(of_track):
            # Readers keep time in whole nanoseconds.
            assert round(left["ts"] * 1000) + round(left["dur"] * 1000) <= round(right["ts"] * 1000)
    return tracks


def counters(text: str) -> dict[str, list[tuple[float, float]]]:
    """Times and values of each counter of a trace, in order of time."""
    found: dict[str, list[tuple[float, float]]] = {}
    for event in json.loads(text)["traceEvents"]:
        if event["ph"] == "C":
            (value,) = event["args"].values()
            assert isinstance(value, int | float)
            found.setdefault(event["name"], []).append((event["ts"], value))
    for values in found.values():
        assert values == sorted(values, key=lambda point: point[0])
    return found


def check_metadata(event: dict[str, Any]) -> None:
    argument = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}[event["name"]]
    assert list(event["args"]) == [argument]
    assert isinstance(event["args"][argument], str if argument == "name" else int)
    assert ("tid" in event) == (event["name"] != "process_name")
