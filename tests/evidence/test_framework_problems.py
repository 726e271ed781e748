"""Programs of a framework, kernels of networks and of CUDA graphs, and TensorRT's layers, as small tables."""

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_files import cases
from operators import parse_description

from evidence.data.data_sets import own_measurements, read_measurement_sets, read_measurements
from evidence.data.formats import formats
from evidence.data.formats.graph_attention import steady
from evidence.validation.graph_kernels import errors, profiled
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Issue, Libraries
from iossim.hardware.lowering.target import step_candidates
from iossim.ir.types import Precision
from iossim.measurements.measurement import MeasurementError, MeasurementSet

CASES = cases(__file__, "programs.yaml")

IMAGE = "x = torch.randn(batch_size, in_channels, height, width) return [x]"
COLUMNS = [
    "hardware", "run", "mode", "level", "problem", "mean_ms", "std_ms", "min_ms", "max_ms", "trials",
    "problem_constants_json", "inputs_expr",
]  # fmt: skip
SIZES = {"batch_size": 2, "in_channels": 3, "height": 16, "width": 24}
#: Program, constants, inputs, and the operator that it is; None for what is no operator.
PROGRAMS: list[tuple[str, dict[str, Any], str, str | None]] = CASES["programs"]


def table(folder: Path, hardware: tuple[str, ...] = ("Tesla T4", "NVIDIA A100-SXM4-40GB")) -> Path:
    path = folder / "problems.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for board in hardware:
            for name, constants, inputs, _ in PROGRAMS:
                times = (1.5, 0.1, 1.25, 2.0, 100)
                writer.writerow(
                    [board, f"{board[-2:]}_run", "torch", "level1", name, *times, json.dumps(constants), inputs]
                )
    return path


def test_programs_of_one_operator_are_read_a_set_a_board(tmp_path: Path) -> None:
    path = table(tmp_path)
    sets = read_measurement_sets(path)
    assert [one.device for one in sets] == ["t4", "a100-sxm-40gb"]
    expected = [text for *_, text in PROGRAMS if text]
    for one in sets:
        has_tf32 = one.device != "t4"
        shapes = [row.operator for row in one.measurements]
        dense = [op.kind in ("conv", "conv_transpose") and getattr(op.op, "groups", 1) == 1 for op in shapes]
        assert [op.precision is Precision.TF32 for op in shapes] == [has_tf32 and is_dense for is_dense in dense]
        texts = [parse_description(text, op.precision).key for text, op in zip(expected, shapes, strict=True)]
        assert [op.key for op in shapes] == texts
        assert {row.latency_us for row in one.measurements} == {1250.0}
        assert one.header.includes_host_overhead
        assert one.header.called is Libraries.CURRENT
    assert sets[0].notes == (f"{path}: 4 rows left out: the program is no operator that tables name",)


def test_it_is_of_one_format_and_needs_a_device(tmp_path: Path) -> None:
    path = table(tmp_path)
    expected = ["table of programs of a framework on several boards"]
    assert [one.title for one in formats() if one.recognises(path, path.read_text())] == expected
    assert read_measurements(path, "t4").device == "t4"
    with pytest.raises(MeasurementError, match="recorded on t4, a100-sxm-40gb; give one of them"):
        read_measurements(path)
    with pytest.raises(MeasurementError, match="not on v100-sxm2"):
        read_measurements(path, "v100-sxm2")


def test_sizes_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    path = table(tmp_path, ("Tesla T4",))
    path.write_text(path.read_text().replace("torch.randn(M, K) B", "torch.randn(M, Z) B", 1))
    (found,) = read_measurement_sets(path)
    assert any("1 of 10 rows dropped: its sizes cannot be read" in note for note in found.notes)


TRACE = (
    "device,network,batch,kernel_index,torch_op,torch_op_index_of_its_kind,kernel_name,duration_us,shape_in_c,shape_in_h,"
    "shape_in_w,shape_out_c,shape_kernel,shape_stride,shape_pad,shape_groups\n"
)
NO_SHAPE = ",,,,,,,"


