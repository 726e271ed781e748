"""``iossim run`` on the backends of every machine: NumPy's executor and the simulator."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from command_line import printed, printed_json, refused
from plan_reading import plan_from_json

import iossim


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


def test_the_table(saved: Path) -> None:
    text = printed(["run", str(saved), "--backend", "numpy_reference", "--rounds", "2", "--warm-up", "0"])
    assert "ios_sample by numpy_reference, batch 1, fp32, paper engine" in text
    assert "sequential" in text
    assert "Outputs differ from NumPy's by" in text
    assert "Activations take" in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--backend", "numpy"], "--backend 'numpy' is not known; did you mean 'numpy_reference'?"),
        (["--backend", "numpy_reference", "--rounds", "0"], "--rounds 0 is too few; give 1 or more"),
        (
            ["--backend", "numpy_reference", "--compare", "sequental"],
            "--compare 'sequental' is not known; did you mean 'sequential'?",
        ),
        (["--backend", "simulator", "--device", "v100-sxm2"], "backend simulator computes no values"),
        (["--backend", "simulator"], "backend simulator needs a device; give --device NAME"),
    ],
)
def test_mistakes(saved: Path, arguments: list[str], reason: str) -> None:
    assert reason in refused(["run", str(saved), *arguments])
