"""A user's mistake on the command line: exit code 2, one line on standard error, nothing else, nothing written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import refused

from iossim.cli.main import main

#: Arguments, and words that the line must hold: the input at fault, and the reason or the remedy.
MISTAKES: list[tuple[str, Sequence[str]]] = [
    # the model
    ("compare", ["MODEL"]),
    ("compare --device t4", ["MODEL"]),
    ("compare squeezenett --device t4", ["'squeezenett'", "did you mean 'squeezenet'?", "resnet50"]),
    ("compare missing.onnx --device t4", ["missing.onnx", "does not exist"]),
    ("compare folder/missing --device t4", ["folder/missing", "does not exist"]),
    ("compare https://x.y/z.onnx --device t4", ["'https://x.y/z.onnx'", "does not exist"]),
    ("models show resnet51", ["'resnet51'", "did you mean 'resnet"]),
    ("search-space nasnet", ["'nasnet'", "did you mean 'nasnet_a'?"]),
    # the device
    ("compare ios_sample", ["--device", "t4", "v100-sxm2"]),
    ("optimize ios_sample", ["--device", "t4", "v100-sxm2"]),
    ("compare ios_sample --device v100-sxm3", ["'v100-sxm3'", "did you mean 'v100-sxm2'?", "t4"]),
    ("compare ios_sample --device missing.yaml", ["missing.yaml", "No such file"]),
    ("compare ios_sample --device ''", ["device ''", "t4"]),
    ("devices show a1o", ["'a1o'", "did you mean 'a10"]),
    ("compare ios_sample --device t4+sms=1000000000", ["t4+sms=1000000000", "sm_count is 1e+09 SMs", "14 to 72"]),
    ("compare ios_sample --device t4 --dtype bf16", ["'t4'", "7.5", "has no bf16; it has fp32, fp16, int8"]),
    ("optimize ios_sample --device v100 --dtype bf16", ["'v100-sxm2'", "has no bf16"]),
    ("compare ios_sample --device t4 --dtype tf32", ["'t4'", "has no tf32; it has fp32, fp16, int8"]),
    ("compare ios_sample --device p100-sxm2 --dtype int8", ["6.0", "has no int8; it has fp32, fp16"]),
    ("predict squeezenet --device k80 --dtype int8", ["3.7", "has no int8; it has fp32, fp16"]),
    # what is given twice
    ("optimize ios_sample --device t4 -d l4", ["'--device'", "given 2 times", "give it once"]),
    ("optimize ios_sample --device t4 -b 1 --batch 2", ["'--batch'", "given 2 times"]),
    ("optimize ios_sample --device t4 --trace --no-trace", ["'--trace'", "given 2 times"]),
    ("devices list --json --json", ["'--json'", "given 2 times"]),
    # options with a fixed set of values
    ("compare ios_sample --device t4 --dtype fp17", ["'fp17'", "did you mean 'fp16'?", "int8"]),
    ("compare ios_sample --device t4 --engine graphs", ["'graphs'", "did you mean 'graph'?", "paper"]),
    ("optimize ios_sample --device t4 --scheduler ios_both", ["'ios_both'", "did you mean 'ios-both'?", "greedy"]),
    ("compare ios_sample --device t4 --stages papers", ["'papers'", "did you mean 'paper'?", "general"]),
    ("search-space ios_sample --stages x", ["'x'", "general, paper"]),
    ("compare ios_sample --device t4 --units fuse", ["'fuse'", "did you mean 'fused'?", "none"]),
    ("compare ios_sample --device t4 --cost-model simulater", ["'simulater'", "did you mean 'simulator'?", "table"]),
    ("compare ios_sample --device t4 --cost-model simulator:7", ["simulator:7", "no such argument"]),
    ("compare ios_sample --cost-model random:x", ["random:x", "whole number"]),
    ("compare ios_sample --cost-model random:-1", ["random:-1", "whole number"]),
    ("compare ios_sample --cost-model table", ["table", "--cost-model table:PRICES.json"]),
    ("compare ios_sample --cost-model table:missing.json", ["missing.json", "No such file"]),
    # numbers
    ("compare ios_sample --device t4 --batch 0", ["batch 0", "1 or more"]),
    ("compare ios_sample --device t4 --batch -1", ["batch -1", "1 or more"]),
    ("compare ios_sample --device t4 --batch abc", ["--batch", "'abc'"]),
    ("compare ios_sample --device t4 --batch 1.5", ["--batch", "'1.5'"]),
    ("models show ios_sample --batch 0", ["batch 0", "1 or more"]),
    ("compare ios_sample --device t4 --max-group-size 0", ["--max-group-size 0", "1 or more"]),
    ("compare ios_sample --device t4 --max-groups -3", ["--max-groups -3", "1 or more"]),
    ("search-space ios_sample --max-groups 0", ["--max-groups 0", "1 or more"]),
    ("compare ios_sample --device t4 --max-block 0", ["0 units", "1 or more"]),
    # shapes
    ("compare ios_sample --device t4 --shape image", ["'image'", "NAME=1x3x224x224"]),
    ("compare ios_sample --device t4 --shape image=1xx3", ["'image=1xx3'", "NAME=1x3x224x224"]),
    ("compare ios_sample --device t4 --shape image=0x375x15x15", ["0x375x15x15", "each at least 1"]),
    ("compare ios_sample --device t4 --shape image=1x375x15", ["1x375x15", "batch x channels"]),
    ("compare ios_sample --device t4 --shape picture=1x375x15x15", ["'picture'", "'image'"]),
    # options that do not go together
    ("compare ios_sample --device t4 --batch 2 --shape image=1x375x15x15", ["1x375x15x15", "batch"]),
    ("compare ios_sample --device t4 --graphs folder", ["'ios_sample'", "graphs", "randwire"]),
    ("compare ios_sample --device t4 --trace", ["--trace", "--out DIR"]),
    ("optimize ios_sample --device t4 --plot", ["--plot", "--out DIR"]),
    ("optimize ios_sample --cost-model random --trace --out out", ["'random'", "timeline", "--trace"]),
    ("compare ios_sample --cost-model random --plot --out out", ["'random'", "timeline", "--plot"]),
    # edge lists
    ("compare randwire --device t4 --graphs missing", ["'missing'", "edge lists"]),
    # schedules
    ("simulate", ["SCHEDULE"]),
    ("simulate missing.json", ["missing.json", "No such file", "optimize"]),
    ("simulate missing.json --device nowhere", ["missing.json", "No such file"]),
    ("simulate missing.json --event-driven --cost-model random", ["--event-driven", "'random'", "--cost-model"]),
    # commands and options that there are not
    ("compare ios_sample --device", ["--device", "argument"]),
    ("compare ios_sample t4", ["t4", "iossim compare --help"]),
    ("compare ios_sample --devise t4", ["--devise", "--device"]),
    ("optimise ios_sample", ["'optimise'", "optimize"]),
    ("devices lst", ["'lst'", "list"]),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=[arguments for arguments, _ in MISTAKES])
def test_mistakes_get_one_line(
    arguments: str,
    words: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, arguments)
    for word in words:
        assert word in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "predict ios_sample -d t4 --out {out}",
        "optimize ios_sample -d t4 --onnx {out}",
        "run schedule.json --backend numpy_reference --plan {out}",
        "schedules export schedule.json --out {out}",
        "rules verify metaflow --write {out}",
        "models export ios_sample --out {out}",
    ],
)
@pytest.mark.parametrize("out", ["folder", "missing/file.json", "/proc/file.json"])
def test_files_that_cannot_be_written_are_told_before_the_work(
    command: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a schedule is read, rules are verified or a model is priced: what does that is not there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for work in ("proving.verify.verify_all", "api.read_schedule", "api.optimize"):
        monkeypatch.setattr(f"iossim.{work}", _works)
    line = refused(capsys, command.format(out=out))
    assert f"{out} cannot be written: " in line
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def _works(*_: object, **__: object) -> None:
    raise AssertionError("the work begins")


def test_a_folder_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    assert "model file 'models' is a folder" in refused(capsys, "compare models -d t4")
    (tmp_path / "ios_sample").mkdir()
    assert main(["compare", "ios_sample", "-d", "t4"]) == 0


@pytest.mark.parametrize("option", ["--out=file", "--out=file/below"])
@pytest.mark.parametrize("command", ["compare", "optimize"])
def test_output_folder_that_cannot_be_made(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("not a folder")
    line = refused(capsys, f"{command} ios_sample --device t4 {option}")
    assert "file" in line
    assert "is not a folder" in line
    assert Path("file").read_text() == "not a folder"
