"""``iossim dataflow optimize``: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

from iossim.dataflow.plan import Variant


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


def test_three_times_and_a_row_an_operator(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, "dataflow optimize mobilenet_v1 --device c6678 --json")
    assert found["vanilla_us"] > found["horizontal_us"] > found["full_us"] > 0
    assert 0 < found["optimise_s"] < 10
    assert len(found["operators"]) == 30
    row = {row["operator"]: row for row in found["operators"]}["conv10.pointwise"]
    assert (row["partition"], row["slices"], row["whole"]) == ("outC 8", 1, "")
    assert row["vanilla_us"] > row["horizontal_us"] > row["full_us"]
    for variant in Variant:
        total = sum(row[f"{variant}_us"] for row in found["operators"])
        assert found[f"{variant}_us"] == pytest.approx(total)


def test_external_memory_is_in_use_at_the_start_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Xenos, figure 9: maps that do not fit at first, and a layer of over 4 MB of parameters at last."""
    found = printed_json(capsys, "dataflow optimize mobilenet_v1 -d c6678 --json")
    bursts = [row for row in found["memory"]["vanilla"] if row["external_bytes"]]
    assert [row["operator"] for row in bursts] == ["conv2.pointwise", "conv3.depthwise", "conv14.pointwise"]
    assert bursts[1]["end_us"] < 0.14 * found["vanilla_us"]
    assert bursts[2]["start_us"] > 0.85 * found["vanilla_us"]
    assert bursts[2]["external_bytes"] > 4_000_000
    assert all(row["shared_bytes"] <= 4 << 20 for row in found["memory"]["full"])


def test_a_table_and_files(capsys: pytest.CaptureFixture[str], out: Path) -> None:
    text = printed(capsys, f"dataflow optimize ios_sample -d c6678 --out {out} --no-plot")
    assert "a further" in text
    assert "Found in" in text
    plan = json.loads((out / "plan.json").read_text())
    assert [step["operator"] for step in plan["steps"]]
    (unit, *_) = plan["steps"][0]["slices"][0]["units"]
    assert {"load", "store", "compute_us", "private_address"} <= set(unit["chunks"][0])
    assert json.loads((out / "dataflow.json").read_text())["device"] == "c6678"


def test_mistakes_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs an edge device; give --device c6678" in refused(capsys, "dataflow optimize ios_sample")
    assert "'t4' is no edge device" in refused(capsys, "dataflow optimize ios_sample -d t4")
    assert "unknown policy 'best'" in refused(capsys, "dataflow optimize ios_sample -d c6678 --policy best")
    assert "does not compute in fp16" in refused(capsys, "dataflow optimize ios_sample -d c6678 --dtype fp16")
