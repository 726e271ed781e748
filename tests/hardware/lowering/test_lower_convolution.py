"""Grids and work of kernels of convolutions and pools against launch records, and cuDNN's algorithms against public logs."""

import csv
import math
from math import fsum
from pathlib import Path
from typing import Any

import pytest

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.execution.engine import Engine
from iossim.hardware.compute_capability import Architecture
from iossim.hardware.load import device
from iossim.hardware.lowering.gpu import TARGET
from iossim.hardware.lowering.kernel import OF_COMPILERS, Candidate, Kernel, Libraries, WorkClass
from iossim.hardware.lowering.step import Operand, Step
from iossim.hardware.lowering.target import step_algorithms, step_candidates
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.ir.types import DType, Precision, TensorType
from iossim.measurements.operator_kinds import read_record


def step(
    batch: int, channels: int, size: int, filters: int, kernel: int, pad: int = 0, *, direction: str = "forward",
    groups: int = 1, stride: int = 1, dilation: int = 1, precision: Precision = Precision.FP32,
) -> Step:  # fmt: skip
    op = Conv((stride,) * 2, (pad,) * 4, (dilation,) * 2, groups)
    x = TensorType((batch, channels, size, size), precision.storage)
    weight = TensorType((filters, channels // groups, kernel, kernel), precision.storage)
    (y,) = op.infer((x, weight))
    shared = op.strides, op.pads, op.dilations, op.groups
    gradient = {
        "forward": (op, (x, weight)),
        "data": (ConvBackwardData(*shared, x.shape[2:]), (y, weight)),
        "filter": (ConvBackwardFilter(*shared, weight.shape[2:]), (x, y)),
    }
    found, inputs = gradient[direction]
    outputs = found.infer(inputs)
    operands = tuple(Operand(value, value is weight) for value in inputs)
    return Step(found, operands, outputs, found.flops(inputs, outputs), precision)


def candidates(
    batch: int, channels: int, filters: int, size: int, kernel: int = 3, **more: Any
) -> dict[str, Candidate]:
    found = step(batch, channels, size, filters, kernel, kernel // 2, **more)
    return {candidate.algorithm: candidate for candidate in TARGET.families["conv"](found)}


@pytest.mark.parametrize(
    ("batch", "channels", "filters", "size", "tile", "grid"),
    [  # grids as cuDNN's launch records on V100 have them
        (20, 16, 1912, 11, "128x64", 19 * 30),
        (22, 8, 1607, 60, "128x32", 619 * 51),
        (29, 43, 1081, 5, "128x128", 6 * 9),
    ],
)
def test_implicit_gemm_grid(batch: int, channels: int, filters: int, size: int, tile: str, grid: int) -> None:
    offsets, kernel = candidates(batch, channels, filters, size)[f"implicit_gemm_{tile}"].kernels
    assert (offsets.work_class, offsets.blocks) == (WorkClass.INDEX, 1)
    assert (kernel.blocks, kernel.panels) == (grid, None)
    inner = math.ceil(channels * 9 / 8) * 8
    rows, columns = map(int, tile.split("x"))
    assert kernel.flops == grid * rows * columns * inner * 2


@pytest.mark.parametrize(
    ("batch", "channels", "filters", "size", "grid"), [(7, 97, 206, 9, 49 * 2), (57, 937, 4, 56, 57 * 7 * 4)]
)
def test_fused_winograd_grid(batch: int, channels: int, filters: int, size: int, grid: int) -> None:
    generate, fused = candidates(batch, channels, filters, size)["winograd_fused_1x4x8"].kernels
    assert fused.blocks == grid
    # The generated tiles, 16 values a filter and channel, are what the second kernel reads.
    assert generate.weight_bytes == filters * channels * 9 * 4
    assert generate.bytes_written == fused.weight_bytes == filters * channels * 16 * 4


def test_boxes_of_fused_winograd_by_generation() -> None:
    found = candidates(8, 64, 64, 14)
    boxes = {name: found[name].architectures for name in found if name.startswith("winograd_fused")}
    assert [name for name, where in boxes.items() if Architecture.AMPERE in where] == ["winograd_fused_1x4x8"]
    assert len(boxes) > 1
    assert all(Architecture.PASCAL in where and Architecture.HOPPER not in where for where in boxes.values())
    # 7x7 tiles an image, 8 images: boxes of 4x4x2 tiles leave less over than boxes of 1x4x8.
    assert found["winograd_fused_1x4x8"].kernels[1].blocks == 8 * 2 * 1 * 2
    assert found["winograd_fused_4x4x2"].kernels[1].blocks == 2 * 2 * 4 * 2


def test_non_fused_winograd_grid_and_workspace() -> None:
    found = candidates(38, 893, 326, 5)["winograd_nonfused_64x64"]
    assert [kernel.name for kernel in found.kernels] == [
        "winograd_transform_data", "winograd_transform_filter", "winograd_gemm_64x64", "winograd_transform_output",
    ]  # fmt: skip
    assert found.kernels[2].blocks == 3 * 6 * 36
    tiles = 48 * 2 * 2  # images are padded to a multiple of 16
    assert found.workspace_bytes == 36 * 4 * (tiles * 893 + 326 * 893 + tiles * 326)


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_table_of_offsets_or_none(kernel: int) -> None:
    found = candidates(1, 64, 64, 17, kernel=kernel)
    by_table, without = [WorkClass.INDEX, WorkClass.IMPLICIT_PRECOMP_GEMM], [WorkClass.IMPLICIT_GEMM]
    implicit = {name: [one.work_class for one in each.kernels] for name, each in found.items() if "implicit" in name}
    assert implicit == {
        **{f"implicit_gemm_{tile}": by_table for tile in ("128x128", "128x64", "128x32")},
        **{f"implicit_convolve_{tile}": without for tile in ("32x32", "64x256")},
    }
    assert found["implicit_convolve_32x32"].kernels[0].blocks == 10 * 2  # 289 pixels by 64 filters
    assert found["implicit_convolve_64x256"].kernels[0].blocks == 5 * 1


@pytest.mark.parametrize(
    ("arguments", "algorithms"),
    [
        ({}, {"winograd", "fft", "implicit"}),
        ({"kernel": 5}, {"winograd", "fft", "implicit"}),
        ({"kernel": 7}, {"fft", "implicit"}),
        ({"kernel": 1}, {"implicit"}),
        ({"stride": 2}, {"implicit"}),
        ({"groups": 4}, {"implicit", "grouped"}),
        ({"groups": 64}, {"depthwise", "grouped"}),
        ({"precision": Precision.FP16}, {"implicit"}),
        ({"precision": Precision.TF32}, {"winograd", "fft", "implicit"}),
    ],
)
def test_which_algorithms_apply(arguments: dict[str, int], algorithms: set[str]) -> None:
    found = candidates(1, 64, 64, 17, **arguments)  # type: ignore[arg-type]
    assert {name.split("_")[0] for name in found} == algorithms


def test_winograd_multiplies_less_and_grouping_divides_the_work() -> None:
    dense = candidates(8, 128, 128, 32)
    direct = min(c.kernels[-1].flops for name, c in dense.items() if name.startswith("implicit"))
    assert dense["winograd_fused_1x4x8"].kernels[1].flops == pytest.approx(direct / 2.25, rel=0.01)
    grouped = candidates(8, 128, 128, 32, groups=2)
    assert grouped["implicit_gemm_128x64"].kernels[1].flops * 2 == dense["implicit_gemm_128x64"].kernels[1].flops


@pytest.mark.parametrize(("kernel", "read"), [(1, 8 * 8), (3, 16 * 16)])
def test_a_strided_pointwise_convolution_reads_a_part_of_its_input(kernel: int, read: int) -> None:
    _, found = candidates(1, 64, 64, 16, kernel=kernel, stride=2)["implicit_gemm_128x64"].kernels
    assert found.activation_bytes == 64 * read * DType.FLOAT32.bytes


@pytest.mark.parametrize(("channels", "groups", "filters"), [(64, 64, 64), (64, 64, 128), (96, 3, 96)])
def test_a_group_is_a_slice_of_the_grid(channels: int, groups: int, filters: int) -> None:
    (kernel,) = candidates(2, channels, filters, 21, kernel=5, groups=groups)["grouped_convolve_32x32"].kernels
    inner = math.ceil(channels // groups * 25 / 8) * 8
    assert kernel.blocks == math.ceil(2 * 21 * 21 / 32) * math.ceil(filters / groups / 32) * groups
    # Filters that a group does not have are computed all the same.
    assert kernel.flops == kernel.blocks * 32 * 32 * inner * 2


def test_each_age_of_libraries_has_its_kernels() -> None:
    found = {
        groups: {
            libraries: {name for name, one in candidates(1, 64, 64, 17, groups=groups).items() if one.is_in(libraries)}
            for libraries in Libraries
        }
        for groups in (1, 4, 64)
    }
    assert all(names for of_groups in found.values() for names in of_groups.values())
    of_today = {one: {"depthwise"} for one in Libraries if one is not Libraries.CUDNN_7}
    assert found[64] == {Libraries.CUDNN_7: {"grouped_convolve_32x32"}} | of_today
    assert found[4][Libraries.CUDNN_7] == {"grouped_convolve_32x32"}


def depthwise(size: int, kernel: int | tuple[int, int] = 3, stride: int = 1) -> Kernel:
    """The kernel of 64 channels, padded so as to keep the image's size at stride 1."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    record = {"op": "conv", "batch": 1, "in_channels": 64, "out_channels": 64, "groups": 64, "in_size": size}
    window = {"kernel_h": height, "kernel_w": width, "stride": stride, "padding": height // 2 if height == width else 0}
    found = TARGET.families["conv"](read_record(record | window).step())
    (one,) = next(each.kernels for each in found if each.algorithm == "depthwise")
    return one


def test_a_block_of_a_depthwise_kernel_reads_the_rows_that_its_windows_reach() -> None:
    def halo(size: int, kernel: int = 3, stride: int = 1) -> float:
        one = depthwise(size, kernel, stride)
        return (one.l2_bytes - one.weight_bytes - one.bytes_written) / one.activation_bytes

    assert halo(256) == pytest.approx(3.0)  # a row of outputs a block
    assert halo(64) == pytest.approx(6 / 4)  # four rows
    assert halo(64, kernel=7) == pytest.approx(10 / 4)
    assert halo(64, stride=2) == pytest.approx(17 / 16)  # eight rows of 32
    assert halo(256, kernel=1) == 1.0


@pytest.mark.parametrize(
    ("kernel", "stride", "taps"),
    [
        *((1, 1, 15), (3, 1, 23), (5, 1, 39), (3, 2, 32)),  # indexing and strides cost as taps do
        *(((3, 5), 1, 14 + 15 + 8), ((3, 1), 1, 14 + 3 + 8), (7, 1, 14 + 49 + 18)),  # loops that are not compiled cost more
    ],
)  # fmt: skip
def test_taps_of_a_depthwise_kernel(kernel: int | tuple[int, int], stride: int, taps: int) -> None:
    one = depthwise(32, kernel, stride)
    assert one.flops / (2 * one.bytes_written / 4) == taps


OUTPUTS = 2 * 64 * 28 * 28


def kernel(kind: str, libraries: Libraries, **sizes: int) -> Kernel:
    window = {"kernel": 3, "stride": 2, "padding": 1} if not kind.startswith("global") else {}
    record = {"op": kind, "batch": 2, "channels": 64, "in_size": 56} | window | sizes
    found = step_candidates(read_record(record).step(), device("v100-sxm2"))
    (candidate,) = (one for one in found if one.is_in(libraries))
    (only,) = candidate.kernels
    return only


def test_a_framework_writes_where_each_maximum_was() -> None:
    written = {libraries: kernel("max_pool", libraries).bytes_written for libraries in Libraries}
    assert written[Libraries.CUDNN_7] == written[Libraries.CUDNN_8] == 4 * OUTPUTS
    assert written[Libraries.CURRENT] == (4 + 8) * OUTPUTS
    assert kernel("average_pool", Libraries.CURRENT).bytes_written == 4 * OUTPUTS


@pytest.mark.parametrize("libraries", Libraries)
def test_a_window_costs_its_taps_beside_finding_it(libraries: Libraries) -> None:
    def counted(kind: str, size: int) -> float:
        return kernel(kind, libraries, kernel=size, padding=0, stride=1, in_size=27 + size).flops / (2 * OUTPUTS)

    # A compiler's thread compares a tap with one instruction, since a load brings four channels.
    of_a_tap = 1 if libraries in OF_COMPILERS else 2
    assert counted("max_pool", 5) - counted("max_pool", 3) == of_a_tap * (25 - 9)
    is_framework = libraries is Libraries.CURRENT
    assert (counted("average_pool", 3) > counted("max_pool", 3)) == is_framework


def test_averages_of_cudnn_reach_a_part_of_the_bandwidth_and_means_of_a_framework_are_reductions() -> None:
    assert kernel("average_pool", Libraries.CUDNN_7).work_class is WorkClass.AVERAGE_WINDOW
    assert kernel("average_pool", Libraries.CURRENT).work_class is WorkClass.WINDOW
    assert kernel("max_pool", Libraries.CUDNN_7).work_class is WorkClass.WINDOW
    window, reduction = (kernel("global_average_pool", one) for one in (Libraries.CUDNN_8, Libraries.CURRENT))
    assert (window.work_class, reduction.work_class) == (WorkClass.WINDOW, WorkClass.SUM)
    assert window.flops > 2 * 2 * 64 * 56 * 56 > reduction.flops / 2
    assert reduction.blocks > window.blocks


P100, T4, A100 = device("p100-sxm2"), device("t4"), device("a100-sxm-40gb")
MIB = 1 << 20


def workspace(found: Step, algorithm: str) -> int:
    (size,) = {one.workspace_bytes for one in step_algorithms(found, P100)[algorithm]}
    return size


@pytest.mark.parametrize(
    ("convolution", "logged"),
    [
        ((1, 1, 28, 20, 5), (57600, 184784, 178432, 2057744)),
        ((1, 20, 12, 50, 5), (128000, 2450080, 4656640, 1433120)),
        ((128, 1, 28, 32, 5), (7372800, 35654784, 18522112, 25720448)),
    ],
)
def test_workspaces_are_those_of_public_logs(convolution: tuple[int, ...], logged: tuple[int, ...]) -> None:
    found = step(*convolution)  # type: ignore[arg-type]
    assert tuple(workspace(found, name) for name in ("gemm", "fft", "fft_tiling", "winograd_nonfused")) == logged
    assert workspace(found, "implicit_gemm") == 0


def test_workspaces_of_alexnet_are_those_that_are_published() -> None:
    assert workspace(step(256, 64, 27, 192, 5, 2), "fft_tiling") == 323 * MIB
    grouped = {batch: step(batch, 96, 27, 256, 5, 2, groups=2) for batch in (32, 48)}
    assert round(workspace(grouped[32], "fft_tiling") / MIB, 1) == 48.9
    assert round(workspace(grouped[48], "winograd_nonfused") / MIB, 1) == 53.0


ALWAYS = {
    "forward": {"implicit_gemm", "implicit_precomp_gemm"},
    "data": {"algo_0", "algo_1"},
    "filter": {"algo_0", "algo_1", "algo_3"},
}
DENSE = {"forward": {"gemm"}, "data": set(), "filter": set()}


@pytest.mark.parametrize("direction", ALWAYS)
@pytest.mark.parametrize(
    ("arguments", "transforms"),
    [
        ({"kernel": 3, "pad": 1}, {"fft", "fft_tiling", "winograd", "winograd_nonfused"}),
        ({"kernel": 5, "pad": 2}, {"fft", "fft_tiling", "winograd_nonfused"}),
        ({"kernel": 7, "pad": 3}, {"fft", "fft_tiling"}),
        ({"kernel": 1}, set()),
        ({"kernel": 3, "pad": 1, "stride": 2}, set()),
        ({"kernel": 3, "pad": 2, "dilation": 2}, set()),
        ({"kernel": 3, "pad": 1, "size": 300}, {"fft_tiling", "winograd", "winograd_nonfused"}),
        ({"kernel": 3, "pad": 1, "groups": 4}, {"fft", "fft_tiling", "winograd", "winograd_nonfused"}),
        ({"kernel": 3, "pad": 1, "precision": Precision.FP16}, set()),
    ],
)  # fmt: skip
def test_which_algorithms_there_are(direction: str, arguments: dict[str, int], transforms: set[str]) -> None:
    given = {"batch": 4, "channels": 16, "filters": 16, "size": 20, **arguments}
    found = step_algorithms(step(**given, direction=direction), P100)  # type: ignore[arg-type]
    expected = ALWAYS[direction] | transforms
    if arguments.get("precision") is None:
        expected |= DENSE[direction]
    assert set(found) == expected - ({"winograd"} if direction == "filter" else set())


def test_a_depthwise_convolution_is_not_called_channel_by_channel() -> None:
    found = step_algorithms(step(4, 64, 20, 64, 3, 1, groups=64), P100)
    assert {name for name, candidates in found.items() if candidates} == ALWAYS["forward"]


def test_groups_that_are_called_one_by_one_share_a_workspace() -> None:
    grouped, one = step(32, 96, 27, 256, 5, 2, groups=2), step(32, 48, 27, 128, 5, 2)
    found = (step_algorithms(each, P100)["fft_tiling"] for each in (grouped, one))
    for of_two, of_one in zip(*found, strict=True):
        assert of_two.kernels == 2 * of_one.kernels
        assert of_two.workspace_bytes == of_one.workspace_bytes


@pytest.mark.parametrize(
    ("board", "rows", "most_percent"),
    [("p100-pcie-16gb", 30, 12), ("p4", 8, 10), ("v100-pcie-32gb", 9, 16), ("t4", 6, 12)],
)
def test_the_price_of_fourier_transforms_is_that_of_recordings(
    shared: Path, board: str, rows: int, most_percent: float
) -> None:
    """Convolutions that cuDNN ran by transforms on the board: 28.6, 36.1, 30.4 and 11.7% off while all products had blocks of 64x64."""
    prices = SimulatorCostModel(device(board), Precision.FP32)
    errors = []
    for row in csv.DictReader((shared / f"data/kernels/conv.{board}.csv").open()):
        if "gcgemm" in row["kernels"]:
            sizes = ("batch", "in_channels", "in_size", "out_channels", "kernel", "padding")
            given = step(*(int(row[name]) for name in sizes))
            name = "fft" if "flip_filter" in row["kernels"] else "fft_tiling"
            price_us = prices.price_candidates(step_algorithms(given, prices.profile)[name]).min()
            errors.append(abs(price_us / float(row["latency_us"]) - 1))
    assert len(errors) == rows
    assert 100 * sum(errors) / rows < most_percent


@pytest.mark.parametrize(("precision", "on_t4", "on_a100"), [
    (Precision.FP32, False, False), (Precision.TF32, False, True), (Precision.FP16, True, True),
])  # fmt: skip
@pytest.mark.parametrize("direction", ["data", "filter"])
def test_gradients_run_on_tensor_cores_where_they_are(
    precision: Precision, on_t4: bool, on_a100: bool, direction: str
) -> None:
    given = step(8, 64, 28, 64, 3, 1, direction=direction, precision=precision)
    for profile, expected in ((T4, on_t4), (A100, on_a100)):
        model = KernelModel(profile, libraries=Engine.PAPER.libraries_on(profile.architecture))
        candidate, _ = model.fastest(step_candidates(given, profile))
        assert any(kernel.steps for kernel in candidate.kernels) is expected


@pytest.mark.parametrize("direction", ["data", "filter"])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_gradient_takes_about_as_long_as_its_convolution(direction: str, stride: int) -> None:
    model = KernelModel(P100, libraries=Libraries.CUDNN_7)

    def fastest_us(found: Step) -> float:
        _, prices = model.fastest(step_candidates(found, P100))
        return fsum(price.alone_us for price in prices)

    forward, backward = (step(64, 64, 28, 128, 3, 1, direction=each, stride=stride) for each in ("forward", direction))
    assert 0.5 < fastest_us(backward) / fastest_us(forward) < 2.5


@pytest.mark.parametrize("direction", ["data", "filter"])
@pytest.mark.parametrize("groups", [1, 4, 64])
def test_every_candidate_of_a_gradient_has_a_name_of_its_own(direction: str, groups: int) -> None:
    for precision in (Precision.FP32, Precision.TF32):
        found = step(4, 64, 20, 64, 3, 1, direction=direction, groups=groups, precision=precision)
        for profile in (P100, A100):
            names = [one.algorithm for one in step_candidates(found, profile)]
            assert len(names) == len(set(names))


@pytest.mark.parametrize("groups", [1, 4, 64])
def test_each_product_of_a_pixel_and_a_tap_is_added_by_itself(groups: int) -> None:
    found = step_candidates(step(4, 64, 20, 64, 3, 1, direction="data", groups=groups), P100)
    scattered = [one.kernels[-1] for one in found if "scattered" in one.algorithm]
    assert scattered
    for kernel in scattered:
        rows, columns = map(int, kernel.tile.split("x"))
        loaded_bytes = kernel.flops / 2 * (1 / rows + 1 / columns) * 4
        assert kernel.l2_bytes == pytest.approx(loaded_bytes + 4 * 20**2 * 64 * 9 * 4)
