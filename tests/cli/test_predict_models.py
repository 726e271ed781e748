"""``iossim predict``: the operators of models, one by one."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import printed, printed_json, refused
from onnx import helper
from onnx_models import write_onnx

import iossim
from iossim.prediction.network_table import COLUMNS

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
    assert list(rows) == [
        "attention/scores",
        "attention/softmax",
        "attention/mix",
        "residual",
        "norm",
        "mlp/up",
        "mlp/gelu",
    ]
    assert rows["attention/softmax"]["output_shape"] == ["12x128x128"]
    assert rows["mlp/gelu"]["outputs"] == ["y"]
    assert {row["dtype"] for row in rows.values()} == {"fp16"}
    assert [row["kind"] for row in rows.values()] == [
        "Matmul",
        "Softmax",
        "Matmul",
        "Add",
        "Layer-Norm",
        "Matmul",
        "Gelu",
    ]
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
    assert "total" in text
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
    # What a table says of the same convolution, but for the bias.
    document = printed_json("predict squeezenet -d v100-sxm2 --batch 8 --engine graph --json")
    (row,) = (row for row in document["rows"] if row["name"] == "fire9.expand3x3.conv")
    columns: dict[str, Any] = {"batch": 8, "in_channels": 64, "out_channels": 256, "in_size": 13, "kernel": 3}
    columns |= {"stride": 1, "padding": 1}
    path.write_text(f"{','.join(columns)}\n{','.join(map(str, columns.values()))}\n")
    (alone,) = printed_json(f"predict {path} --op conv -d v100-sxm2 --engine graph --json")
    assert row["gpu_time_us"] == pytest.approx(alone["gpu_time_us"], rel=0.02)
    assert row["algorithm"] == alone["algorithm"]


def test_whose_libraries() -> None:
    """Depthwise convolutions are others in cuDNN 7: NasNet's own engine calls that."""
    by_engine = {
        engine: printed_json(f"predict randwire -d v100-sxm2 --engine {engine} --json")["rows"]
        for engine in ("paper", "graph")
    }
    old, new = ({row["algorithm"] for row in rows} for rows in by_engine.values())
    assert old != new


def test_where_weights_are(tmp_path: Path) -> None:
    """SqueezeNet's fit an L2 of 96 MiB, GPT-2's do not."""
    for model, found in (("squeezenet", "warm"), ("gpt2", "cold")):
        tables = {
            weights: printed_json(f"predict {model} -d rtx-5090 --dtype fp16 --weights {weights} --json")
            for weights in ("warm", "cold", "auto")
        }
        assert {name: table["weights"] for name, table in tables.items()} == {
            "warm": "warm",
            "cold": "cold",
            "auto": found,
        }
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
    assert [row["weights"] for row in rows.values()] == ["warm", "cold", "cold"]


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Trilu", ["a"], ["b"], name="lower/triangle"),
        helper.make_node("Einsum", ["b", "b"], ["y"], name="contraction", equation="ij,jk->ik"),
    ]
    path = write_onnx(tmp_path / "model.onnx", nodes, {"x": [64, 64]}, opset=14)
    text = " ".join(printed(f"predict {path} -d t4").split())
    assert "Priced by their memory traffic alone: lower/triangle, contraction." in text
    _, triangle, contraction = printed_json(f"predict {path} -d t4 --json")["rows"]
    assert triangle["kind"] == "Trilu"
    assert triangle["remark"] == "priced as memory traffic: Trilu is not known"
    assert contraction["remark"].endswith("Einsum is not known, multiplies matrices and takes far longer")
    assert "Einsum" in refused(f"predict {path} -d t4 --strict")
