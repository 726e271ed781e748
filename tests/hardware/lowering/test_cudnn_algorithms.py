"""cuDNN's algorithms: their workspaces against public logs, byte for byte, and where each is to be had."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import fsum
from pathlib import Path

import pytest

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Libraries
from iossim.hardware.lowering.step import Operand, Step
from iossim.hardware.lowering.target import step_algorithms, step_candidates
from iossim.ir.ops.conv import Conv
from iossim.ir.ops.conv_transpose import ConvBackwardData, ConvBackwardFilter
from iossim.ir.types import Precision, TensorType

P100, T4, A100 = device("p100-sxm2"), device("t4"), device("a100-sxm-40gb")
MIB = 1 << 20


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


def test_every_candidate_of_a_gradient_has_a_name_of_its_own() -> None:
    for direction in ("data", "filter"):
        for groups in (1, 4, 64):
            found = step(4, 64, 20, 64, 3, 1, direction=direction, groups=groups)
            for profile in (P100, A100):
                names = [one.algorithm for one in step_candidates(found, profile)]
                assert len(names) == len(set(names))
                tf32 = replace(found, precision=Precision.TF32)
                names = [one.algorithm for one in step_candidates(tf32, profile)]
                assert len(names) == len(set(names))
