"""``iossim corun``: kernels side by side, from a table to its lanes, table, JSON and files."""

from __future__ import annotations

import csv
import json
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused
from jsonschema import Draft202012Validator
from trace_format import check_trace

from iossim.report.schemas import schema

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "corun"
#: What each example ran on, how long it took side by side, and how far from that the simulated time may be.
MEASURED = {
    "a100_prefill_decode.csv": ("a100-sxm-80gb", 6018.6, 0.02),
    "a5000_convolution_batch_norm.csv": ("rtx-a5000", 113.1, 0.16),
    "gtx1080ti_upsample_batch_norm.nsys.csv": ("gtx-1080-ti", 4574.1, 0.01),
    "rtx5090_copies.csv": ("rtx-5090", 223415.0, 0.27),
    "v100_fp64.csv": ("v100-pcie-32gb", 124381.0 + 461351.0, 0.02),
    "v100_sleep.csv": ("v100-pcie-32gb", 204817.0, 0.01),
}
PAIR = "stream,name,blocks,threads,alone_us\n0,a,160,1024,100\n1,b,160,1024,100\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own, with a table of two kernels that fill a V100 each."""
    monkeypatch.chdir(tmp_path)
    Path("KERNELS.csv").write_text(PAIR)
    return tmp_path


def test_all_examples_are_tested() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(MEASURED)


@pytest.mark.parametrize("name", MEASURED)
def test_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    device, measured_us, tolerance = MEASURED[name]
    document = printed_json(capsys, f"corun {EXAMPLES / name} --device {device} --json")
    assert document["makespan_us"] == pytest.approx(measured_us, rel=tolerance)
    assert list(Draft202012Validator(schema("corun")).iter_errors(document)) == []
    kernels = document["kernels"]
    assert document["alone_us"] <= document["makespan_us"]
    assert document["makespan_us"] == pytest.approx(max(kernel["end_us"] for kernel in kernels))
    for stream in {kernel["stream"] for kernel in kernels}:
        own = [kernel for kernel in kernels if kernel["stream"] == stream]
        for before, after in pairwise(own):
            assert before["end_us"] <= after["start_us"]
    for kernel in kernels:
        assert kernel["start_us"] < kernel["end_us"]
        for slowed in kernel["slowed_by"]:
            assert kernels[slowed["by"]]["stream"] != kernel["stream"]


def test_shares_of_the_sms(capsys: pytest.CaptureFixture[str]) -> None:
    """Prefill and decode of the example on 54 SMs each, as measured in green contexts."""
    table = EXAMPLES / "a100_prefill_decode.csv"
    document = printed_json(capsys, f"corun {table} -d a100-sxm-80gb --sm-share 50,50 --json")
    *_, prefill, decode = document["kernels"]
    assert prefill["end_us"] == pytest.approx(9558.5, rel=0.15)
    assert decode["end_us"] == pytest.approx(1605.1, rel=0.15)
    assert decode["slowed_by"] == []


def test_kernels_that_fill_the_device_run_one_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    document = printed_json(capsys, "corun KERNELS.csv -d v100-sxm2 --json")
    assert document["makespan_us"] == pytest.approx(document["sequential_us"], rel=0.05)
    Path("KERNELS.csv").write_text(PAIR.replace("160", "80"))
    document = printed_json(capsys, "corun KERNELS.csv -d v100-sxm2 --json")
    assert document["makespan_us"] == pytest.approx(document["alone_us"], rel=0.01)


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "corun KERNELS.csv -d v100-sxm2 --streams")
    assert text.startswith("KERNELS.csv on v100-sxm2, streams, launched by the host")
    for words in ("stream 0", " 0 a ===", "stream 1", "Concurrent: ", "for the streams one after"):
        assert words in text
    assert "one CUDA graph" in printed(capsys, "corun KERNELS.csv -d v100-sxm2 --graph")


def test_many_rows_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    Path("KERNELS.csv").write_text(PAIR + "0,c,8,32,1\n" * 60)
    short, whole = (printed(capsys, f"corun KERNELS.csv -d v100-sxm2 {option}") for option in ("", "--all"))
    assert "the 40 of 62 kernels that lost most time are shown (--all shows all)" in " ".join(short.split())
    assert len(whole.splitlines()) > len(short.splitlines()) + 15


NSYS = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,StcSMem (MB),Device,Ctx,Strm,Name\n"
    "1000,50000,1,216,1,1,256,1,1,0.131,NVIDIA A100-SXM4-80GB (0),1,7,a\n"
    "12000,40000,2,216,1,1,256,1,1,0,NVIDIA A100-SXM4-80GB (0),1,20,b\n"
    "60000,4000,3,216,1,1,256,1,1,0,NVIDIA A100-SXM4-80GB (0),1,7,c\n"
)


