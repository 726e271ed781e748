"""``iossim predict``: tables of operators in, the same tables with predictions out; and the operators of models, one by one."""

import csv
import io
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from case_files import cases
from command_line import printed, printed_json, refused
from onnx import helper
from onnx_models import write_onnx
from operators import parse_description

import iossim
from iossim.hardware.load import device
from iossim.measurements.operator_kinds import ALIASES, KINDS
from iossim.prediction.predict import predict
from iossim.prediction.tables import COLUMNS

CASES = cases(__file__, "mistakes.yaml")

CONV = """row,batch,in_channels,out_channels,kernel,in_size,stride,padding,latency_us,kernels
7,1,64,64,3,28,1,1,88.0,measured_kernel
8,4,64,64,1,28,2,0,,
9,1,64,64,3,28,1,1,90.0,measured_kernel
"""


def test_what_the_library_says() -> None:
    Path("ops.csv").write_text(CONV)
    rows = list(csv.DictReader(io.StringIO(printed("predict ops.csv --op conv -d v100-sxm2"))))
    operator = parse_description("conv batch=1 in_channels=64 out_channels=64 kernel=3 in_size=28 stride=1 padding=1")
    (prediction,) = predict([operator], device("v100-sxm2"))
    assert float(rows[0]["gpu_time_us"]) == pytest.approx(prediction.gpu_time_us, rel=1e-5)
    assert rows[0]["kernels"] == ";".join(prediction.kernels)
    assert rows[0]["input_kernels"] == "measured_kernel"
    assert {**rows[2], "row": "7", "latency_us": "88.0"} == rows[0]


#: Sizes of each kind of operator, a table with a column ``op`` holds any of them beside the others.
SIZES = {
    "conv": {"batch": 2, "in_channels": 24, "out_channels": 48, "kernel": 3, "in_size": 28, "stride": 1, "padding": 1},
    "conv_transpose": {"batch": 2, "in_channels": 24, "out_channels": 12, "kernel": 4, "in_size": 14, "stride": 2, "padding": 1},
    "linear": {"batch": 8, "m": 64, "n": 256, "k": 128},
    "bmm": {"batch": 8, "m": 64, "n": 256, "k": 128},
    "gemm": {"m": 64, "n": 256, "k": 128, "trans_a": "N", "trans_b": "T"},
    "max_pool": {"batch": 2, "channels": 24, "kernel": 3, "in_size": 28, "stride": 2, "padding": 1},
    "average_pool": {"batch": 2, "channels": 24, "kernel": 3, "in_size": 28, "stride": 2, "padding": 1},
    "global_average_pool": {"batch": 2, "channels": 24, "in_size": 28},
    "global_max_pool": {"batch": 2, "channels": 24, "in_size": 28},
    "attention": {"batch": 2, "heads": 4, "queries": 64, "keys": 96, "features": 32},
}  # fmt: skip
PLANE = {"rows": 128, "cols": 768}


