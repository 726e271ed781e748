"""How many blocks an SM holds, and the kernels of transposed convolutions."""

from __future__ import annotations

import pytest

from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Candidate, WorkClass, occupancy, resident_blocks
from iossim.hardware.lowering.target import step_candidates
from iossim.ir.types import Precision
from iossim.measurements.operator_kinds import read_record


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks"),
    [
        ("7.0", 256, 32, 0, 8),  # all 64 warps
        ("7.0", 256, 128, 0, 2),  # registers: 16 warps
        ("7.0", 256, 122, 16_640, 2),
        ("7.0", 32, 16, 0, 32),  # block slots
        ("7.0", 128, 32, 33 * 1024, 2),  # shared memory: 96 KiB
        ("7.0", 64, 122, 8_448, 8),
        ("7.0", 256, 32, 97 * 1024, 0),  # more than a block may have
        ("7.0", 2048, 32, 0, 0),  # more threads than a block may have
        ("6.0", 256, 37, 0, 6),  # 51 warps' registers, 50 by granularity 2
        ("6.1", 256, 37, 0, 6),  # 48 by granularity 4
        ("6.0", 32, 37, 0, 32),
        ("7.5", 256, 32, 0, 4),  # 32 warps
        ("7.5", 32, 16, 0, 16),
        ("8.0", 256, 32, 48 * 1024, 3),  # 49 KiB each of 164
        ("8.6", 256, 32, 0, 6),  # 48 warps
        ("9.0", 1024, 64, 0, 1),
        ("3.7", 256, 64, 0, 8),  # twice the registers
        ("3.7", 256, 128, 0, 4),
        ("3.5", 256, 128, 0, 2),
    ],
)
def test_resident_blocks(capability: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert resident_blocks(LIMITS[capability], threads, registers, shared) == blocks


def test_occupancy_is_of_all_warps() -> None:
    assert occupancy(LIMITS["7.0"], 256, 32, 0) == 1.0
    assert occupancy(LIMITS["7.0"], 256, 128, 0) == 0.25
    assert occupancy(LIMITS["6.0"], 256, 37, 0) == 0.75


def candidates(name: str, precision: Precision, **sizes: int) -> dict[str, Candidate]:
    record = {"op": "conv_transpose", "batch": 2, "in_channels": 64, "out_channels": 64, "in_size": 16}
    record |= {"kernel": 4, "stride": 1, "padding": 0} | sizes
    found = step_candidates(read_record(record, precision).step(), device(name))
    return {one.algorithm: one for one in found}


def test_tf32_tensors_are_transformed_around_the_product() -> None:
    found = candidates("a100-sxm-40gb", Precision.TF32)
    names = [kernel.name for kernel in found["transposed_implicit_gemm_sm80_128x64"].kernels]
    assert names == ["nchw_to_nhwc", "compute_offsets", "filters_to_nhwc", "sm80_128x64", "nhwc_to_nchw"]
    (half,) = candidates("a100-sxm-40gb", Precision.FP16)["transposed_implicit_gemm_sm80_128x64"].kernels
    assert half.work_class is WorkClass.TENSOR_CONVOLUTION


def test_of_a_stride_the_taps_that_meet_a_pixel_are_multiplied() -> None:
    def steps(stride: int) -> int:
        (kernel,) = candidates("v100-sxm2", Precision.FP16, stride=stride)[
            "transposed_implicit_gemm_s884_64x64"
        ].kernels
        return kernel.steps

    assert steps(1) == 4 * steps(2) == 16 * steps(4)


def test_groups_are_multiplied_on_fp32_lanes_tap_by_tap() -> None:
    found = candidates("a100-sxm-40gb", Precision.TF32, groups=4, stride=2)
    kernels = [one.kernels[0] for one in found.values()]
    assert {kernel.precision for kernel in kernels} == {Precision.FP32}
    # 34 x 34 output pixels of 16 channels by all 16 taps.
    assert all(kernel.flops >= 2 * 2 * 64 * 34 * 34 * 16 * 16 for kernel in kernels if "split" not in kernel.name)


def test_one_group_in_fp32_computes_its_offsets_where_it_needs_them() -> None:
    found = candidates("v100-sxm2", Precision.FP32)
    assert {one.kernels[0].work_class for one in found.values()} == {WorkClass.IMPLICIT_GEMM}
