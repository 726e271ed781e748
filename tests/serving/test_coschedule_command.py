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
        "time slicing",
        "one stream a model",
        "stages side by side",
        "streams",
    ]
    assert all(document["bound_us"] <= way["makespan_us"] for way in document["ways"])
    assert len(document["served"]) == 15
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    colours = {event["args"]["model"]: event["cname"] for event in events if event["ph"] == "X"}
    assert len(set(colours.values())) == 2


def test_an_objective_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    command = "coschedule squeezenet resnet18 --device a100-sxm-40gb"
    document = printed_json(capsys, f"{command} --objective latency --weight squeezenet=4 --limit resnet18=9 --json")
    assert document["objective"] == {
        "name": "weighted latency",
        "weights": {"squeezenet": 4.0, "resnet18": 1.0},
        "limits_us": {"resnet18": 9000.0},
    }
    assert {"partitions", "time slicing"} < {way["way"] for way in document["ways"]}
    for way in document["ways"]:
        ends_us = way["ends_us"]
        assert way["objective_us"] == pytest.approx(4 * ends_us["squeezenet"] + ends_us["resnet18"])
        assert way["over_limits_us"] == 0.0
    told = printed(capsys, f"{command} --limit squeezenet=0.01")
    assert "no way keeps all limits" in told
    assert "requests a second" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--device v100-sxm2 --weight squeezenet=2", "--weight is of --objective latency; give both, or neither"),
        ("--device v100-sxm2 --objective speed", "--objective 'speed' is not known; give makespan or latency"),
        ("--device v100-sxm2 --limit squeezenet", "--limit 'squeezenet' is not possible; give MODEL=NUMBER"),
        ("--device v100-sxm2 --limit squeezenet=-1", "--limit 'squeezenet=-1' is not possible"),
        ("--device v100-sxm2 --limit alexnet=1", "'alexnet' is not one of the models; models: squeezenet"),
        ("--device v100-sxm2 --limit squeezenet=1 --limit squeezenet=2", "--limit names 'squeezenet' 2 times"),
        ("--device v100-sxm2 --requests 9", "--requests has no effect without --arrivals; give that, too"),
        ("--device v100-sxm2 --arrivals r.csv --requests 9", "--requests and --arrival-seed are of random requests"),
        ("--copies 0 --device v100-sxm2", "--copies 0 is not possible"),
        ("--requests 0 --device v100-sxm2", "--requests is 1 or more"),
        ("", "coschedule needs a device"),
    ],
)
def test_what_cannot_be_run_is_refused(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, f"coschedule squeezenet {options}")
