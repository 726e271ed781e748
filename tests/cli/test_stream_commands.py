"""``ios-streams`` on the command line: optimize, compare, explain and run."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

import iossim
from iossim.execution.backend import create_backend
from iossim.execution.measured_run import for_backend
from iossim.schedule.schedule import StreamSchedule, read_schedule
from iossim.schedule.streams import as_streams

SEARCHED = "--device v100-sxm2 --scheduler ios-streams"


def test_streams_are_found_saved_and_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    told = printed(capsys, f"optimize squeezenet {SEARCHED} --engine graph --out {out}")
    assert "waits for events of other streams, and no barriers" in " ".join(told.split())
    assert "Lower bound of all streams" in told
    schedule = read_schedule(out / "schedule.json")
    assert isinstance(schedule, StreamSchedule)
    assert {path.name for path in out.iterdir()} == {"schedule.json", "graph.dot", "trace.json"}
    assert "Critical path: " in printed(capsys, f"explain {out}/schedule.json")
    document = printed_json(capsys, f"explain {out}/schedule.json --json")
    assert document["latency_us"] == pytest.approx(schedule.latency_us)
    assert sum(document["critical_path_us"].values()) == pytest.approx(schedule.latency_us)
    assert len(document["launches"]) == len(schedule.launches)
    assert "is of streams, and has no stages" in refused(capsys, f"explain {out}/schedule.json --stage 1")


def test_streams_are_compared_with_stages(capsys: pytest.CaptureFixture[str]) -> None:
    schedulers = "--schedulers sequential,ios-both,ios-streams"
    document = printed_json(capsys, f"compare squeezenet --device v100-sxm2 {schedulers} --json")
    assert [one["scheduler"] for one in document["schedules"]] == ["sequential", "ios-both"]
    (streams,) = document["streams"]
    assert streams["scheduler"] == "ios-streams"
    assert streams["latency_us"] <= document["schedules"][1]["latency_us"]
    told = printed(capsys, f"compare squeezenet --device v100-sxm2 {schedulers}")
    assert "Best of stages: ios-both" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--rewrite", "takes neither --rewrite"),
        ("--seconds 0", "leaves no time to search"),
        ("--stream-seed -1", "is not possible"),
        ("--workspace-limit 1MiB", "is for stages"),
    ],
)
def test_what_does_not_go_with_streams_is_refused(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, f"optimize squeezenet {SEARCHED} {options}")


def test_prices_of_stages_alone_find_no_streams(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "optimize squeezenet --scheduler ios-streams --cost-model random:1")
    assert "prices stages alone" in said


def test_streams_are_run_beside_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Outputs are right, predictions are those of the plan, and stages alone are refused."""
    printed(capsys, f"optimize ios_sample {SEARCHED} --engine graph --out {tmp_path}")
    run = f"run {tmp_path}/schedule.json --backend numpy_reference --rounds 1 --device v100-sxm2"
    document = printed_json(capsys, f"{run} --json")
    assert [row["name"] for row in document["runs"]] == ["sequential", "ios-streams"]
    assert document["output_error"] <= document["output_tolerance"]
    sequential_us, streams_us = (row["predicted_us"] for row in document["runs"])
    assert 0.0 < streams_us <= sequential_us
    assert "no stages to be measured" in refused(capsys, f"{run} --stages")


def test_variants_of_another_device_are_left_out_of_streams() -> None:
    network = iossim.load("ios_sample")
    found = as_streams(iossim.optimize(network, "v100-sxm2"), network)
    launch = found.streams[0][0].model_copy(update={"variant": "of another device"})
    foreign = found.model_copy(update={"streams": [[launch, *found.streams[0][1:]], *found.streams[1:]]})
    kept, remark = for_backend(foreign, network, create_backend("onnxruntime_cpu"))
    assert isinstance(kept, StreamSchedule)
    assert kept.streams == found.streams
    assert "of another device" in remark
