"""``iossim devices derive``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

FACTS = "--sm 30 --clock-ghz 1.4 --dram-gbps 300 --power-w 75"
SAMPLES = """op,batch,in_channels,out_channels,kernel,in_size,stride,padding,latency_us
conv,8,64,64,3,56,1,1,900
conv,8,128,128,3,28,1,1,700
conv,16,256,256,3,14,1,1,1100
conv,4,512,512,3,14,1,1,1300
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_derived_device_predicts_with_the_wider_interval(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, f"devices derive mine --like t4 {FACTS}")
    assert "mine: turing, 30 SMs at 1.4 GHz" in text
    assert "transferred from" in text
    shown = printed_json(capsys, "devices show mine.yaml --json")
    assert shown["provenance"]["kind"] == "transferred"
    Path("ops.csv").write_text(
        "op,batch,in_channels,out_channels,kernel,in_size,stride,padding\nconv,8,64,64,3,56,1,1\n"
    )
    (row,) = printed_json(capsys, "predict ops.csv --device mine.yaml --json")
    assert row["low_us"] < row["gpu_time_us"] < row["high_us"]


def test_json_is_the_profile_written(capsys: pytest.CaptureFixture[str]) -> None:
    data = printed_json(capsys, f"devices derive mine --like t4 {FACTS} --out here.yaml --json")
    assert data.pop("profile") == "here.yaml"
    assert data == printed_json(capsys, "devices show here.yaml --json")


def test_samples_refine(capsys: pytest.CaptureFixture[str]) -> None:
    Path("samples.csv").write_text(SAMPLES)
    printed(capsys, f"devices derive plain --like t4 {FACTS}")
    printed(capsys, f"devices derive mine --like t4 {FACTS} --samples samples.csv")
    plain, mine = (printed_json(capsys, f"devices show {name}.yaml --json") for name in ("plain", "mine"))
    assert "refined with 4 measurements" in mine["provenance"]["note"]
    assert plain["parameters"] != mine["parameters"]
    assert json.dumps(plain["datasheet"]) == json.dumps(mine["datasheet"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("mine --like t4 --sm 0", "--sm 0"),
        ("mine --like t4 --clock-ghz 1590", "--clock-ghz 1.59"),
        ("mine --like nothing", "'nothing'"),
        ("mine", "--like"),
        ("t4 --like v100-sxm2", "ships"),
        ("mine --like t4 --out mine.txt", ".yaml"),
        ("mine --like t4 --out no/mine.yaml", "no such folder"),
        ("mine --like t4 --samples none.csv", "none.csv"),
        ("mine --like t4 --compute-capability 1.0", "--compute-capability 1.0"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    assert words in refused(capsys, f"devices derive {arguments}")
    assert list(Path().iterdir()) == []


def test_a_file_that_is_there_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("precious")
    assert "--out mine.yaml" in refused(capsys, "devices derive mine --like t4")
    assert Path("mine.yaml").read_text() == "precious"
