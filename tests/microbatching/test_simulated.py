"""Rows of a kernel from the simulator: AlexNet's second layer on the board that its micro-batches were published for."""

from __future__ import annotations

import pytest
from cpus import cpu

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.lowering.target import step_candidates
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.ir.types import Precision, TensorType
from iossim.microbatching.convolutions_in_micro_batches import simulated_rows
from iossim.microbatching.division import BenchmarkRow
from iossim.microbatching.network_kernels import ConvKernel

MIB = 1 << 20
P100 = SimulatorCostModel(device("p100-sxm2"), Precision.FP32)
CONV2 = Conv((1, 1), (2, 2, 2, 2))
X, WEIGHT, Y = TensorType((256, 48, 27, 27)), TensorType((128, 48, 5, 5)), TensorType((256, 128, 27, 27))
FORWARD = ConvKernel(CONV2, (X, WEIGHT))
DATA = ConvKernel(ConvBackwardData(CONV2.strides, CONV2.pads, input_size=(27, 27)), (Y, WEIGHT))
FILTER = ConvKernel(ConvBackwardFilter(CONV2.strides, CONV2.pads, kernel_size=(5, 5)), (X, Y, WEIGHT))


def fastest(rows: tuple[BenchmarkRow, ...], batch: int, limit: int) -> BenchmarkRow:
    return min(
        (row for row in rows if row.batch == batch and row.workspace_bytes <= limit), key=lambda row: row.time_us
    )


def test_the_whole_batch_gets_no_fast_algorithm_within_the_limit_and_a_part_of_it_does() -> None:
    rows = [row for batch in (32, 48, 256) for row in simulated_rows(FORWARD.of_batch(batch), P100)]
    assert fastest(rows, 256, 64 * MIB).algorithm == "implicit_precomp_gemm"
    assert fastest(rows, 48, 64 * MIB).algorithm == "winograd_nonfused"
    assert {row.algorithm for row in rows if row.batch == 32 and row.workspace_bytes <= 50 * MIB} >= {"fft_tiling"}
    undivided = fastest(rows, 256, 64 * MIB).time_us
    divided = 2 * fastest(rows, 32, 64 * MIB).time_us + 4 * fastest(rows, 48, 64 * MIB).time_us
    assert 2 < undivided / divided < 4  # 2.33 is published
    assert fastest(rows, 256, 512 * MIB).time_us < divided


@pytest.mark.parametrize("kernel", [FORWARD, DATA, FILTER], ids=lambda kernel: kernel.op.kind)
def test_rows_of_an_algorithm_do_not_beat_each_other(kernel: ConvKernel) -> None:
    rows = [row for batch in (1, 8) for row in simulated_rows(kernel.of_batch(batch), P100)]
    for one in rows:
        same = [row for row in rows if (row.batch, row.algorithm) == (one.batch, one.algorithm) and row is not one]
        assert all((row.time_us < one.time_us) != (row.workspace_bytes < one.workspace_bytes) for row in same)
    assert all(any(row.workspace_bytes <= 64 << 10 for row in rows if row.batch == batch) for batch in (1, 8))


def test_the_fastest_row_is_what_the_simulator_would_run() -> None:
    for kernel in (DATA, FILTER):
        given = kernel.of_batch(16)
        prices = P100.price_candidates(step_candidates(given.step(), P100.profile))
        assert min(row.time_us for row in simulated_rows(kernel.of_batch(16), P100)) == prices.min()


def test_parts_keep_the_weights_and_the_sum() -> None:
    assert DATA.of_batch(32).inputs == (TensorType((32, 128, 27, 27)), WEIGHT)
    assert FILTER.of_batch(32).inputs == (TensorType((32, 48, 27, 27)), TensorType((32, 128, 27, 27)), WEIGHT)


def test_candidates_are_priced_as_units_are() -> None:
    candidates = step_candidates(FORWARD.of_batch(4).step(), P100.profile)
    fastest_one, prices = P100.units.whole.fastest(candidates)
    assert P100.price_candidates(candidates).min() == pytest.approx(sum(price.alone_us for price in prices))
    absent = Candidate("absent", fastest_one.kernels, libraries=frozenset())
    assert P100.price_candidates([absent, fastest_one])[0] == float("inf")
    assert len(P100.price_candidates([])) == 0


def test_a_device_without_cudnn_has_its_own_algorithms() -> None:
    rows = simulated_rows(FORWARD.of_batch(8), SimulatorCostModel(cpu(), Precision.FP32))
    assert {row.algorithm for row in rows} == {"nchw", "nchwc"}
