"""Programs of a framework on several boards: a small table."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from evidence.data.data_sets import read_measurement_sets, read_measurements
from evidence.data.formats import formats
from iossim.hardware.lowering.kernel import Libraries
from iossim.ir.types import Precision
from iossim.measurements.measurement import MeasurementError
from iossim.measurements.operator_kinds import parse_description

IMAGE = "x = torch.randn(batch_size, in_channels, height, width) return [x]"
COLUMNS = [
    "hardware", "run", "mode", "level", "problem", "mean_ms", "std_ms", "min_ms", "max_ms", "trials",
    "problem_constants_json", "inputs_expr",
]  # fmt: skip
SIZES = {"batch_size": 2, "in_channels": 3, "height": 16, "width": 24}
#: Program, constants, inputs, and the operator that it is; None for what is no operator.
PROGRAMS: list[tuple[str, dict[str, Any], str, str | None]] = [
    (
        "2_Standard_matrix_multiplication_.py",
        {"M": 8, "K": 4, "N": 16},
        "A = torch.randn(M, K) B = torch.randn(K, N) return [A, B]",
        "gemm m=16 n=8 k=4 trans_a=N trans_b=N",
    ),
    (
        "16_Matmul_with_transposed_A.py",
        {"M": 8, "K": 4, "N": 16},
        "A = torch.randn(K, M) B = torch.randn(K, N) return [A, B]",
        "gemm m=16 n=8 k=4 trans_a=N trans_b=T",
    ),
    (
        "17_Matmul_with_transposed_B.py",
        {"M": 8, "K": 4, "N": 16},
        "A = torch.randn(M, K) B = torch.randn(N, K) return [A, B]",
        "gemm m=16 n=8 k=4 trans_a=T trans_b=N",
    ),
    (
        "10_3D_tensor_matrix_multiplication.py",
        {"N": 2, "M": 8, "K": 4, "L": 16},
        "A = torch.randn(N, M, K) B = torch.randn(K, L) return [A, B]",
        "gemm m=16 n=16 k=4 trans_a=N trans_b=N",
    ),
    (
        "3_Batched_matrix_multiplication.py",
        {"batch_size": 2, "m": 8, "k": 4, "n": 16},
        "A = torch.randn(batch_size, m, k) B = torch.randn(batch_size, k, n) return [A, B]",
        "bmm batch=2 m=8 n=4 k=16",
    ),
    (
        "23_Softmax.py",
        {"batch_size": 16, "dim": 64},
        "x = torch.randn(batch_size, dim) return [x]",
        "softmax rows=16 cols=64",
    ),
    (
        "45_Average_Pooling_2D.py",
        {**SIZES, "kernel_size": 3},
        IMAGE,
        "average_pool batch=2 channels=3 in_h=16 in_w=24 kernel=3 stride=3 padding=0",
    ),
    (
        "83_conv_depthwise_2D_square_input_asymmetric_kernel.py",
        {**SIZES, "kernel_size": 3},
        IMAGE,
        "conv batch=2 in_channels=3 out_channels=3 in_h=16 in_w=24 kernel_h=3 kernel_w=1 stride=1 padding=0 groups=3",
    ),
    (
        "65_conv_transposed_2D__square_input__asymmetric_kernel.py",
        {**SIZES, "out_channels": 4, "kernel_size": [3, 5]},
        IMAGE,
        "conv_transpose batch=2 in_channels=3 out_channels=4 in_h=16 in_w=24 kernel_h=3 kernel_w=5 stride=1 padding=0",
    ),
    (
        "56_conv_standard_2D__asymmetric_input__asymmetric_kernel.py",
        {**SIZES, "out_channels": 4, "kernel_size": [3, 5], "stride": 1, "padding": [1, 2], "dilation": [2, 1]},
        IMAGE,
        "conv batch=2 in_channels=3 out_channels=4 in_h=16 in_w=24 kernel_h=3 kernel_w=5 stride=1 pad_h=1 pad_w=2 "
        "dilation_h=2 dilation_w=1",
    ),
    ("86_conv_depthwise_separable_2D.py", {**SIZES, "kernel_size": 3}, IMAGE, None),
    ("25_Swish.py", {"batch_size": 16, "dim": 64}, "x = torch.randn(batch_size, dim) return [x]", None),
]


def table(
    folder: Path, hardware: tuple[str, ...] = ("Tesla T4", "NVIDIA A100-SXM4-40GB"), level: str = "level1"
) -> Path:
    path = folder / "problems.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for board in hardware:
            for name, constants, inputs, _ in PROGRAMS:
                row = [
                    board,
                    f"{board[-2:]}_run",
                    "torch",
                    level,
                    name,
                    1.5,
                    0.1,
                    1.25,
                    2.0,
                    100,
                    json.dumps(constants),
                    inputs,
                ]
                writer.writerow(row)
    return path


def test_programs_of_one_operator_are_read_a_set_a_board(tmp_path: Path) -> None:
    path = table(tmp_path)
    sets = read_measurement_sets(path)
    assert [one.device for one in sets] == ["t4", "a100-sxm-40gb"]
    expected = [parse_description(text).key for *_, text in PROGRAMS if text]
    for one in sets:
        has_tf32 = one.device != "t4"
        shapes = [row.operator for row in one.measurements]
        dense = [op.kind in ("conv", "conv_transpose") and getattr(op.op, "groups", 1) == 1 for op in shapes]
        assert [op.precision is Precision.TF32 for op in shapes] == [has_tf32 and is_dense for is_dense in dense]
        texts = [parse_description(text, op.precision).key for (*_, text), op in zip(_operators(), shapes, strict=True)]
        assert [op.key for op in shapes] == texts
        assert {row.latency_us for row in one.measurements} == {1250.0}
        assert one.header.includes_host_overhead
        assert one.header.called is Libraries.CURRENT
    assert len(expected) == len(sets[0].measurements)
    assert sets[0].notes == (f"{path}: 4 rows left out: the program is no operator that tables name",)


def _operators() -> list[tuple[str, dict[str, Any], str, str]]:
    return [(name, constants, inputs, text) for name, constants, inputs, text in PROGRAMS if text]


def test_it_is_of_one_format_and_needs_a_device(tmp_path: Path) -> None:
    path = table(tmp_path)
    assert [one.title for one in formats() if one.recognises(path, path.read_text())] == [
        "table of programs of a framework on several boards"
    ]
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
