"""Microbenchmarks, pairs of kernels and records of a GPU collection: rows that belong together are joined."""

import json
from pathlib import Path
from typing import Any

import pytest
from operators import parse_description

from evidence.concurrency.microbenchmarks import (
    RTX_5090_FILE,
    V100_FILE,
    Microbenchmark,
    MicroKernel,
    percent_in,
    read_rtx_5090,
    read_v100,
)
from evidence.concurrency.pairs import (
    GRAPHS_FILE,
    PREFILL_FILE,
    STREAMS_FILE,
    read_graph_pairs,
    read_prefill_pairs,
    read_stream_pairs,
)
from evidence.data.data_sets import read_measurements
from evidence.data.formats import formats
from iossim.ir.types import Precision
from iossim.measurements.measurement import Extent, MeasurementError, MeasurementSet, StageMeasurement

V100_COLUMNS = (
    "device,experiment,how_shared,kernel_a,kernel_b,blocks_a,threads_a,blocks_b,threads_b,bytes_per_kernel_or_block,"
    "iterations_in_kernel,mode,n_trials,avg_ms,median_ms,min_ms,max_ms,bandwidth_GiB_per_s_read_plus_write,note\n"
)


def v100_table(path: Path, *rows: str) -> Path:
    file = path / V100_FILE
    file.write_text(V100_COLUMNS + "".join(f"V100,{row}\n" for row in rows))
    return file


def v100_row(mode: str, median_ms: str, second: str = "sleep,80,1024", iterations: str = "") -> str:
    kernel, blocks, threads = second.split(",") if second else ("", "", "")
    return f"slots,two,sleep,{kernel},80,1024,{blocks},{threads},,{iterations},{mode},10,1,{median_ms},1,1,,"


def test_rows_of_one_experiment_are_joined(tmp_path: Path) -> None:
    alone, sequential, together = v100_row("alone", "2", ""), v100_row("sequential", "4"), v100_row("together", "3")
    kernel = MicroKernel("sleep", 80, 1024, 2000.0)
    joined = "v100-sxm2", "v100_microbenchmarks", 4, "slots", "two", (kernel, kernel), 3000.0
    assert read_v100(v100_table(tmp_path, alone, sequential, together)) == [Microbenchmark(*joined)]
    # Equal kernels take half of their sequence alone; iterations are those of the first kernel.
    together = v100_row("together", "3", iterations="fp32 7; sleep 40")
    (found,) = read_v100(v100_table(tmp_path, sequential, together))
    assert [kernel.alone_us for kernel in found.kernels] == [2000.0, 2000.0]
    assert found.iterations == 40


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([v100_row("together", "3")], "line 2: no row has sleep alone"),
        ([v100_row("both", "3")], "line 2: mode 'both' is none of alone, sequential, together"),
        ([v100_row("alone", "2", ""), v100_row("together", "")], "line 3: median_ms is empty; correct the line"),
        ([v100_row("alone", "2", "") + ",,"], "line 2: the row has not the 19 cells of the header"),
    ],
)
def test_bad_rows_are_named_by_line(tmp_path: Path, rows: list[str], reason: str) -> None:
    with pytest.raises(MeasurementError, match=reason):
        read_v100(v100_table(tmp_path, *rows))
    (tmp_path / V100_FILE).write_text("device,experiment\nV100,slots\n")
    with pytest.raises(MeasurementError, match="there is no column 'mode'"):
        read_v100(tmp_path / V100_FILE)


def test_what_a_note_tells_in_per_cent() -> None:
    note = "FMA pipe alone 43% of peak, competitor 79%"
    assert (percent_in(note, "alone"), percent_in(note, "competitor")) == (0.43, 0.79)
    assert percent_in(note, "beside") is None


def test_the_shared_tables_are_read_whole(shared: Path) -> None:
    folder = shared / "data" / "concurrency"
    v100, rtx_5090 = read_v100(folder / V100_FILE), read_rtx_5090(folder / RTX_5090_FILE)
    assert (len(v100), len(rtx_5090)) == (13, 92)
    assert all(kernel.alone_us for row in v100 for kernel in row.kernels)
    (copy_beside_fp32,) = (row for row in rtx_5090 if row.experiment == "ipc_copy_plus_fp32mul")
    assert [kernel.alone_us for kernel in copy_beside_fp32.kernels] == pytest.approx([198_472.0, 202_909.0])
    sizes = [row.size_bytes for row in v100 if row.experiment == "l2_cache"]
    assert sizes == [mib * 2**20 for mib in range(1, 7)]


