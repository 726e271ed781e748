"""JSON schema of kernels side by side."""

from __future__ import annotations

from iossim.profiles.corun import Through
from iossim.report.schemas import SIZE, TEXT, TIME_US, Schema, described, list_of, record


def _corun() -> Schema:
    """Output of ``iossim corun --json``: ``by`` is a kernel's place among ``kernels``, counted from 0."""
    slowed = record(by=SIZE, through={"enum": [str(each) for each in Through]}, us=TIME_US)
    kernel = record(
        name=TEXT,
        stream=SIZE,
        start_us=TIME_US,
        end_us=TIME_US,
        alone_us=TIME_US,
        slowed_by=list_of({"$ref": "#/$defs/slowed"}),
        inferred=list_of(TEXT),
    )
    recorded = "of the kernels of a recording, from the first start to the last end; null of any other table"
    run = record(
        device=TEXT,
        makespan_us={**TIME_US, "description": "until the last kernel ends"},
        recorded_us={"type": ["number", "null"], "minimum": 0, "description": recorded},
        difference_percent={"type": ["number", "null"], "description": "of the simulated makespan from the recorded"},
        alone_us={**TIME_US, "description": "of the longest stream by itself"},
        sequential_us={**TIME_US, "description": "of the streams one after another"},
        kernels=list_of({"$ref": "#/$defs/kernel"}),
        notes=list_of(TEXT),
    )
    return described(_corun) | {"$defs": {"slowed": slowed, "kernel": kernel}} | run


SCHEMA = ("Kernels side by side, as iossim corun prints them (JSON)", _corun)
