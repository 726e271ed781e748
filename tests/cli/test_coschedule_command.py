"""``iossim coschedule``: a table, JSON and a trace of several models at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused


def test_copies_of_a_model_run_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"coschedule squeezenet --copies 2 --device v100-sxm2 --arrivals poisson --requests 50 --out {tmp_path}"
    told = printed(capsys, command)
    assert "one stream a model" in told
    assert "Request latency by load" in told
    document = printed_json(capsys, f"{command} --json")
    assert document == json.loads((tmp_path / "coschedule.json").read_text())
    assert document["models"] == ["squeezenet1", "squeezenet2"]
    assert [way["way"] for way in document["ways"]] == [
        "one after another",
        "one stream a model",
        "stages side by side",
        "streams",
    ]
    assert all(document["bound_us"] <= way["makespan_us"] for way in document["ways"])
    assert len(document["served"]) == 15
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    colours = {event["args"]["model"]: event["cname"] for event in events if event["ph"] == "X"}
    assert len(set(colours.values())) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--copies 0 --device v100-sxm2", "--copies 0 is not possible"),
        ("--requests 0 --device v100-sxm2", "--requests is 1 or more"),
        ("", "coschedule needs a device"),
    ],
)
def test_what_cannot_be_run_is_refused(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, f"coschedule squeezenet {options}")