GRAPH_COLUMNS = (
    "device,model,op_a,op_b,shape_a_chw,shape_b_chw,repeats_of_each_op_in_its_cuda_graph,alone_a_ms,alone_b_ms,"
    "together_a_completion_ms,together_b_completion_ms,makespan_ms_from_dilation,makespan_dilation,measured_pair_speedup\n"
)
STREAM_COLUMNS = (
    "device,trace,kernel_a,a_grid,a_block,a_regs_per_thread,a_smem_static_B,a_smem_dynamic_B,kernel_b,b_grid,b_block,"
    "b_regs_per_thread,b_smem_static_B,b_smem_dynamic_B,a_start_us,a_duration_us,b_start_us,b_duration_us,overlap_us,"
    "makespan_us\n"
)


def stream_row(first: str, second: str, start_us: float, first_us: float, overlap_us: float, second_us: float) -> str:
    grids = (f'{name},"[{10 * len(name)},1,1]","[128,4,1]",24,8,0' for name in (first, second))
    begin_us = start_us + first_us - overlap_us
    makespan_us = begin_us + second_us - start_us
    return f"X,t,{','.join(grids)},{start_us},{first_us},{begin_us},{second_us},{overlap_us},{makespan_us}\n"


def test_times_in_graphs_are_per_repeat(tmp_path: Path) -> None:
    file = tmp_path / GRAPHS_FILE
    file.write_text(GRAPH_COLUMNS + "X,Y,add,conv,,8x4x4,100,0.001,0.03,0.002,0.031,0.031,1.03,1.1\n")
    (pair,) = read_graph_pairs(file)
    small, large = pair.kernels
    assert (small.alone_us, small.slowdown, large.shape) == (1.0, pytest.approx(2.0), "8x4x4")
    assert (pair.repeats, pair.makespan_us, pair.title) == (100, 31.0, "add beside conv")
    file.write_text(GRAPH_COLUMNS + "X,Y,add,conv,,8x4x4,,0.001,0.03,0.002,0.031,0.031,1.03,1.1\n")
    with pytest.raises(MeasurementError, match="line 2: repeats_of_each_op_in_its_cuda_graph is empty"):
        read_graph_pairs(file)


def test_runs_of_a_pair_on_streams_are_one_by_their_medians(tmp_path: Path) -> None:
    file = tmp_path / STREAMS_FILE
    runs = [stream_row("a", "bb", 1000.0 * n, 100.0 + n, 10.0, 50.0) for n in (1, 2, 9)]
    file.write_text(STREAM_COLUMNS + "".join(runs) + stream_row("bb", "ccc", 1.0, 48.0, 1.0, 30.0))
    pair, other = read_stream_pairs(file)
    first, second = pair.kernels
    assert (pair.samples, first.blocks, first.threads, first.shared_bytes) == (3, 10, 512, 8)
    assert (first.alone_us, first.together_us) == (102.0, 102.0)
    # It comes first elsewhere, and there it runs as alone; what never comes first takes what it took behind another.
    assert second.alone_us == 48.0
    assert other.kernels[1].alone_us == 30.0
    assert second.together_us == pair.makespan_us == pytest.approx(142.0)


def test_the_shared_pairs_are_read_whole(shared: Path) -> None:
    folder = shared / "data" / "concurrency"
    assert len(read_graph_pairs(folder / GRAPHS_FILE)) == 34
    streams = read_stream_pairs(folder / STREAMS_FILE)
    assert [pair.samples for pair in streams] == [10] * 10
    prefill = read_prefill_pairs(folder / PREFILL_FILE)
    assert len(prefill) == 27
    assert {pair.sms for pair in prefill} == {None, (54, 54), (32, 76)}


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
    "gather": {"type": "identity", "output_shape": [96, 28, 28], "sources": [SHAPE, SHAPE], "inputs": [[[0, 0, 64], [1, 0, 64]], [[1, 0, 32]]]},
    "sepconv": {"type": "sequential", "output_shape": [16, 28, 28], "nodes": [{"type": "relu", "output_shape": SHAPE}, conv_node(64, groups=64), conv_node(16)]} | WHOLE,
    "pool": {"type": "pool", "pool_type": "avg", "kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "output_shape": SHAPE} | WHOLE,
    "gap": {"type": "pool", "pool_type": "global_avg", "kernel": [], "stride": [], "padding": [], "output_shape": [64, 1, 1]} | WHOLE,
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
    expected = ["records of a GPU collection beside their ops.jsonl"]
    assert [known.title for known in formats() if known.recognises(folder / name, text)] == expected
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