def test_a_recording_is_priced_on_its_own_device_and_tells_how_long_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    Path("nsys.csv").write_bytes(NSYS.encode("utf-16"))  # as PowerShell redirects it
    document = printed_json(capsys, "corun nsys.csv --json")
    assert list(Draft202012Validator(schema("corun")).iter_errors(document)) == []
    assert (document["device"], document["recorded_us"]) == ("a100-sxm-80gb", 63.0)
    assert document["difference_percent"] == pytest.approx(100 * (document["makespan_us"] / 63 - 1))
    assert any("2 of 3 kernels ran beside others" in note for note in document["notes"])
    assert not any("recorded on" in note for note in document["notes"])
    text = " ".join(printed(capsys, "corun nsys.csv").split())
    assert "Recorded: 63.0 us from the first start to the last end, 8.0 us of it without a kernel; simulated" in text
    assert printed_json(capsys, "corun KERNELS.csv -d t4 --json")["recorded_us"] is None


def test_a_recording_on_another_device(capsys: pytest.CaptureFixture[str]) -> None:
    """What does not fit is the device's fault, not that of a cell."""
    Path("nsys.csv").write_text(NSYS)
    line = refused(capsys, "corun nsys.csv -d v100-sxm2")
    assert "shared_bytes: 131000 is more than a block has on v100-sxm2: at most 98304" in line
    assert "it was recorded on a100-sxm-80gb: give that --device" in line
    Path("nsys.csv").write_text(NSYS.replace("0.131", "0"))
    notes = printed_json(capsys, "corun nsys.csv -d v100-sxm2 --json")["notes"]
    assert "recorded on a100-sxm-80gb, not on v100-sxm2" in notes[0]
    Path("nsys.csv").write_text(NSYS.replace("A100-SXM4-80GB", "CMP 170HX"))
    assert "was recorded on cmp-170hx, which has no profile" in refused(capsys, "corun nsys.csv")


def test_files(capsys: pytest.CaptureFixture[str]) -> None:
    document = printed_json(capsys, "corun KERNELS.csv -d v100-sxm2 --json --out out --no-plot")
    assert sorted(path.name for path in Path("out").iterdir()) == ["corun.json", "kernels.csv", "trace.json"]
    assert json.loads(Path("out/corun.json").read_text()) == document
    rows = list(csv.DictReader(Path("out/kernels.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["a", "b"]
    tracks = check_trace(Path("out/trace.json").read_text())
    assert [[event["name"] for event in events] for events in tracks.values()] == [["a"], ["b"]]


def test_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    printed(capsys, "corun KERNELS.csv -d v100-sxm2 --out out --no-trace")
    names = ["corun.json", "kernels.csv", "timeline.png", "timeline.svg"]
    assert sorted(path.name for path in Path("out").iterdir()) == names


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", ["--device"]),
        ("-d v101", ["did you mean"]),
        ("-d v100-sxm2 --sm-share 50,x", ["--sm-share '50,x'", "percentage"]),
        ("-d v100-sxm2 --sm-share 50,-5", ["--sm-share"]),
        ("-d v100-sxm2 --sm-share 0,50", ["--sm-share"]),
        ("-d v100-sxm2 --sm-share nan,50", ["--sm-share"]),
        ("-d v100-sxm2 --sm-share 60,50", ["--sm-share", "at most 100"]),
        ("-d v100-sxm2 --sm-share 30,30,30", ["--sm-share", "3", "2"]),
        ("-d v100-sxm2 --sm-share 50", ["--sm-share", "1", "2"]),
        ("-d v100-sxm2 --sm-share 99.9,0.1", ["--sm-share", "no SM"]),
        ("-d v100-sxm2 --trace", ["--trace needs a folder"]),
        ("-d v100-sxm2 --out KERNELS.csv", ["is not a folder"]),
    ],
)
def test_bad_options(options: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, f"corun KERNELS.csv {options}")
    for word in words:
        assert word in line


def test_bad_rows_are_named_by_line(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    Path("KERNELS.csv").write_text(PAIR + "1,c,8,2048,5\n")
    line = refused(capsys, "corun KERNELS.csv -d v100-sxm2 --out out")
    assert line.startswith("error: KERNELS.csv:4: threads: 2048 is more than a block has")
    assert "cannot read kernels none.csv" in refused(capsys, "corun none.csv -d v100-sxm2")
    assert [path.name for path in folder.iterdir()] == ["KERNELS.csv"]
