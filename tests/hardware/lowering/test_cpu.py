"""What one thread of a CPU may do for a step: one block, bytes by hand."""

from __future__ import annotations

import pytest
from cpus import cpu

from iossim.hardware.lowering.cpu import GATHERED, GATHERED_AT_STRIDE, PACKED
from iossim.hardware.lowering.kernel import Candidate, WorkClass, resident_blocks
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.lowering.unit import lower_unit
from iossim.measurements.operator_kinds import parse_description
from iossim.models.load import load


def candidates(description: str) -> dict[str, Candidate]:
    return {one.algorithm: one for one in step_candidates(parse_description(description).step(), cpu())}


def conv(channels: int, filters: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> str:
    return (
        f"conv batch=2 in_channels={channels} out_channels={filters} kernel={kernel} in_size=10 stride={stride} "
        f"padding={kernel // 2} groups={groups}"
    )


@pytest.mark.parametrize("name", ["squeezenet", "nasnet_a", "randwire"])
def test_every_step_runs_as_one_block_of_a_core(name: str) -> None:
    network, device = load(name), cpu()
    steps = 0
    for unit in dict(zip(network.signatures, network.units, strict=True)).values():
        for found in lower_unit(network, unit, device):
            for candidate in found:
                (kernel,) = candidate.kernels
                assert kernel.blocks == 1
                needs = kernel.threads_per_block, kernel.registers_per_thread, kernel.shared_bytes_per_block
                assert resident_blocks(device.limits, *needs) == 1
            steps += 1
    assert steps > 15


def test_bytes_of_a_convolution() -> None:
    plain, blocked = candidates(conv(32, 24))["nchw"].kernels[0], candidates(conv(32, 24))["nchwc"].kernels[0]
    x, weight, y = 2 * 32 * 100 * 4, 24 * 32 * 9 * 4, 2 * 24 * 100 * 4
    assert plain.l2_bytes == x + weight + y + GATHERED * 9 * x
    assert blocked.l2_bytes == 2 * (x + y) + weight
    assert (plain.activation_bytes, plain.weight_bytes, plain.bytes_written) == (x + weight, 0, y)
    flops = 2 * 2 * 24 * 100 * 32 * 9
    assert plain.flops == flops
    # 24 filters fill one block and a half.
    assert blocked.flops == flops * 32 // 24
    (pointwise,) = candidates(conv(32, 24, kernel=1))["nchw"].kernels
    assert pointwise.l2_bytes == x + 24 * 32 * 4 + y + PACKED * x
    (strided,) = candidates(conv(32, 24, stride=2))["nchw"].kernels
    assert strided.l2_bytes == x + weight + y // 4 + GATHERED_AT_STRIDE * 9 * x // 4


@pytest.mark.parametrize(
    ("description", "algorithms"),
    [
        (conv(32, 24), {"nchw", "nchwc"}),
        (conv(42, 42), {"nchw"}),
        (conv(3, 32), {"nchw", "nchwc"}),
        (conv(36, 36, groups=36), {"nchw", "nchwc"}),
        (conv(42, 42, groups=42), {"nchw"}),
        (conv(64, 64, groups=2), {"nchw"}),
        ("max_pool batch=1 channels=64 in_size=10 kernel=3 stride=2 padding=0", {"nchw", "nchwc"}),
        ("max_pool batch=1 channels=84 in_size=10 kernel=3 stride=2 padding=0", {"nchw"}),
        ("linear batch=1 m=4 n=256 k=512", {"nchw"}),
        ("relu rows=8 cols=900", {"nchw"}),
    ],
)
def test_channels_that_blocks_divide(description: str, algorithms: set[str]) -> None:
    assert set(candidates(description)) == algorithms


def test_the_input_of_few_channels_is_not_reordered() -> None:
    (kernel,) = candidates(conv(3, 32))["nchwc"].kernels
    assert kernel.l2_bytes == 2 * 3 * 100 * 4 + 32 * 3 * 9 * 4 + 2 * (2 * 32 * 100 * 4)


@pytest.mark.parametrize(
    ("description", "algorithm", "work_class"),
    [
        (conv(32, 24), "nchw", WorkClass.CORE_PRODUCT),
        (conv(32, 24), "nchwc", WorkClass.CORE_BLOCKED),
        (conv(32, 32, groups=32), "nchwc", WorkClass.CORE_BLOCKED_WINDOW),
        ("linear batch=1 m=4 n=256 k=512", "nchw", WorkClass.CORE_PRODUCT),
        ("average_pool batch=1 channels=64 in_size=10 kernel=3 stride=1 padding=1", "nchw", WorkClass.CORE_WINDOW),
        ("global_average_pool batch=1 channels=64 in_size=10", "nchw", WorkClass.CORE_WINDOW),
        ("concat rows=8 cols=900", "nchw", WorkClass.CORE_STREAM),
    ],
)
def test_work_classes(description: str, algorithm: str, work_class: WorkClass) -> None:
    assert candidates(description)[algorithm].kernels[0].work_class is work_class
