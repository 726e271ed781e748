"""``iossim models`` and ``iossim devices``."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import PLURAL_OF_ONE, printed, printed_json, refused
from exported_networks import Writer

from iossim.hardware.load import device as load_device
from iossim.hardware.names import shipped_names
from iossim.hardware.profile import Datasheet
from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.unary import Relu
from iossim.models.onnx.export import write_onnx

#: A device that was measured, one whose parameters are transferred, and an embedded one.
SHOWN = ["v100-sxm2", "k80", "jetson-orin"]


def test_models_show() -> None:
    """A fire module has two branches, and a bypass beside them."""
    shown = printed_json("models show squeezenet --batch 2 --dtype fp16 --json")
    assert shown["model"] == "squeezenet"
    assert shown["dtype"] == "fp16"
    assert shown["inputs"] == {"image": [2, 3, 224, 224]}
    assert shown["units"] == sum(block["units"] for block in shown["block_list"]) == 50
    assert shown["width"] == max(block["width"] for block in shown["block_list"]) == 3
    assert shown["weight_bytes"] == 2 * shown["parameters"]
    assert shown["flops"] >= 2 * shown["macs"]
    assert 1.1 < shown["parallelism"] < 2
    # The two largest images in a row: the first convolution's result, and what its pooling leaves.
    assert shown["activation_bytes"] >= 2 * 2 * 96 * 109 * 109
    text = printed("models show squeezenet")
    said = ("50 units in 12 blocks", "1x3x224x224", "up to 3 units of a block are independent", "activations at least")
    assert [words for words in said if words not in text] == []


def test_equal_blocks_are_one_row_and_parallelism_is_a_sentence() -> None:
    assert "nearly all arithmetic is on the critical path" in printed("models show resnet18")
    text = printed("models show inception_v3")
    assert "up to 6 units of a block are independent" in text
    assert "at most" not in text  # of 1.51x, where the next command showed a gain of 1.58x
    rows = [line.split() for line in text.split("─\n")[1].splitlines() if line[:1].strip()]
    found = printed_json("models show inception_v3 --json")
    assert f"(average parallelism {found['parallelism']:.2f}). Gains may be larger" in " ".join(text.split())
    assert len(rows) < found["blocks"]
    numbers = [[int(word) for word in row if word.isdecimal()][:2] for row in rows]
    assert [sum(column) for column in zip(*numbers, strict=True)] == [found["blocks"], found["units"]]


def test_models_show_of_many_different_blocks(tmp_path: Path) -> None:
    """The largest blocks alone, and how many others there are; all of them where they are asked for."""
    writer, channels = Writer(), 4
    value = "x"
    for number in range(40):
        branches = [writer.node("Relu", writer.conv(value, channels, channels, 3)) for _ in range(2 + number % 3)]
        value = writer.conv(writer.node("Concat", *branches, axis=1), channels, channels * len(branches), 1)
    path = tmp_path / "many.onnx"
    onnx.save(writer.model({"x": (onnx.TensorProto.FLOAT, (1, channels, 8, 8))}, [value]), str(path))
    text = printed(f"models show {path}")
    assert len(text.splitlines()) < 50
    assert " largest of " in text
    whole = printed(f"models show {path} --all")
    found = printed_json(f"models show {path} --json")
    assert " largest of " not in whole
    counts, shown = (_counts(printed_text) for printed_text in (whole, text))
    assert [sum(column) for column in zip(*counts, strict=True)][:2] == [found["blocks"], found["units"]]
    assert len(shown) < 24 < len(counts)
    assert {width for _, _, width in shown} == {4} == {max(width for _, _, width in counts)}


def _counts(text: str) -> list[tuple[int, ...]]:
    """Blocks, units and width of each row of a table of blocks."""
    rows = (re.match(r"\S.*?\s+(\d+)\s+(\d+)\s+(\d+) \d", line) for line in text.split("─\n")[1].splitlines())
    return [tuple(map(int, row.groups())) for row in rows if row]


def test_devices_list_with_a_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a user's own profile goes on in the next line; names are whole."""
    folder = tmp_path / "a" / ("long" * 20)
    (folder / "devices").mkdir(parents=True)
    monkeypatch.setenv("IOSSIM_DATA_DIR", str(folder))
    profile = printed("devices show t4 --all").replace("name: t4", "name: mine", 1)
    (folder / "devices" / "mine.yaml").write_text(profile)
    text = printed("devices list")
    assert all(name in text for name in (*shipped_names(), "mine"))
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("device", SHOWN)
def test_devices_show_is_a_page(device: str) -> None:
    """Every fact with its source, every parameter, the held-out errors; no bands, which fill a hundred lines."""
    text = printed(f"devices show {device}")
    lines = text.splitlines()
    assert len(lines) <= 180
    assert all(len(line) <= 80 for line in lines)
    profile = load_device(device)
    words = {line.split()[0]: line.split() for line in lines if line.strip()}
    for name, _ in (*profile.parameters, *profile.engine):
        assert name in words
    for name in Datasheet.model_fields:
        fact = getattr(profile.datasheet, name)
        assert fact is None or words[name][-1] == fact.source
    provenance = profile.provenance
    for name, spread in provenance.spread.items():
        assert f"{spread:.2g}" in words[name]
    for name in provenance.unidentified:
        assert "identified" in " ".join(words[name])
    for error in provenance.held_out if provenance.kind != "transferred" else ():
        # A long name is wrapped.
        rows = [line.split() for line in lines if line.strip() and error.data_set.startswith(line.split()[0])]
        assert any(f"{error.mape_percent:.1f}" in row for row in rows)
    for kind in {error.kind for error in provenance.held_out} if provenance.kind == "transferred" else ():
        own = [error for error in provenance.held_out if error.kind == kind]
        mean = np.average([error.mape_percent for error in own], weights=[error.rows for error in own])
        assert any({kind, f"{mean:.1f}"} <= set(line.split()) for line in lines)


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


def test_one_of_a_thing_is_no_plural(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    b = GraphBuilder("one")
    with b.block("all"):
        b.add(Relu(), b.input("x", (1, 3, 8, 8)), name="y")
    write_onnx(b.network(["y"]).graph, tmp_path / "one.onnx")
    assert "1 op, 1 unit in 1 block" in printed("models show one.onnx")
    for line in (
        "optimize one.onnx -d t4 -r 1 -s 1 --out stages",
        "optimize one.onnx -d t4 --scheduler ios-streams --out streams",
        "explain streams/schedule.json",
        "diff stages/schedule.json streams/schedule.json",
        "predict one.onnx -d t4",
        "check one.onnx -d t4 --max-latency-ms 5",
    ):
        printed(line)
    for file in (*tmp_path.glob("*/*.html"), *tmp_path.glob("*/graph.*")):
        assert PLURAL_OF_ONE.findall(file.read_text(encoding="utf-8")) == []
