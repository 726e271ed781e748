"""Records of a GPU collection: single operators, units of several steps, pairs, stages and merged convolutions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evidence.data.data_sets import read_measurements
from evidence.data.formats import formats
from iossim.ir.types import Precision
from iossim.measurements.measurement import Extent, MeasurementError, MeasurementSet, StageMeasurement
from iossim.measurements.operator_kinds import parse_description

SHAPE = [64, 28, 28]


def conv_node(out_channels: int, act: str = "identity", groups: int = 1) -> dict[str, Any]:
    return {
        "type": "conv", "out_channels": out_channels, "kernel": [3, 3], "stride": [1, 1], "padding": [1, 1],
        "groups": groups, "act": act, "output_shape": [out_channels, 28, 28],
    }  # fmt: skip


WHOLE = {"sources": [SHAPE], "inputs": [[[0, 0, 64]]]}
SPECS: dict[str, dict[str, Any]] = {
    "conv": conv_node(32) | WHOLE,
    "conv-relu": conv_node(32, "relu") | WHOLE,
    "stacked": conv_node(64, "relu") | WHOLE,
    "alias": {"type": "identity", "output_shape": SHAPE} | WHOLE,
    "gather": {
        "type": "identity", "output_shape": [96, 28, 28], "sources": [SHAPE, SHAPE],
        "inputs": [[[0, 0, 64], [1, 0, 64]], [[1, 0, 32]]],
    },
    "sepconv": {
        "type": "sequential", "output_shape": [16, 28, 28],
        "nodes": [{"type": "relu", "output_shape": SHAPE}, conv_node(64, groups=64), conv_node(16)],
    } | WHOLE,
    "pool": {
        "type": "pool", "pool_type": "avg", "kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "output_shape": SHAPE
    } | WHOLE,
    "gap": {"type": "pool", "pool_type": "global_avg", "kernel": [], "stride": [], "padding": [], "output_shape": [64, 1, 1]}
    | WHOLE,
    "matmul": {"type": "matmul", "m": 8, "k": 16, "n": 32, "sources": [], "inputs": [], "output_shape": [8, 32]},
}  # fmt: skip

CONV = "conv batch={} in_channels=64 out_channels=32 in_size=28 kernel=3 stride=1 padding=1"
RELU = "relu rows=32 cols=784"


def timing(us: float, host_bound: bool = False) -> dict[str, Any]:
    return {"us": us, "p10_us": us - 0.25, "p90_us": us + 0.5, "replays": 20, "host_bound": host_bound}


def kernel(op: str, us: float, batch: int = 1, dtype: str = "fp32", impl: str = "plain", **more: Any) -> dict[str, Any]:
    cold = more.pop("cold", False)
    name = f"{op}/b{batch}/{dtype}/{impl}/{'cold' if cold else 'warm'}"
    record = {"id": name, "op": op, "batch": batch, "dtype": dtype, "impl": impl, "cold": cold, "t_s": 1.0}
    return record | timing(us, **more)


def read(folder: Path, name: str, records: list[dict[str, Any]], device: str | None = None) -> MeasurementSet:
    ops = [{"id": f"op:{key}", "op": key, "spec": spec, "t_s": 0.0} for key, spec in SPECS.items()]
    facts = {"device": {"properties": {"name": "NVIDIA H200"}}, "versions": {"torch": "2.5", "cudnn": 90100}}
    for file, lines in (("ops.jsonl", ops), ("device.json", [{"id": "facts", "t_s": 0.0} | facts]), (name, records)):
        (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = (folder / name).read_text()
    assert [known.title for known in formats() if known.recognises(folder / name, text)] == [
        "records of a GPU collection beside their ops.jsonl"
    ]
    return read_measurements(folder / name, device, fewest=0)


def test_kernels(tmp_path: Path) -> None:
    launched = [
        {"name": "small", "us": 1.0, "grid": [1, 1, 1], "block": [32, 1, 1]},
        {"name": "large", "us": 9.0, "grid": [7, 7, 1], "block": [128, 1, 1]},
    ]
    records = [
        kernel("conv", 12.0, batch=8, dtype="fp16"),
        kernel("conv-relu", 10.0, impl="fused", cold=True),
        kernel("pool", 5.0),
        kernel("gap", 4.0),
        kernel("matmul", 3.0),
        kernel("conv-relu", 11.0),
        kernel("sepconv", 20.0),
        kernel("gather", 7.0),
        kernel("alias", 0.1),
        kernel("pool", 5.0, host_bound=True),
        kernel("conv-relu", 10.0, impl="bias"),
        {"id": "conv/b9", "t_s": 1.0, "error": "out of memory"},
        {"id": "left:conv/b8", "left": 3, "t_s": 1.0},
        {"id": "trace:conv/b8/fp16/plain/warm", "item": "conv/b8/fp16/plain/warm", "kernels": launched, "t_s": 1.0},
    ]
    measured = read(tmp_path, "kernels.jsonl", records)
    assert measured.device == "h200-sxm"
    assert measured.header.libraries == {"pytorch": "2.5", "cudnn": "90100"}
    conv, fused, *others = measured.measurements
    assert conv.operator == parse_description(CONV.format(8), Precision.FP16)
    assert (conv.latency_us, conv.spread_us, conv.samples) == (12.0, 0.75, 20)
    assert conv.kernels == ("small", "large")
    assert (conv.grid, conv.block) == (Extent(7, 7, 1), Extent(128, 1, 1))
    assert fused.operator == parse_description(CONV.format(1))
    assert (conv.is_cold, fused.is_cold) == (False, True)
    assert [each.operator.kind for each in others] == ["average_pool", "global_average_pool", "gemm"]
    relu_behind, chain, gathered = measured.stages
    assert relu_behind.groups == ((parse_description(CONV.format(1)), parse_description(RELU)),)
    assert [[operator.kind for operator in group] for group in chain.groups] == [["relu", "conv", "conv"]]
    assert chain.groups[0][1].inputs[1].shape == (64, 1, 3, 3)
    add, concat = gathered.groups[0]
    assert add == parse_description("add rows=64 cols=784")
    assert concat == parse_description("concat rows=96 cols=784")
    assert {note.partition(": ")[2] for note in measured.notes} == {
        "1 records left out: the host was slower than the device",
        "1 records left out: the operator failed",
        "1 records left out: bias and activation ran as kernels of their own",
    }


def test_pairs_and_stages(tmp_path: Path) -> None:
    times = {"concurrent": timing(15.0), "serial": timing(22.0), "t_s": 1.0}
    pair = {"id": "pair/conv/pool", "ops": ["conv-relu", "pool"], "impl": ["fused", "plain"], **times}
    (stage,) = read(tmp_path, "pairs.jsonl", [pair]).stages
    conv, pool = parse_description(CONV.format(1)), stage.groups[1][0]
    assert stage == StageMeasurement(((conv,), (pool,)), 15.0, None, 0.75, 20, 22.0)
    merged = {
        "id": "merge/x", "groups": [["a"], ["b"], ["c"]], "ops": [["conv-relu"], ["conv-relu"], ["alias"]],
        "impl": {"a": "plain", "b": "fused", "c": "plain"}, "merged": timing(14.0), "merged_op": "stacked", **times,
    }  # fmt: skip
    measured = read(tmp_path, "stages.jsonl", [merged])
    together, stacked = measured.stages
    assert together.groups == ((conv, parse_description(RELU)), (conv,))
    assert (stacked.latency_us, stacked.groups[0][0].inputs[1].shape[0]) == (14.0, 64)


def test_records_that_are_wrong(tmp_path: Path) -> None:
    good = [kernel("conv", 12.0, batch=batch) for batch in range(1, 31)]
    measured = read(tmp_path, "kernels.jsonl", [*good, kernel("convolve", 3.0)])
    assert "convolve is not in ops.jsonl" in measured.notes[0]
    measured = read(tmp_path, "kernels.jsonl", [*good, {"id": "x", "t_s": 1.0}])
    assert "fields" in measured.notes[0]
    assert "line 31" in measured.notes[0]
    measured = read(tmp_path, "kernels.jsonl", [*good, kernel("conv", float("nan"))])
    assert "us is not a number" in measured.notes[0]
    assert read(tmp_path, "kernels.jsonl", good, "t4").device == "h200-sxm"  # what a file says counts
    (tmp_path / "ops.jsonl").unlink()
    with pytest.raises(MeasurementError, match=r"ops\.jsonl"):
        read_measurements(tmp_path / "kernels.jsonl")
