"""``ios-streams`` on the command line: optimize, compare and explain."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

from iossim.schedule.schedule import StreamSchedule, read_schedule

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
