"""``iossim check``: exit code 0 where all holds, 1 where something does not, 2 for a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused
from jsonschema import Draft202012Validator

from iossim.cli.main import main
from iossim.report.schemas import schema


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(schema(name))


def fails(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """What is printed where something does not hold; standard error stays empty."""
    capsys.readouterr()
    assert main(line.split()) == 1
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def test_a_latency(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("check ios_sample --device t4 --max-latency-ms 1")
    assert [line.partition(":")[0] for line in text.splitlines()] == [
        "PASS valid",
        "PASS free of races",
        "PASS latency",
    ]
    latency_us = printed_json("optimize ios_sample --device t4 --json")["latency_us"]
    assert latency_us < 1000
    over = f"check ios_sample --device t4 --max-latency-ms {latency_us / 1e3 * 0.999}"
    assert "FAIL latency: " in fails(capsys, over)
    found = json.loads(fails(capsys, f"{over} --json"))
    assert validator("check").is_valid(found)
    assert found["checks"][-1]["latency_us"] > found["checks"][-1]["limit_us"]
    assert found["holds"] is False
    assert found["latency_us"] == latency_us
    assert [check["holds"] for check in found["checks"]] == [True, True, False]
    # Of the sequential schedule it is another question.
    assert "FAIL" in fails(
        capsys, f"check ios_sample --device t4 --max-latency-ms {latency_us / 1e3} --scheduler sequential"
    )


def test_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(f"optimize ios_sample --device t4 --out {tmp_path}/best --no-plot --no-trace")
    line = f"check ios_sample --device t4 --baseline {tmp_path}/best/schedule.json"
    assert "PASS no slower than before: " in printed(line)
    slow = fails(capsys, f"{line} --scheduler sequential")
    assert "(priced again)" in slow
    assert "(priced again) + 200.0%" in printed(f"{line} --scheduler sequential --tolerance 2")
    found = printed_json(f"{line} --json")
    assert validator("check").is_valid(found)
    (gate,) = (check for check in found["checks"] if check["check"] == "no slower than before")
    assert gate["latency_us"] == gate["baseline_us"] == found["latency_us"]
    # Joins of branches are fused, or not, by their price: the search finds again what it saved.
    printed(f"optimize squeezenet -d t4 --out {tmp_path}/joins --no-plot --no-trace")
    line = f"check squeezenet -d t4 --baseline {tmp_path}/joins/schedule.json"
    assert "PASS no slower than before: " in printed(line)
    assert "PASS no slower than before: " in printed(f"{line} --scheduler ios-streams")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("squeezenet -d t4", "model ios_sample, not squeezenet"),
        ("squeezenet -d t4 --changed-model --dtype fp16", "dtype fp32, not fp16; cost model"),
        ("ios_sample -d t4 --batch 2", "batch 1, not 2; give"),
        ("ios_sample -d v100-sxm2", "device t4, not v100-sxm2; give"),
        ("ios_sample -d t4 --engine graph", "engine paper, not graph; give"),
        ("ios_sample -d t4 --units none", "units by default, not none; give"),
        ("ios_sample -d t4 --training", "training by default, not True; give"),
    ],
)
def test_a_baseline_of_another_question_is_refused(asked: str, words: str, tmp_path: Path) -> None:
    """Whatever the two take: "no slower" would mean nothing."""
    printed(f"optimize ios_sample --device t4 --scheduler sequential --out {tmp_path} --no-plot --no-trace")
    said = refused(f"check {asked} --baseline {tmp_path}/schedule.json --tolerance 100")
    assert "--baseline is of another question: " in said
    assert words in said


def test_a_changed_model_is_compared_as_it_was_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(f"optimize ios_sample --device t4 --out {tmp_path} --no-plot --no-trace")
    line = f"check squeezenet -d t4 --baseline {tmp_path}/schedule.json --changed-model"
    assert "(as it was saved, of 'ios_sample')" in fails(capsys, line)


def test_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(
        f"optimize squeezenet --device v100-sxm2 --engine graph --scheduler ios-streams --out {tmp_path}/best --no-plot"
    )
    line = f"check squeezenet --device v100-sxm2 --engine graph --baseline {tmp_path}/best/schedule.json"
    found = printed(f"{line} --scheduler ios-streams --max-latency-ms 1")
    assert "streams run each of" in found
    assert "PASS free of races" in found
    assert "(priced again)" in found
    assert "FAIL no slower than before" in fails(capsys, f"{line} --scheduler sequential")
    assert "batch 1, not 2" in refused(f"{line} --batch 2 --scheduler sequential")
    # Under the paper engine the sums of stages that were found say more than their plans take.
    plain = "squeezenet --device v100-sxm2 --engine paper"
    printed(f"optimize {plain} --out {tmp_path}/stages --no-plot")
    compared = f"check {plain} --scheduler ios-streams --baseline {tmp_path}/stages/schedule.json"
    assert "baseline 0.705 ms (both as whole plans)" in printed(compared)
    assert "prices stages alone" in refused(f"{line} --cost-model random:1")
