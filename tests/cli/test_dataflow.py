"""``iossim dataflow optimize``: what it prints, writes and refuses."""

import json
import math
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

from iossim import related
from iossim.cli.main import main
from iossim.cli.outputs import ExitCode
from iossim.edge.figures import dataflow_timeline_figure, memory_figure
from iossim.edge.plan import Variant


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


def test_three_times_and_a_row_an_operator() -> None:
    found = printed_json("dataflow optimize mobilenet_v1 --device c6678 --json")
    assert found["vanilla_us"] > found["horizontal_us"] > found["full_us"] > 0
    assert 0 < found["optimise_s"] < 10
    assert len(found["operators"]) == 30
    row = {row["operator"]: row for row in found["operators"]}["conv10.pointwise"]
    assert (row["partition"], row["slices"], row["whole"]) == ("outC 8", 1, "")
    linked = {row["operator"] for row in found["operators"] if row["layout"] == "cbr"}
    assert linked == {f"conv{number}.depthwise" for number in range(2, 15)}
    assert row["vanilla_us"] > row["horizontal_us"] > row["full_us"]
    for variant in Variant:
        total = sum(row[f"{variant}_us"] for row in found["operators"])
        assert found[f"{variant}_us"] == pytest.approx(total)


def test_external_memory_is_in_use_at_the_start_and_at_the_end() -> None:
    """Xenos, figure 9: maps that do not fit at first, and a layer of over 4 MB of parameters at last."""
    found = printed_json("dataflow optimize mobilenet_v1 -d c6678 --json")
    bursts = [row for row in found["memory"]["vanilla"] if row["external_bytes"]]
    assert [row["operator"] for row in bursts] == ["conv2.pointwise", "conv3.depthwise", "conv14.pointwise"]
    assert bursts[1]["end_us"] < 0.14 * found["vanilla_us"]
    assert bursts[2]["start_us"] > 0.85 * found["vanilla_us"]
    assert bursts[2]["external_bytes"] > 4_000_000
    assert all(row["shared_bytes"] <= 4 << 20 for row in found["memory"]["full"])
    plans = related.dataflow("mobilenet_v1", "c6678")
    drawn, drawn_timeline = memory_figure(plans, "title"), dataflow_timeline_figure(plans, "title")
    assert drawn.finding.startswith(
        "Without optimisation 3 operators need external memory while they run, last by conv14"
    )
    named = [record for record in drawn_timeline.records if record["what"] == "name" and record["plan"] == "full"]
    assert {"conv1", "conv14.pointwise"} < {record["text"] for record in named}
    shown = [record["mib"] for record in drawn.records if (record["plan"], record["memory"]) == ("vanilla", "external")]
    assert shown == [row["external_bytes"] / 2**20 for row in found["memory"]["vanilla"]]


def test_a_table_and_files(out: Path) -> None:
    text = printed(f"dataflow optimize ios_sample -d c6678 --out {out} --no-plot")
    assert "a further" in text
    assert "Found in" in text
    plan = json.loads((out / "plan.json").read_text())
    assert [step["operator"] for step in plan["steps"]]
    (unit, *_) = plan["steps"][0]["slices"][0]["units"]
    assert {"load", "store", "compute_us", "private_address"} <= set(unit["chunks"][0])
    assert json.loads((out / "dataflow.json").read_text())["device"] == "c6678"


def test_branches_on_parts_of_the_units(tmp_path: Path) -> None:
    text = printed(f"dataflow optimize squeezenet -d c6678 --parts --out {tmp_path} --no-plot")
    found = json.loads((tmp_path / "dataflow.json").read_text())
    assert found["parts_us"] < found["full_us"]
    assert 0 < len(found["stages_in_parts"]) <= found["stages_proposed"]
    assert all(sum(stage["units"]) == 8 for stage in found["stages_in_parts"])
    steps = json.loads((tmp_path / "plan.json").read_text())["steps"]
    beside = [step for step in steps if step["units"] < 8]
    named = {name for stage in found["stages_in_parts"] for lane in stage["operators"] for name in lane}
    assert {step["operator"] for step in beside} == named
    assert f"{len(found['stages_in_parts'])} of {found['stages_proposed']} stages that the search found" in text
    assert "leave --devices out" in refused("dataflow optimize squeezenet -d c6678 --parts --devices 2")


