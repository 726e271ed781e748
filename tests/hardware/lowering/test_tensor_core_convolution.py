"""Convolutions on tensor cores: transforms around them where tensors are NCHW, and padded channels."""

from __future__ import annotations

import pytest

from iossim.hardware.compute_capability import Architecture
from iossim.hardware.lowering.gpu import TARGET
from iossim.hardware.lowering.kernel import Candidate, Libraries, WorkClass
from iossim.ir.types import Precision
from iossim.measurements.operator_kinds import read_record


def candidates(precision: Precision, architecture: Architecture, **changed: int) -> list[Candidate]:
    sizes = {"batch": 1, "in_channels": 64, "out_channels": 64, "in_size": 28, "kernel": 3, "stride": 1, "padding": 1}
    operator = read_record({"op": "conv", **sizes, **changed}, precision)
    step = operator.step()
    return [one for one in TARGET.families[step.op.kind](step) if one.runs_on(architecture)]


def names(candidate: Candidate) -> list[str]:
    return [kernel.name for kernel in candidate.kernels if kernel.work_class is not WorkClass.TENSOR_CONVOLUTION]


def test_tf32_in_nchw_pays_for_transforms_of_all_tensors() -> None:
    found = candidates(Precision.TF32, Architecture.AMPERE)
    assert found
    assert names(found[0]) == ["nchw_to_nhwc", "compute_offsets", "filters_to_nhwc", "nhwc_to_nchw", "bias_activation"]
    x, _, weight, *_, y, epilogue = found[0].kernels
    assert (x.activation_bytes, x.bytes_written) == (64 * 28 * 28 * 4,) * 2
    assert (weight.weight_bytes, weight.activation_bytes) == (64 * 64 * 9 * 4, 0)
    assert y.bytes_written == epilogue.bytes_written == 64 * 28 * 28 * 4


def test_a_filter_of_one_pixel_lies_the_same_in_both_layouts() -> None:
    found = candidates(Precision.TF32, Architecture.AMPERE, kernel=1, padding=0)
    assert names(found[0]) == ["nchw_to_nhwc", "nhwc_to_nchw", "bias_activation"]


def test_half_precision_tensors_lie_as_the_kernels_want_them() -> None:
    for architecture in (Architecture.VOLTA, Architecture.TURING):
        found = candidates(Precision.FP16, architecture)
        assert found
        assert all(names(one) == [] for one in found)


@pytest.mark.parametrize(("channels", "inner"), [(1, 32 * 9), (3, 32 * 9), (33, 64 * 9)])
def test_before_ampere_a_step_stays_within_one_position_of_the_window(channels: int, inner: int) -> None:
    (kernel,) = candidates(Precision.FP16, Architecture.VOLTA, in_channels=channels)[0].kernels
    assert kernel.steps * 32 == inner


def test_later_kernels_pad_channels_to_one_load() -> None:
    kernel = candidates(Precision.FP16, Architecture.AMPERE, in_channels=3)[0].kernels[0]
    assert kernel.steps == -(-8 * 9 // 32)


def test_groups_and_devices_without_tensor_cores_keep_their_kernels() -> None:
    for found in (
        candidates(Precision.FP16, Architecture.AMPERE, groups=2),
        candidates(Precision.TF32, Architecture.VOLTA),
        candidates(Precision.FP32, Architecture.AMPERE),
    ):
        assert found
        classes = {kernel.work_class for one in found for kernel in one.kernels}
        assert not classes & {WorkClass.TENSOR_CONVOLUTION, WorkClass.LAYOUT}


def test_a_tile_of_filters_costs_as_much_as_a_full_one() -> None:
    x, _, filters, *_ = candidates(Precision.TF32, Architecture.AMPERE)[0].kernels
    # Of 28 x 28 pixels 25 tiles by two of channels; of each filter nine positions by two.
    assert (x.blocks, filters.blocks) == (25 * 2, 64 * 2)
    assert x.l2_bytes / x.blocks == filters.l2_bytes / filters.blocks == 32 * 32 * 12


def test_frameworks_choose_among_kernels_on_fp32_lanes_besides() -> None:
    found = candidates(Precision.TF32, Architecture.AMPERE, in_channels=3)
    on_lanes = [one for one in found if one.algorithm.startswith(("implicit_gemm_128", "winograd"))]
    assert on_lanes
    assert all(one.is_in(Libraries.CURRENT) and not one.is_in(Libraries.CUDNN_8) for one in on_lanes)
    assert all(kernel.precision is Precision.FP32 for one in on_lanes for kernel in one.kernels)
    half = candidates(Precision.FP16, Architecture.AMPERE, in_channels=3)
    assert {one.libraries for one in half} == {None}
