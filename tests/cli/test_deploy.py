"""``iossim deploy``: what is written, printed and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

from iossim.base.user_files import write_atomically

CPU = Path(__file__).resolve().parents[2] / "examples" / "cpu.yaml"
QUICK = "--rounds 2 --warm-up 0"


@pytest.fixture(scope="module", autouse=True)
def _has_onnxruntime() -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")


def test_a_model_is_scheduled_written_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"deploy ios_sample --device {CPU} --scheduler greedy {QUICK} --out {tmp_path}/out"
    document = printed_json(capsys, f"{line} --json")
    check = document["check"]
    assert check["equal"] is True
    assert [row["name"] for row in check["rows"]] == [
        "model, default",
        "model, ORT_PARALLEL",
        "deployed, intra-op threads",
        "deployed, one thread",
        "deployed, streams",
    ]
    assert all(len(row["times_us"]) == 2 for row in check["rows"])
    assert [row["predicted_us"] is not None for row in check["rows"]] == [False, False, False, True, True]
    assert check["best"] in [row["name"] for row in check["rows"]]
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files >= {"model.onnx", "partition.json", "run.py", "README.md", "trace.json"}
    partition = json.loads((tmp_path / "out" / "partition.json").read_text())
    assert partition["streams"] == document["streams"]
    assert partition["devices"] == ["0", "0"]
    page = (tmp_path / "out" / "README.md").read_text()
    assert page.startswith("# ios_sample on ONNX Runtime, 2 streams\n")
    assert "Fastest: " in page


def test_the_trace_has_every_node_on_its_stream_below_what_was_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = printed_json(
        capsys, f"deploy ios_sample --device {CPU} --scheduler greedy {QUICK} --out {tmp_path}/out --json"
    )
    events = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    measured: dict[str, set[str]] = {}
    for event in events:
        if event.get("cat") == "measured":
            measured.setdefault(names[event["tid"]], set()).add(event["name"])
    assert measured == {
        f"ONNX Runtime, stream {number}": set(stream) for number, stream in enumerate(document["streams"])
    }
    predicted = {names[event["tid"]] for event in events if event.get("cat") == "predicted"}
    assert predicted
    assert all(name.startswith("predicted, stream ") for name in predicted)
    assert document["check"]["overlap"] >= 1


def test_a_saved_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, f"optimize ios_sample --device {CPU} --out {tmp_path} --no-plot --no-trace")
    text = printed(
        capsys, f"deploy {tmp_path}/schedule.json --device {CPU} --no-check --streams 1 --out {tmp_path}/out"
    )
    assert "by stream" in text
    assert "\nNot run. Predicted: " in (tmp_path / "out" / "README.md").read_text()
    assert text.splitlines()[1].startswith("Not run. Predicted: ")
    assert len(json.loads((tmp_path / "out" / "partition.json").read_text())["streams"]) == 1
    said = refused(capsys, f"deploy {tmp_path}/schedule.json --no-check --out {tmp_path}/out")
    assert "the schedule is for example-cpu, which is no known device; give its profile, --device FILE.yaml" in said


def test_predictions_without_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are those that a check shows; on two cores streams wait for a turn at every notification."""
    line = f"deploy ios_sample --device {CPU} --scheduler greedy {QUICK} --out {tmp_path}/out --json"
    checked = printed_json(capsys, line)
    alone = printed_json(capsys, f"{line} --no-check")
    assert alone["check"] is None
    assert alone["predicted_us"] == checked["predicted_us"]
    rows = {row["name"]: row["predicted_us"] for row in checked["check"]["rows"] if row["predicted_us"] is not None}
    assert rows == checked["predicted_us"]
    assert alone["predicted_us"]["deployed, streams"] > alone["predicted_us"]["deployed, one thread"] > 0


def test_streams_that_a_search_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a file and at once: the same streams, and one where one is asked for."""
    printed(capsys, f"optimize squeezenet --units fused --device {CPU} --scheduler ios-streams --out {tmp_path}")
    saved = json.loads((tmp_path / "schedule.json").read_text())
    assert len(saved["streams"]) == 2
    given = f"--device {CPU} --no-check --out {tmp_path}/out --json"
    document = printed_json(capsys, f"deploy {tmp_path}/schedule.json --streams 2 {given}")
    assert document["stages"] is None
    assert len(document["streams"]) == 2
    assert document["predicted_us"].keys() == {"deployed, one thread", "deployed, streams"}
    one = printed_json(capsys, f"deploy {tmp_path}/schedule.json --streams 1 {given}")
    assert len(one["streams"]) == 1
    assert one["predicted_us"].keys() == {"deployed, one thread"}
    searched = printed_json(capsys, f"deploy squeezenet --scheduler ios-streams --units fused --streams 2 {given}")
    assert searched["streams"] == document["streams"]
    said = refused(capsys, f"deploy {tmp_path}/schedule.json --runtime tensorrt")
    assert "--runtime tensorrt is told by the stages of a schedule" in said


def test_outputs_that_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, and nothing is written."""
    from iossim.cli.main import main
    from iossim.deploy import check

    monkeypatch.setattr(check, "largest_error", lambda found, expected: 0.5)
    line = f"deploy ios_sample --device {CPU} --scheduler greedy {QUICK} --out {tmp_path}/out"
    assert main(line.split()) == 1
    assert "Outputs DIFFER" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_tensorrt_takes_no_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    line = "deploy ios_sample --runtime tensorrt --device v100-sxm2 --scheduler greedy"
    document = printed_json(capsys, f"{line} --json")
    widest = max(len(one["groups"]) for one in document["side_by_side"])
    assert document["max_aux_streams"] == widest - 1 > 0
    text = printed(capsys, line)
    assert f"--maxAuxStreams={widest - 1} " in text
    for one in document["side_by_side"]:
        assert f"stage {one['stage']}" in text
    narrow = printed(capsys, line.replace("greedy", "sequential"))
    assert "--maxAuxStreams=0 " in narrow
    assert "nothing side by side" in narrow


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("deploy ios_sample --runtime tensorr --out x", "--runtime 'tensorr' is not known; did you mean 'tensorrt'"),
        ("deploy ios_sample", "give --out DIR"),
        (f"deploy ios_sample --device {CPU} --streams 0 --out x", "--streams 0 is not possible"),
        ("deploy ios_sample --device v100-sxm2 --out x", "has no CUDAExecutionProvider, which v100-sxm2 needs"),
        (f"deploy ios_sample --device {CPU} --model alexnet --out x", "--model is for a schedule"),
        (f"deploy ios_sample --device {CPU} --dtype int8 --out x", "int8 is for pricing"),
    ],
)
def test_mistakes(
    arguments: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in refused(capsys, arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_that_is_not_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "schedule.json"
    write_atomically(path, '{"graph_hash": "x"}')
    assert "is not valid" in refused(capsys, f"deploy {path} --out {tmp_path}/out")
