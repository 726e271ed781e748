"""``iossim schedules``: what the IOS engine saved, priced here; what was found here, written for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused


@pytest.mark.parametrize(("batch", "within"), [(1, 0.08), (32, 0.11)])
def test_published_schedules_are_priced_beside_what_was_published(
    shared: Path, tmp_path: Path, batch: int, within: float
) -> None:
    path = shared / "data" / "ios_schedules" / f"inception_v3.v100.batch{batch}.json"
    if not path.exists():
        pytest.skip(f"no schedule of the IOS engine at {path}")
    text = printed(["schedules", "import", str(path), "--batch", str(batch)])
    published_ms = {1: "4.03", 32: "27.00"}[batch]
    assert f"Published of IOS at batch {batch}: {published_ms} ms" in text

    folder, back = tmp_path / "found", tmp_path / "back.json"
    arguments = ["schedules", "import", str(path), "--batch", str(batch), "--no-plot", "--no-trace"]
    priced = printed_json([*arguments, "--out", str(folder), "--json"])
    assert priced["scheduler"] == "ios-both"
    assert priced["latency_us"] == pytest.approx(1e3 * float(published_ms), rel=within)
    assert priced["latency_us"] == pytest.approx(
        sum(s["latency_us"] + s["boundary_us"] for b in priced["blocks"] for s in b["stages"])
    )
    assert sorted(file.name for file in folder.iterdir()) == ["graph.dot", "schedule.json"]
    printed(["schedules", "export", str(folder / "schedule.json"), "--out", str(back), "--format", "ios"])
    assert back.read_text() == path.read_text()
    again = printed_json(["simulate", str(folder / "schedule.json"), "--json"])
    assert again["latency_us"] == priced["latency_us"]


def test_a_schedule_of_ours_goes_there_and_back(tmp_path: Path) -> None:
    folder, file = tmp_path / "out", tmp_path / "theirs.json"
    asked = ["optimize", "squeezenet", "--device", "t4", "--no-plot", "--no-trace", "--out", str(folder)]
    printed(asked)  # with sums in convolutions, which the format cannot say
    assert "--units apart" in refused(["schedules", "export", str(folder / "schedule.json"), "--out", str(file)])
    printed([*asked, "--units", "apart"])
    ours = json.loads((folder / "schedule.json").read_text())
    assert any(stage["strategy"] == "merge" for block in ours["blocks"] for stage in block["stages"])
    printed(["schedules", "export", str(folder / "schedule.json"), "--out", str(file)])
    assert json.loads(file.read_text())["name"] == "squeezenet_dp_parallel_merge"
    back = printed_json(["schedules", "import", str(file), "--device", "t4", "--json"])
    assert back["graph_hash"] == ours["graph_hash"]
    # Their files have an order of their own, by which activations may be in L2 or not.
    assert back["latency_us"] == pytest.approx(ours["latency_us"], rel=1e-3)
    stages = [[[s["strategy"], s["groups"]] for s in block["stages"]] for block in back["blocks"]]
    assert stages == [[[s["strategy"], s["groups"]] for s in block["stages"]] for block in ours["blocks"]]
    dotted = tmp_path / "graph.dot"
    printed(["schedules", "export", str(folder / "schedule.json"), "--out", str(dotted), "--format", "dot"])
    assert dotted.read_text() == (folder / "graph.dot").read_text()


def test_mistakes_are_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    folder, file = tmp_path / "out", tmp_path / "theirs.json"
    printed(["optimize", "ios_sample", "--device", "t4", "--no-plot", "--no-trace", "--out", str(folder)])
    schedule = str(folder / "schedule.json")
    assert "'io' is not known; did you mean 'ios'" in refused(
        ["schedules", "export", schedule, "--out", str(file), "--format", "io"]
    )
    nowhere = str(tmp_path / "nowhere" / "file.json")
    assert "cannot be written" in refused(["schedules", "export", schedule, "--out", nowhere])
    assert "cannot read IOS schedule" in refused(["schedules", "import", str(file)])
    assert "must end in .json" in refused(["schedules", "import", str(tmp_path / "a.txt")])
    assert "is not valid" in refused(["schedules", "import", schedule, "--out", str(tmp_path / "new")])
    assert not file.exists()
    assert not (tmp_path / "new").exists()