def table(*rows: dict[str, object]) -> str:
    """Rows as CSV, cells empty where a row has nothing for a column."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, dict.fromkeys(name for row in rows for name in row), restval="")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


@pytest.mark.parametrize("on", ["v100-sxm2", "a100-sxm-40gb"])
def test_a_table_of_every_kind(on: str) -> None:
    rows: list[dict[str, object]] = [{"op": name} | SIZES.get(name, PLANE) for name in (*KINDS, *ALIASES)]
    rows += [{"op": "conv", **SIZES["conv"], "groups": groups, "out_channels": 24} for groups in (4, 24)]
    for row in rows[len(KINDS) : -2]:
        row.update(SIZES.get(ALIASES[str(row["op"])], {}))
    Path("ops.csv").write_text(table(*rows))
    predicted = printed_json(f"predict ops.csv -d {on} --json")
    assert [row["op"] for row in predicted] == [row["op"] for row in rows]
    assert predicted[0]["batch"] == 2
    assert all(0 < row["low_us"] < row["gpu_time_us"] < row["high_us"] and row["kernels"] for row in predicted)
    time_us = {row["op"]: row["gpu_time_us"] for row in predicted[: len(KINDS) + len(ALIASES)]}
    assert all(time_us[alias] == time_us[kind] for alias, kind in ALIASES.items())


def test_precision_by_row() -> None:
    rows = [
        {"op": "linear", "batch": 1, "m": 4096, "n": 4096, "k": 4096, "dtype": each} for each in ("", "fp16", "fp32")
    ]
    Path("ops.csv").write_text(table(*rows))
    default, half, full = (row["gpu_time_us"] for row in printed_json("predict ops.csv -d v100-sxm2 --json"))
    assert half < 0.5 * full
    assert default == full
    Path("ops.csv").write_text(table(*rows).replace("dtype", "precision"))
    default, *others = (row["gpu_time_us"] for row in printed_json("predict ops.csv -d v100-sxm2 --dtype fp16 --json"))
    assert others == [half, full]
    assert default == half
    Path("ops.csv").write_text(table({**rows[0], "dtype": "bf16"}))
    assert "has no bf16" in refused("predict ops.csv -d v100-sxm2")


def test_out(folder: Path) -> None:
    Path("ops.csv").write_text(CONV)
    text = printed("predict ops.csv --op conv -d t4")
    assert printed("predict ops.csv --op conv -d t4 --out predicted.csv") == ""
    assert Path("predicted.csv").read_text() == text
    printed("predict ops.csv --op conv -d t4 --json --out predicted.json")
    assert len(json.loads(Path("predicted.json").read_text())) == 3
    again = printed("predict predicted.csv --op conv -d t4").splitlines()
    names = [name for name in again[0].split(",") if "kernels" in name]
    assert names == ["input_kernels", "input_input_kernels", "kernels"]
    assert sorted(path.name for path in folder.iterdir()) == ["ops.csv", "predicted.csv", "predicted.json"]


@pytest.mark.parametrize("case", CASES["predict"])
def test_tables_that_are_wrong(case: str, folder: Path) -> None:
    text, option, words = CASES["predict"][case]
    Path("ops.csv").write_text(text)
    refused(f"predict ops.csv -d t4 {option} --out out.csv", "ops.csv", *words)
    assert [path.name for path in folder.iterdir()] == ["ops.csv"]


def test_other_mistakes() -> None:
    Path("ops.csv").write_text("rows,cols\n127,168\n")
    refused("predict ops.csv --op add", "--device")
    refused("predict ops.csv --op add -d t4 --dtype fp31", "fp31")
    Path("ops.csv").write_bytes(os.urandom(300) + b"\xff")
    assert "not text" in refused("predict ops.csv --op add -d t4")


def test_who_calls_decides_what_is_added() -> None:
    """A framework's calls have a floor and a gap; a node of a graph has what graphs and profilers show."""
    Path("ops.csv").write_text("op,rows,cols\nrelu,4,64\n")
    (called,) = printed_json("predict ops.csv -d v100-sxm2 --json")
    (again,) = printed_json("predict ops.csv -d v100-sxm2 --engine calls --json")
    (node,) = printed_json("predict ops.csv -d v100-sxm2 --engine graph --json")
    assert called == again
    engine = device("v100-sxm2").engine
    assert node["gpu_time_us"] == pytest.approx(engine.graph_kernel_us, abs=0.2)
    assert called["gpu_time_us"] > node["gpu_time_us"] + engine.dispatch_us - 1
    assert "did you mean 'graph'? known: auto, calls" in refused("predict ops.csv -d v100-sxm2 --engine grap")


LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def rows_of(text: str) -> tuple[list[dict[str, str]], dict[str, str]]:
    """The rows of a CSV table, and its total."""
    *rows, total = csv.DictReader(io.StringIO(text))
    assert total["name"] == "total"
    assert total["kind"] == ""
    return rows, total


