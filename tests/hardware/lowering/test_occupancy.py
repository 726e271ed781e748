"""How many blocks an SM holds, and where kernels find what they read."""

from __future__ import annotations

from itertools import pairwise

import pytest

from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Candidate, WorkClass, occupancy, resident_blocks
from iossim.hardware.lowering.residence import Residence, Weights, lower_in_network, residences
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.lowering.unit import lower_unit
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.nary import Add
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


#: 3 MiB of L2 keep operands.
V100 = with_values(device("v100-sxm2"), {"l2_resident_fraction": 0.5})


def skipping(between: int, channels: int = 256) -> Network:
    """Pointwise convolutions in a row, values of 64 KiB and filters of 256 if there are 256 channels; the sum of the
    first and the last ends it.
    """
    b = GraphBuilder("skip")
    x = b.input("x", (1, channels, 8, 8))
    first = made = b.conv(x, channels, 1, name="first")
    for index in range(between):
        made = b.conv(made, channels, 1, name=f"between{index}")
    return b.network([b.add(Add(), made, first, name="sum")])


def read_from_dram(network: Network, unit: int, profile: DeviceProfile, weights: Weights = Weights.AUTO) -> int:
    ((candidate, *_),) = lower_in_network(network, unit, profile, weights)
    return sum(kernel.weight_bytes for kernel in candidate.kernels)


def test_a_value_is_lost_to_what_was_touched_since() -> None:
    lost = [read_from_dram(network := skipping(n), len(network.units) - 1, V100) for n in range(2, 20)]
    # Activations take turns in 192 KiB; with filters of up to 8 convolutions between they fit.
    assert lost[:7] == [0] * 7
    assert all(less <= more for less, more in pairwise(lost))
    assert lost[-1] == 64 << 10, "all of the first, nothing of the last"


def test_weights_are_found_where_a_whole_run_fits() -> None:
    small, large = skipping(6), skipping(30)
    assert {one.weights for one in residences(small, V100)} == {Weights.WARM}
    assert {one.weights for one in residences(large, V100)} == {Weights.COLD}
    # Weights that fit a larger cache are warm there.
    assert {one.weights for one in residences(large, device("rtx-5090"))} == {Weights.WARM}
    assert read_from_dram(small, 1, V100) == 0
    assert read_from_dram(large, 1, V100) >= 256 << 10


@pytest.mark.parametrize("weights", [Weights.WARM, Weights.COLD])
def test_weights_are_where_they_are_said_to_be(weights: Weights) -> None:
    network = skipping(30)
    (plain,) = lower_unit(network, network.units[1], V100)
    (found,) = lower_in_network(network, 1, V100, weights)
    for one, other in zip(plain, found, strict=True):
        for kernel, moved in zip(one.kernels, other.kernels, strict=True):
            # Only where bytes come from changes.
            assert kernel.weight_bytes + kernel.activation_bytes == moved.weight_bytes + moved.activation_bytes
            assert moved.weight_bytes == (0 if weights is Weights.WARM else kernel.weight_bytes)
            assert (kernel.waits_for_dram, moved.waits_for_dram) == (False, moved.weight_bytes > 0)


def test_equal_units_in_equal_places_have_equal_keys() -> None:
    found = residences(skipping(30), V100)
    assert {one.key for one in found[1:-1]} == {""}
    assert found[-1].key == "cold 4"
    assert Residence().key == ""
