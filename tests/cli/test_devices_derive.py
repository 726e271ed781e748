"""``iossim devices derive``."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import printed, printed_json, refused

FACTS = "--sm 30 --clock-ghz 1.4 --dram-gbps 300 --power-w 75"
SAMPLES = """op,batch,in_channels,out_channels,kernel,in_size,stride,padding,latency_us
conv,8,64,64,3,56,1,1,900
conv,8,128,128,3,28,1,1,700
conv,16,256,256,3,14,1,1,1100
conv,4,512,512,3,14,1,1,1300
"""


def test_a_derived_device_predicts_with_the_wider_interval() -> None:
    text = printed(f"devices derive mine --like t4 {FACTS}")
    assert "mine: turing, 30 SMs at 1.4 GHz" in text
    assert "transferred from" in text
    shown = printed_json("devices show mine.yaml --json")
    assert shown["provenance"]["kind"] == "transferred"
    Path("ops.csv").write_text(
        "op,batch,in_channels,out_channels,kernel,in_size,stride,padding\nconv,8,64,64,3,56,1,1\n"
    )
    (row,) = printed_json("predict ops.csv --device mine.yaml --json")
    assert row["low_us"] < row["gpu_time_us"] < row["high_us"]


def test_json_is_the_profile_written() -> None:
    data = printed_json(f"devices derive mine --like t4 {FACTS} --out here.yaml --json")
    assert data.pop("profile") == "here.yaml"
    assert data == printed_json("devices show here.yaml --json")


def test_samples_refine() -> None:
    Path("samples.csv").write_text(SAMPLES)
    printed(f"devices derive plain --like t4 {FACTS}")
    printed(f"devices derive mine --like t4 {FACTS} --samples samples.csv")
    plain, mine = (printed_json(f"devices show {name}.yaml --json") for name in ("plain", "mine"))
    assert "refined with 4 measurements" in mine["provenance"]["note"]
    assert plain["parameters"] != mine["parameters"]
    assert json.dumps(plain["datasheet"]) == json.dumps(mine["datasheet"])


def test_a_file_that_is_there_is_kept() -> None:
    Path("mine.yaml").write_text("precious")
    assert "--out mine.yaml" in refused("devices derive mine --like t4")
    assert Path("mine.yaml").read_text() == "precious"