@pytest.fixture
def transformer(tmp_path: Path) -> Path:
    """A layer of a transformer without its projections: attention, layer norm and a dense layer with GELU."""
    random = np.random.default_rng(0)
    weights = {
        "up": random.normal(size=(256, 1024)).astype(np.float32),
        "scale": np.ones(256, np.float32),
        "bias": np.zeros(256, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["scores"], name="attention/scores"),
        helper.make_node("Softmax", ["scores"], ["weights"], name="attention/softmax", axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"], name="attention/mix"),
        helper.make_node("Add", ["mixed", "v"], ["sum"], name="residual"),
        helper.make_node("LayerNormalization", ["sum", "scale", "bias"], ["normal"], name="norm"),
        helper.make_node("MatMul", ["normal", "up"], ["wide"], name="mlp/up"),
        helper.make_node("Gelu", ["wide"], ["y"], name="mlp/gelu"),
    ]
    inputs = {"q": ["heads", 128, 64], "k": ["heads", 64, 128], "v": ["heads", 128, 256]}
    return write_onnx(tmp_path / "layer.onnx", nodes, inputs, weights, opset=20)


def test_a_transformer(transformer: Path) -> None:
    document = printed_json(f"predict {transformer} -d a100-sxm-40gb --dim heads=12 --dtype fp16 --json")
    rows = {row["name"]: row for row in document["rows"]}
    names = "attention/scores attention/softmax attention/mix residual norm mlp/up mlp/gelu"
    assert list(rows) == names.split()
    assert rows["attention/softmax"]["output_shape"] == ["12x128x128"]
    assert rows["mlp/gelu"]["outputs"] == ["y"]
    assert {row["dtype"] for row in rows.values()} == {"fp16"}
    kept = printed_json("predict squeezenet -d a100-sxm-40gb --dtype tf32 --json")
    assert {row["dtype"] for row in kept["rows"]} == {"tf32"}
    kinds = ["Matmul", "Softmax", "Matmul", "Add", "Layer-Norm", "Matmul", "Gelu"]
    assert [row["kind"] for row in rows.values()] == kinds
    assert all(row["ops"] == [name] and row["remark"] == "" for name, row in rows.items())
    assert document["dtype"] == "fp16"
    # A product of a table is the same product: rows are compared with what was measured of either.
    transformer.with_name("ops.csv").write_text("op,batch,m,n,k\nbmm,12,128,64,128\nlinear,12,128,256,1024\n")
    bmm, linear = printed_json(
        f"predict {transformer.with_name('ops.csv')} -d a100-sxm-40gb --dtype fp16 --engine graph --json"
    )
    assert rows["attention/scores"]["gpu_time_us"] == bmm["gpu_time_us"]
    assert rows["mlp/up"]["gpu_time_us"] == pytest.approx(linear["gpu_time_us"], rel=0.1)


def test_units(transformer: Path) -> None:
    rows, _ = rows_of(printed(f"predict {transformer} -d t4 --dim heads=12 --units fused --csv"))
    network = iossim.load(transformer, dimensions={"heads": 12})
    assert [row["name"] for row in rows] == [unit.name for unit in network.units]
    assert ";".join(row["ops"] for row in rows) == ";".join(node.name for node in network.graph.nodes)
    assert len(rows) < len(network.graph.nodes)


def check_sums(rows: list[dict[str, str]], total: dict[str, str]) -> None:
    """The total is that of the rows, and narrower known than any of them."""
    assert math.fsum(float(row["gpu_time_us"]) for row in rows) == pytest.approx(float(total["gpu_time_us"]), rel=1e-5)
    assert math.fsum(float(row["share"]) for row in rows) == pytest.approx(1.0, rel=1e-4)
    for row in (*rows, total):
        assert float(row["low_us"]) <= float(row["gpu_time_us"]) <= float(row["high_us"])
    widths = [float(row["high_us"]) / float(row["low_us"]) for row in rows if row["algorithm"] != "view"]
    assert 1 < float(total["high_us"]) / float(total["low_us"]) < max(widths)


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet"])
def test_light_models(name: str) -> None:
    text = printed(f"predict {LIGHT / name}.onnx -d v100-sxm2 --csv")
    assert tuple(text.splitlines()[0].split(",")) == COLUMNS
    rows, total = rows_of(text)
    network = iossim.load(LIGHT / f"{name}.onnx", units="none")
    assert [row["name"] for row in rows] == [node.name for node in network.graph.nodes]
    assert [row["outputs"] for row in rows] == [node.outputs[0] for node in network.graph.nodes]
    check_sums(rows, total)
    views = [row for row in rows if row["algorithm"] == "view"]
    assert {row["kind"] for row in views} == ({"Reshape"} if name == "light_shufflenet" else set())
    assert all(float(row["gpu_time_us"]) == 0 and row["kernels"] == "" for row in views)


def test_squeezenet(tmp_path: Path) -> None:
    text = printed("predict squeezenet -d v100-sxm2 --batch 8")
    told = "squeezenet on v100-sxm2, batch 8, fp32, paper engine, weights cold: 80 ops, the 16 slowest"
    assert told in " ".join(text.split())
    assert "64 more" in text
    (total_row,) = (line.split() for line in text.splitlines() if line.startswith("total"))
    assert total_row[-1] == "100.0"
    whole = printed("predict squeezenet -d v100-sxm2 --batch 8 --all")
    assert "more" not in whole
    path = tmp_path / "table.csv"
    assert printed(f"predict squeezenet -d v100-sxm2 --batch 8 --out {path}") == ""
    rows, total = rows_of(path.read_text())
    assert len(rows) == 80
    check_sums(rows, total)
    document = printed_json("predict squeezenet -d v100-sxm2 --batch 8 --json")
    assert document["engine"] == "paper"
    assert [row["gpu_time_us"] for row in document["rows"]] == [float(row["gpu_time_us"]) for row in rows]
    assert document["batch"] == 8
    # A table has the same convolution, but for the bias.
    document = printed_json("predict squeezenet -d v100-sxm2 --batch 8 --engine graph --json")
    (row,) = (row for row in document["rows"] if row["name"] == "fire9.expand3x3.conv")
    columns: dict[str, Any] = {"batch": 8, "in_channels": 64, "out_channels": 256, "in_size": 13, "kernel": 3}
    columns |= {"stride": 1, "padding": 1}
    path.write_text(f"{','.join(columns)}\n{','.join(map(str, columns.values()))}\n")
    (alone,) = printed_json(f"predict {path} --op conv -d v100-sxm2 --engine graph --json")
    assert row["gpu_time_us"] == pytest.approx(alone["gpu_time_us"], rel=0.02)
    assert row["algorithm"] == alone["algorithm"]


def test_where_weights_are(tmp_path: Path) -> None:
    """SqueezeNet's fit an L2 of 96 MiB, GPT-2's do not."""
    for model, found in (("squeezenet", "warm"), ("gpt2", "cold")):
        tables = {
            weights: printed_json(f"predict {model} -d rtx-5090 --dtype fp16 --weights {weights} --json")
            for weights in ("warm", "cold", "auto")
        }
        assert [table["weights"] for table in tables.values()] == ["warm", "cold", found]
        total_us = {name: table["total"]["gpu_time_us"] for name, table in tables.items()}
        assert total_us["warm"] < total_us["cold"]
        assert total_us["auto"] == total_us[found]
        assert {row["weights"] for row in tables["auto"]["rows"]} == {found}
    (tmp_path / "ops.csv").write_text("op,batch,m,n,k\nlinear,1,1,4096,4096\n")
    rows = {
        weights: printed_json(f"predict {tmp_path}/ops.csv -d rtx-5090 --weights {weights} --json")[0]
        for weights in ("warm", "cold", "auto")
    }
    assert rows["warm"]["gpu_time_us"] < rows["cold"]["gpu_time_us"] == rows["auto"]["gpu_time_us"]
    assert [row["weights"] for row in rows.values()] == ["warm", "cold", "auto"]


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Trilu", ["a"], ["b"], name="lower/triangle"),
        helper.make_node("Einsum", ["b", "b"], ["y"], name="contraction", equation="ii,jk->ik"),
    ]
    path = write_onnx(tmp_path / "model.onnx", nodes, {"x": [64, 64]}, opset=14)
    text = " ".join(printed(f"predict {path} -d t4").split())
    assert "Priced by their memory traffic alone: lower/triangle, contraction." in text
    _, triangle, contraction = printed_json(f"predict {path} -d t4 --json")["rows"]
    assert triangle["kind"] == "Trilu"
    assert triangle["remark"] == "priced as memory traffic: Trilu is not known"
    assert contraction["remark"].endswith("Einsum is not known, multiplies matrices and takes far longer")
    assert "Einsum" in refused(f"predict {path} -d t4 --strict")
