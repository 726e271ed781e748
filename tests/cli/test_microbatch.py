"""``iossim microbatch``: tables of one's own and models, under limits of each kernel and of all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import printed, printed_json, refused
from jsonschema import Draft202012Validator

from iossim.report.schemas import schema

Capture = pytest.CaptureFixture[str]
TABLE = {
    "conv2": [
        {"batch": size, "algorithm": name, "time_us": time_us * size + 1, "workspace_bytes": size * need}
        for size in (1, 2, 4, 8)
        for name, time_us, need in (("fft", 1.0, 1 << 20), ("gemm", 3.0, 0))
    ],
    "conv3": [{"batch": 8, "algorithm": "gemm", "time_us": 5.0, "workspace_bytes": 0}],
}
ALEXNET = "microbatch alexnet --device p100-sxm2 --batch 32 --policy power-of-two"


def table(folder: Path, content: Any = TABLE) -> Path:
    path = folder / "bench.json"
    path.write_text(json.dumps(content))
    return path


def test_a_table_under_a_limit_of_each_kernel(tmp_path: Path, capsys: Capture) -> None:
    found = printed_json(capsys, f"microbatch --table {table(tmp_path)} --workspace 4MiB --json")
    first, second = found["kernels"]
    assert first == {
        "layer": "conv2",
        "pass": "forward",
        "configuration": [{"micro_batch": 4, "count": 2, "algorithm": "fft"}],
        "time_us": 10.0,
        "undivided_us": 25.0,
        "workspace_bytes": 4 << 20,
    }
    assert second["undivided_us"] == second["time_us"] == 5.0
    assert (found["time_us"], found["undivided_us"]) == (15.0, 30.0)
    shown = printed(capsys, f"microbatch --table {table(tmp_path)} --workspace 4MiB")
    assert "2x4 fft" in shown
    assert "2.00 times" in shown


def test_a_table_under_one_limit_for_all(tmp_path: Path, capsys: Capture) -> None:
    shown = printed(capsys, f"microbatch --table {table(tmp_path)} --total-workspace 2MiB")
    assert "4x2 fft" in shown
    assert "proved the best under the limit" in shown


def test_a_model_with_its_gradients(tmp_path: Path, capsys: Capture) -> None:
    found = printed_json(capsys, f"{ALEXNET} --pass training --total-workspace 60MiB --json --out {tmp_path}")
    names = [(one["layer"], one["pass"]) for one in found["kernels"]]
    assert len(names) == len(set(names)) == 14  # the first layer reads the images
    assert found["workspace_bytes"] == sum(one["workspace_bytes"] for one in found["kernels"]) <= 60 << 20
    assert found["lower_bound_us"] <= found["time_us"] <= found["undivided_us"]
    for one in found["kernels"]:
        assert sum(part["micro_batch"] * part["count"] for part in one["configuration"]) == 32
    assert json.loads((tmp_path / "microbatch.json").read_text()) == found
    assert list(Draft202012Validator(schema("microbatch")).iter_errors(found)) == []
    assert {"front.svg", "workspaces.svg"} <= {path.name for path in tmp_path.iterdir()}


def test_activations_and_workspaces_under_one_limit(capsys: Capture) -> None:
    found = printed_json(capsys, f"{ALEXNET} --memory-limit 85MiB --json")
    assert found["arena_bytes"] <= found["memory_limit_bytes"] == 85 << 20
    assert found["proved"]
    assert found["time_us"] < found["undivided_us"]
    assert list(Draft202012Validator(schema("microbatch")).iter_errors(found)) == []
    assert "The arena with activations has" in printed(capsys, f"{ALEXNET} --memory-limit 85MiB")


def test_the_more_workspace_the_faster(capsys: Capture) -> None:
    times = [
        printed_json(capsys, f"{ALEXNET} --workspace {size} --json")["time_us"] for size in ("0B", "8MiB", "64MiB")
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--workspace 64", "--workspace '64' is not a size; say 64MiB"),
        ("--policy halves", "--policy 'halves' is not known"),
        ("--batch 6 --policy undivided", "layer 'conv2': no micro-batches with rows add up to a batch of 6"),
        ("--batch 12", "layer 'conv3': no micro-batches"),
        ("alexnet", "a model or a table, not both"),
    ],
)
def test_mistakes_with_a_table(tmp_path: Path, capsys: Capture, options: str, reason: str) -> None:
    assert reason in refused(capsys, f"microbatch --table {table(tmp_path)} {options}")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, "there is no kernel in it"),
        ({"conv2": []}, "kernel 'conv2' has no rows"),
        ({"conv2": [{"batch": 8, "algorithm": "fft", "workspace_bytes": 1}]}, "conv2.0.time_us"),
        (
            {"conv2": [{"batch": 8, "algorithm": "fft", "time_us": 1.0, "workspace_bytes": 9}]},
            "needs 9 bytes at least",
        ),
        ([1], "should be an object"),
    ],
)
def test_mistakes_in_a_table(tmp_path: Path, capsys: Capture, content: Any, reason: str) -> None:
    assert reason in refused(capsys, f"microbatch --table {table(tmp_path, content)} --workspace 1B")


def test_mistakes_with_a_model(capsys: Capture) -> None:
    assert "needs a device" in refused(capsys, "microbatch alexnet")
    assert "--pass 'backward' is not known" in refused(capsys, f"{ALEXNET} --pass backward")
    assert "has no convolution" in refused(capsys, "microbatch bert_layer --device t4")