def test_four_devices_ring_and_mix() -> None:
    """d-Xenos: the mix is faster than any one mode, and a ring than a parameter server."""
    found = printed_json("dataflow optimize mobilenet_v1 -d c6678 --devices 4 --link srio --sync ring --json")
    assert 3.3 < found["speedup"] < 4.0
    assert found["latency_us"] < min(found["by_mode_us"].values())
    assert found["latency_us"] == pytest.approx(found["compute_us"] + found["waited_us"])
    waited = [row["waited_us"] for row in found["operators"]]
    assert all(row["waited_us"] <= row["exchange_us"] for row in found["operators"])
    assert 0 < sum(waited) <= found["waited_us"]
    only = printed_json("dataflow optimize mobilenet_v1 -d c6678 --devices 4 --mix outC --sync server --json")
    assert set(only["by_mode_us"]) == {"outC"}
    assert {row["mode"] for row in only["operators"]} <= {"outC", "replicated"}
    assert only["speedup"] < found["by_mode_us"]["outC"] / found["latency_us"] * found["speedup"]


def test_a_plan_a_device_and_the_messages_between_them(tmp_path: Path) -> None:
    text = printed(f"dataflow optimize squeezenet -d c6678 --devices 2 --out {tmp_path} --no-plot")
    assert text.startswith("squeezenet on 2 c6678, batch 1, fp32, simulated")
    assert "Every operator divided alike: outC" in text
    found = json.loads((tmp_path / "distribution.json").read_text())
    sent = [each for step in found["steps"] for exchange in step["exchanges"] for each in exchange["messages"]]
    boxes = [box for message in sent for box in message["boxes"]]
    (row,) = (row for row in found["operators"] if row["operator"] == "pool1")
    (shown,) = (line.split() for line in text.splitlines() if line.startswith("pool1 "))
    assert shown[2] == f"{row['sent_bytes'] / 1024:.0f}"
    assert 4 * sum(math.prod(box["shape"]) for box in boxes) == found["sent_bytes"] > 0
    plans = [json.loads((tmp_path / f"plan{index}.json").read_text()) for index in range(2)]
    assert plans[0] != plans[1]


def test_what_runs_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = printed_json("dataflow run ios_sample -d c6678 --json")
    assert (alone["holds"], alone["devices"], alone["planned_bytes"]) == (True, 1, 0)
    assert "on 3 c6678: outputs differ from the network's by" in printed("dataflow run ios_sample -d c6678 --devices 3")
    monkeypatch.setattr("iossim.edge.runs.TOLERANCE", -1.0)
    assert main(["dataflow", "run", "ios_sample", "-d", "c6678"]) == ExitCode.DOES_NOT_HOLD


def test_what_xenos_measured_and_the_model_does_not_is_said() -> None:
    assert (
        "Xenos (figure 7) measured that linking takes 21.2 to 83.3% off on this device. "
        "This model does not reproduce that here."
    ) in " ".join(printed("dataflow optimize ios_sample -d zcu102").split())
    assert "Xenos" not in printed("dataflow optimize mobilenet_v1 -d c6678")


@pytest.mark.parametrize("command", ["optimize {} --devices 2", "optimize {}", "explain {}"])
def test_times_without_an_interval_say_so(command: str) -> None:
    words = " ".join(printed(f"dataflow {command.format('ios_sample')} -d c6678").split())
    assert "No interval: no time was measured on a c6678" in words


def test_a_step_that_takes_nothing_off_has_no_sign() -> None:
    words = printed("dataflow optimize ios_sample -d c6678+shared.bytes=1000")
    assert "% less)" in words
    assert "(-" not in words


def test_operators_are_explained() -> None:
    found = printed_json("dataflow explain ios_sample -d c6678 --batch 2 --json")
    assert sum(row["share"] for row in found["operators"]) == pytest.approx(1)
    text = printed(f"dataflow explain ios_sample -d c6678 --operator {found['operators'][0]['operator']}")
    assert "bound by" in text
    assert "more operators" not in text
    assert "more operators take" in printed("dataflow explain mobilenet_v1 -d c6678")
    assert "is not in the network" in refused("dataflow explain ios_sample -d c6678 --operator x")
