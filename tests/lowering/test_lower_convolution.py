"""Grids and work of convolution kernels: tile arithmetic against launch records and by hand."""

from __future__ import annotations

import math

import pytest

from iossim.ir.ops.conv import Conv
from iossim.ir.types import DType, Precision, TensorType
from iossim.lowering.kernel import Candidate, WorkClass
from iossim.lowering.step import Operand, Step, family


def candidates(
    batch: int,
    channels: int,
    filters: int,
    size: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    precision: Precision = Precision.FP32,
) -> dict[str, Candidate]:
    pad = kernel // 2
    op = Conv((stride, stride), (pad,) * 4, (1, 1), groups)
    x = TensorType((batch, channels, size, size), precision.storage)
    weight = TensorType((filters, channels // groups, kernel, kernel), precision.storage)
    (y,) = op.infer([x, weight])
    step = Step(op, (Operand(x), Operand(weight, True)), (y,), op.flops([x, weight], [y]), precision)
    return {candidate.algorithm: candidate for candidate in family("conv").lower(step)}


@pytest.mark.parametrize(
    ("batch", "channels", "filters", "size", "tile", "grid"),
    [  # grids as cuDNN's launch records on V100 have them
        (20, 16, 1912, 11, "128x64", 19 * 30),
        (22, 8, 1607, 60, "128x32", 619 * 51),
        (29, 43, 1081, 5, "128x128", 6 * 9),
    ],
)
def test_implicit_gemm_grid(batch: int, channels: int, filters: int, size: int, tile: str, grid: int) -> None:
    (kernel,) = candidates(batch, channels, filters, size)[f"implicit_gemm_{tile}"].kernels
    assert kernel.blocks == grid
    inner = math.ceil(channels * 9 / 8) * 8
    rows, columns = map(int, tile.split("x"))
    assert kernel.flops == grid * rows * columns * inner * 2


@pytest.mark.parametrize(
    ("batch", "channels", "filters", "size", "grid"), [(7, 97, 206, 9, 49 * 2), (57, 937, 4, 56, 57 * 7 * 4)]
)
def test_fused_winograd_grid(batch: int, channels: int, filters: int, size: int, grid: int) -> None:
    (kernel,) = candidates(batch, channels, filters, size)["winograd_fused"].kernels
    # The records are of boxes of 1x4x8 tiles; the best of all shapes is never worse.
    assert kernel.blocks % math.ceil(filters / 32) == 0
    assert 0.7 * grid <= kernel.blocks <= grid


def test_non_fused_winograd_grid_and_workspace() -> None:
    found = candidates(38, 893, 326, 5)["winograd_nonfused_64x64"]
    assert [kernel.name for kernel in found.kernels] == [
        "winograd_transform_data", "winograd_transform_filter", "winograd_gemm_64x64", "winograd_transform_output",
    ]  # fmt: skip
    assert found.kernels[2].blocks == 3 * 6 * 36
    tiles = 38 * 2 * 2
    assert found.workspace_bytes == 36 * 4 * (tiles * 893 + 326 * 893 + tiles * 326)


def test_only_pointwise_convolutions_have_small_tiles() -> None:
    def small(found: dict[str, Candidate]) -> list[str]:
        kernels = [kernel for candidate in found.values() for kernel in candidate.kernels[:1]]
        return [kernel.name for kernel in kernels if kernel.work_class is WorkClass.SMALL_TILE_GEMM]

    assert small(candidates(1, 64, 64, 17, kernel=1)) == ["implicit_gemm_32x32"]
    assert small(candidates(1, 64, 64, 17, kernel=3)) == []


@pytest.mark.parametrize(
    ("arguments", "algorithms"),
    [
        ({}, {"winograd", "fft", "implicit"}),
        ({"kernel": 5}, {"winograd", "fft", "implicit"}),
        ({"kernel": 7}, {"fft", "implicit"}),
        ({"kernel": 1}, {"implicit"}),
        ({"stride": 2}, {"implicit"}),
        ({"groups": 4}, {"implicit"}),
        ({"groups": 64}, {"depthwise"}),
        ({"precision": Precision.FP16}, {"implicit"}),
        ({"precision": Precision.TF32}, {"winograd", "fft", "implicit"}),
    ],
)
def test_which_algorithms_apply(arguments: dict[str, int], algorithms: set[str]) -> None:
    found = candidates(1, 64, 64, 17, **arguments)  # type: ignore[arg-type]
    assert {name.split("_")[0] for name in found} == algorithms


def test_winograd_multiplies_less_and_grouping_divides_the_work() -> None:
    dense = candidates(8, 128, 128, 32)
    direct = min(kernel.flops for name, c in dense.items() if name.startswith("implicit") for kernel in c.kernels)
    assert dense["winograd_fused"].kernels[0].flops == pytest.approx(direct / 2.25, rel=0.01)
    grouped = candidates(8, 128, 128, 32, groups=2)
    assert grouped["implicit_gemm_128x64"].kernels[0].flops * 2 == dense["implicit_gemm_128x64"].kernels[0].flops


def test_a_strided_pointwise_convolution_reads_a_part_of_its_input() -> None:
    (kernel,) = candidates(1, 64, 64, 16, kernel=1, stride=2)["implicit_gemm_128x64"].kernels
    assert kernel.activation_bytes == 64 * 8 * 8 * DType.FLOAT32.bytes
    (window,) = candidates(1, 64, 64, 16, kernel=3, stride=2)["implicit_gemm_128x64"].kernels
    assert window.activation_bytes == 64 * 16 * 16 * DType.FLOAT32.bytes
