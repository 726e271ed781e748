"""``iossim run`` on the backends of every machine, and ``iossim schedules``: what the IOS engine saved, priced and written."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from case_files import cases
from command_line import printed, printed_json, refused
from other_plans import plan_from_json

import iossim
from iossim.schedule.schedule import Schedule

CASES = cases(__file__, "mistakes.yaml")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "schedule.json"
    iossim.optimize("ios_sample", "v100-sxm2").save(path)
    return path


def run_json(*arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = printed_json(["run", *arguments, "--json"])
    return document


def test_checked_timed_and_beside_others(saved: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    document = run_json(
        str(saved), "--backend", "numpy_reference", "--compare", "sequential,greedy", "--rounds", "3",
        "--warm-up", "1", "--plan", str(plan), "--store", str(tmp_path / "store.sqlite"),
    )  # fmt: skip
    assert document["model"] == "ios_sample"
    assert document["context"]["backend"] == "numpy_reference"
    assert document["output_error"] < 1e-5
    assert [run["name"] for run in document["runs"]] == ["sequential", "greedy", "ios-both"]
    for run in document["runs"]:
        assert len(run["times_us"]) == run["rounds"] == 3
        assert run["median_us"] == sorted(run["times_us"])[1]
        # The schedule was priced for another device: that is no prediction for this one.
        assert run["predicted_us"] is None
    first, _, last = document["runs"]
    assert last["speedup"]["value"] == pytest.approx(first["median_us"] / last["median_us"])
    memory = document["memory"]
    assert memory["lower_bound_bytes"] <= memory["arena_bytes"] <= memory["unshared_bytes"]
    read = plan_from_json(plan.read_text())
    assert read.arena_bytes == memory["arena_bytes"]


def test_stages_of_the_simulator_against_its_own_prices(saved: Path, tmp_path: Path) -> None:
    """Prediction and measurement are the same stages, priced twice; concats in place are no work."""
    document = run_json(
        str(saved), "--backend", "simulator", "--device", "v100-sxm2", "--no-check", "--compare", "",
        "--stages", "--store", str(tmp_path / "store.sqlite"),
    )  # fmt: skip
    assert document["output_error"] is None
    assert [run["name"] for run in document["runs"]] == ["ios-both"]
    errors = []
    assert any(stage["measured_us"] == 0 for stage in document["stages"])
    for stage in filter(lambda stage: stage["measured_us"], document["stages"]):
        errors.append(abs(stage["predicted_us"] / stage["measured_us"] - 1) * 100)
    assert document["median_stage_error_percent"] == pytest.approx(median(errors))
    priced = iossim.simulate(saved, cost_model=iossim.cost_model("simulator:in-place", "v100-sxm2"))
    assert [stage["predicted_us"] for stage in document["stages"]] == [one.latency_us for one in priced.stages]
    assert [run["predicted_us"] for run in document["runs"]] == [priced.latency_us]


def test_the_simulator_runs_what_it_predicts_of_backends(tmp_path: Path) -> None:
    """With kernels chosen for their company, in TF32, where the layout of backends is another than a compiler's."""
    priced = "--device h200-sxm --dtype tf32"
    printed(
        f"optimize squeezenet {priced} --cost-model simulator:backend --company --out {tmp_path} --no-plot --no-trace"
    )
    found = Schedule.read(tmp_path / "schedule.json")
    assert sum(len(stage.variants) for stage in found.stages) > 4
    run = f"{tmp_path}/schedule.json --backend simulator --no-check --compare sequential --device"
    timed = run_json(*run.split(), "h200-sxm")
    (benched,) = printed_json(f"bench ios_sample {priced} --backend simulator --store {tmp_path}/store --json")
    for row in (*timed["runs"], *benched["runs"]):
        assert row["median_us"] == pytest.approx(row["predicted_us"], rel=0.05)
    assert timed["runs"][1]["predicted_us"] == pytest.approx(found.latency_us, rel=1e-9)
    assert timed["remarks"] == []
    elsewhere = run_json(*run.split(), "a100-sxm-40gb")
    assert "units with its own kernels: the schedule names some of h200-sxm" in elsewhere["remarks"][0]


def test_the_table(saved: Path) -> None:
    text = printed(["run", str(saved), "--backend", "numpy_reference", "--rounds", "2", "--warm-up", "0"])
    assert "ios_sample by numpy_reference, batch 1, fp32, paper engine" in text
    assert "sequential" in text
    assert "Outputs differ from NumPy's by" in text
    assert "Activations take" in text


@pytest.mark.parametrize(("arguments", "reason"), CASES["run"])
def test_mistakes(saved: Path, arguments: list[str], reason: str) -> None:
    assert reason in refused(["run", str(saved), *arguments])


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
    assert sorted(file.name for file in folder.iterdir()) == ["schedule.json"]
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


def test_mistakes_are_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    folder, file = tmp_path / "out", tmp_path / "theirs.json"
    printed(["optimize", "ios_sample", "--device", "t4", "--no-plot", "--no-trace", "--out", str(folder)])
    schedule = str(folder / "schedule.json")
    refused(f"schedules export {schedule} --out {file} --format io", "'io' is not known; did you mean 'ios'")
    refused(f"schedules import {file}", "cannot read IOS schedule")
    refused(f"schedules import {tmp_path}/a.txt", "must end in .json")
    refused(f"schedules import {schedule} --out {tmp_path}/new", "is no model but a schedule of iossim")
    assert not file.exists()
    assert not (tmp_path / "new").exists()