def test_a_convolution_takes_the_sum_of_its_kernels(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [
        "0,aten::conv2d,0,sm86_xmma_fprop,9,64,56,56,64,3,1,1,1",  # a trial beside the kernel that was chosen
        f"1,aten::conv2d,0,cudnn_ampere_scudnn,11{NO_SHAPE},",
    ]
    for call in range(1, 18):
        rows += [
            f"{2 * call},aten::conv2d,{call},nchwToNhwcKernel,3,64,56,56,64,3,1,1,1",
            f"{2 * call + 1},aten::conv2d,{call},sm86_xmma_fprop,{10 + call}{NO_SHAPE},",
        ]
    rows.append(f"99,aten::relu_,0,vectorized_elementwise_kernel,4{NO_SHAPE},")
    path.write_text(TRACE + "".join(f"RTX A5000,resnet b1,1,{row}\n" for row in rows))
    found = read_measurements(path)
    assert (found.device, found.header.issue, found.header.includes_gaps) == ("rtx-a5000", Issue.STREAM, False)
    assert [one.latency_us for one in found.measurements] == [14.0 + call for call in range(17)]
    text = "conv batch=1 in_channels=64 out_channels=64 in_size=56 kernel=3 stride=1 padding=1"
    assert {one.operator for one in found.measurements} == {parse_description(text, Precision.TF32)}
    assert found.notes == (f"{path}: 1 rows left out: convolutions with trials, or without a shape",)


def test_operands_of_six_nodes_stay_in_l2_or_are_weights(tmp_path: Path) -> None:
    """vLLM's nodes share their input, SGLang's do not; rows of equal operands are one."""
    path = tmp_path / "products.csv"
    libraries = ("vllm/0.24.0", "sglang/0.5.10")
    rows = [f"{library},{m},64,128,{m + 2.0 + gap}" for m in range(1, 18) for gap, library in enumerate(libraries)]
    rows += [f"{library},{m},{n},8192,50" for m, n in ((1, 8192), (2048, 64)) for library in libraries]
    path.write_text("device,library,m,n,k,latency_us\n" + "".join(f"H100-SXM5-80GB,{row}\n" for row in rows))
    (found,) = read_measurement_sets(path)
    assert (found.device, found.header.issue) == ("h100-sxm", Issue.GRAPH)
    weights = [one.operator.weights for one in found.measurements]
    assert weights == [()] * 17 + [(1,), (0, 1), (), (0, 1)]
    assert [one.latency_us for one in found.measurements[:2]] == [3.5, 4.5]


@cache
def _sets(path: Path) -> dict[str, MeasurementSet]:
    """The measurement sets of a file by device."""
    return {one.device: one for one in read_measurement_sets(path)}


def _error(measured: MeasurementSet, step: int = 1) -> tuple[float, float]:
    """Mean absolute error of predictions, and the median error, of each ``step``-th row."""
    found = errors(measured, measured.measurements[::step])
    return float(np.abs(found).mean()), float(np.median(found))


PRODUCTS, LAYERS = "graph_kernels/graph_products_bf16.csv", "graph_kernels/tensorrt_layers.csv"


@pytest.mark.parametrize(
    ("file", "name", "mean", "most"),
    [
        *((PRODUCTS, name, 0.1, 0.04) for name in ("a100-sxm-80gb", "h100-sxm", "h200-sxm")),
        (LAYERS, "a100-pcie-80gb", 0.15, 0.1),
        (LAYERS, "rtx-3090", 0.12, 0.1),
        ("operators/a5000_network_kernels.csv", "rtx-a5000", 0.22, 0.05),
    ],
)
def test_errors_of_recorded_kernels(file: str, name: str, mean: float, most: float, shared: Path) -> None:
    """Mean and median. Of products in graphs, a tenth of thousands of shapes from all sizes: the errors of all that no fit
    saw are kept figures. No figure of TensorRT's layers took part in a fit; of a trace's convolutions, those at batch 1
    tell the cost of a cold start, and nothing else.
    """
    error, median = _error(_sets(shared / "data" / file)[name], step=10 if file == PRODUCTS else 1)
    assert error < mean
    assert abs(median) < most


@pytest.mark.parametrize("name", ["h100-sxm", "h200-sxm"])
def test_attention_in_graphs(name: str, shared: Path) -> None:
    sets = {one.device: one for one in read_measurement_sets(shared / "data/graph_kernels/graph_attention_bf16.csv")}
    short = steady(sets[name])
    held_out = [row for row in short.measurements if row.operator.is_held_out()]
    found = errors(short, held_out)
    assert len(held_out) == 119
    assert np.abs(found).mean() < 0.12
    assert abs(np.median(found)) < 0.1


def test_a_table_of_attention(tmp_path: Path) -> None:
    path = tmp_path / "attention.csv"
    rows = [f"H100-SXM5-80GB,sglang,2,{tokens},12,64,{tokens / 10}\n" for tokens in range(64, 81)]
    path.write_text(
        "device,library,batch_size,isl,num_heads,head_dim,latency_us\n"
        + "".join(rows)
        + "H100-SXM5-80GB,sglang,2,65536,12,64,9e4\n"
    )
    (found,) = read_measurement_sets(path)
    assert (found.device, found.header.issue) == ("h100-sxm", Issue.GRAPH)
    first = found.measurements[0].operator
    assert first == parse_description("attention batch=2 heads=12 queries=64 keys=64 features=64", Precision.BF16)
    assert first.op.multiply_adds(first.inputs, first.outputs) == 2 * 12 * 64 * 64 * 2 * 64
    assert steady(found).measurements == found.measurements[:-1]


def test_chains_with_a_convolution_in_tf32_on_an_h200_by_which_its_rules_were_found() -> None:
    found = read_measurements(own_measurements() / "h200" / "kernels.jsonl")
    chains = [((row.operator,), row.latency_us) for row in found.measurements]
    chains += [(row.groups[0], row.latency_us) for row in found.stages if len(row.groups) == 1]
    model, ratios = KernelModel(device("h200-sxm"), Issue.GRAPH), []
    for chain, measured_us in chains:
        dense = [one for one in chain if one.kind == "conv" and getattr(one.op, "groups", 0) == 1]
        if dense and dense[0].precision is Precision.TF32:
            us = [
                each.alone_us for one in chain for each in model.fastest(step_candidates(one.step(), model.profile))[1]
            ]
            ratios.append(sum(us) / measured_us)
    assert len(ratios) == 23
    assert 0.1 < np.abs(np.array(ratios) - 1).mean() < 0.16


def test_layers_of_tensorrt_are_compiled(shared: Path) -> None:
    assert {one.header.called for one in _sets(shared / "data" / LAYERS).values()} == {Libraries.COMPILED}


@pytest.mark.parametrize(("kind", "mean"), [("relu", 0.05), ("add", 0.1), ("depthwise", 0.05), ("conv", 0.14)])
def test_kernels_by_nsight_compute(kind: str, mean: float, shared: Path) -> None:
    """The start and end of a kernel are fitted to three-quarters of them, nothing else is."""
    assert profiled()[kind] < 100 * mean


TRACE_COLUMNS = (
    "device,network,index,batch,dtype,op,kernel_name,in_c,in_h,in_w,out_c,kernel,stride,pad,groups,out_h,out_w,"
    "sms_needed,roofline_profile,duration_ns\n"
)
BOARD = "V100-16GB (GCP n1)"
ROWS = [
    "net,0,4,fp32,conv,Conv,3,32,32,8,3,2,1,1,16,16,4,compute,26688",
    "net,1,4,fp32,batch norm (inference),BatchNorm,8,16,16,8,,,,,16,16,32,memory,23328",
    "net,2,4,fp32,relu6,kernel,8,16,16,8,,,,,16,16,196,unknown,14687",
    "net,3,4,fp32,depthwise conv,,8,16,16,8,3,1,1,8,16,16,784,memory,40639",
    "net,4,4,fp32,max pool,,8,16,16,8,3,2,1,1,8,8,784,memory,9000",
    "net,5,4,fp32,residual add,,8,16,16,8,,,,,16,16,784,memory,5000",
]


def kernel_table(folder: Path, rows: list[str]) -> Path:
    path = folder / "network_ops.csv"
    path.write_text(TRACE_COLUMNS + "".join(f"{BOARD},{row}\n" for row in rows))
    return path


def test_rows_are_operators_from_flushed_caches(tmp_path: Path) -> None:
    path = kernel_table(tmp_path, ROWS)
    found = read_measurements(path)
    assert (found.device, found.header.called, found.header.includes_gaps) == ("v100-sxm2", Libraries.CURRENT, False)
    convolution = "conv batch=4 in_channels={} out_channels=8 in_size={} kernel=3 stride={} padding=1"
    assert [one.operator for one in found.measurements] == [
        parse_description(text)
        for text in (
            convolution.format(3, 32, 2),
            "relu rows=32 cols=256",
            convolution.format(8, 16, 1) + " groups=8",
            "max_pool batch=4 channels=8 in_size=16 kernel=3 stride=2 padding=1",
            "add rows=32 cols=256",
        )
    ]
    assert [one.latency_us for one in found.measurements] == pytest.approx([26.688, 14.687, 40.639, 9.0, 5.0])
    assert all(one.operator.precision is Precision.FP32 for one in found.measurements)
    assert (found.header.issue, found.header.clock_ghz) == (Issue.PROFILER, 1.29)
    assert found.notes == (f"{path}: 1 rows left out: batch norm (inference) has no columns",)
    titles = [one.title for one in formats() if one.recognises(path, path.read_text())]
    assert titles == ["table of operators of networks by Nsight Compute, with durations in ns"]


def test_a_table_of_two_boards_has_a_set_of_each_and_no_operator_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="op 'upsample' of fp32 is unknown"):
        read_measurements(kernel_table(tmp_path, [*ROWS, ROWS[0].replace(",conv,", ",upsample,")]))
    path = kernel_table(tmp_path, 2 * ROWS)
    path.write_text(path.read_text().replace(BOARD, "NVIDIA Tesla T4", len(ROWS)))
    assert [(one.device, len(one.measurements)) for one in read_measurement_sets(path)] == [("t4", 5), ("v100-sxm2", 5)]
