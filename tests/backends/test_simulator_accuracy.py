"""How near the hand-set parameters come to what was measured: errors that may only shrink."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.devices.load import device
from iossim.ir.ops.conv import Conv
from iossim.ir.types import Precision, TensorType
from iossim.lowering.step import Operand, Step, family
from iossim.models.load import load
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.scheduling.scheduler import schedule
from iossim.study.published import published_latency_us

DEVICE = "v100-sxm2"
SCHEDULERS = ("sequential", "greedy", "ios-merge", "ios-parallel", "ios-both")


def latencies(model: str, batch: int = 1) -> dict[str, float]:
    network = load(model, batch=batch)
    simulator = SimulatorCostModel(device(DEVICE), Precision.FP32, "paper")
    return {name: schedule(network, simulator, name).latency_us for name in SCHEDULERS}


@pytest.mark.parametrize(("model", "batch"), [("inception_v3", 1), ("squeezenet", 1), ("inception_v3", 32)])
def test_networks_come_near_the_published_latencies(model: str, batch: int) -> None:
    found = latencies(model, batch)
    published = {name: published_latency_us(model, DEVICE, batch, name) for name in SCHEDULERS}
    known = {name: latency for name, latency in published.items() if latency is not None}
    assert len(known) >= 2
    for name, latency in known.items():
        assert found[name] == pytest.approx(latency, rel=0.08), name


def test_orders_that_exceed_the_noise_are_right() -> None:
    squeezenet, inception = latencies("squeezenet"), latencies("inception_v3")
    assert squeezenet["greedy"] > squeezenet["sequential"]
    for found in (squeezenet, inception):
        assert found["ios-both"] == min(found.values())
    assert inception["ios-parallel"] < inception["greedy"] < inception["ios-merge"] < inception["sequential"]
    assert squeezenet["ios-merge"] < squeezenet["ios-parallel"] < squeezenet["sequential"]


def test_stages_of_the_sample_network() -> None:
    """Microseconds as figure 1.2 of the thesis has them, units a, b, c, d and concat."""
    network = load("ios_sample")
    problem = ScheduleProblem.of_block(network, network.blocks[0])
    assert problem.unit_names == ("a", "b", "c", "d", "concat")
    measured = {0b1: 110.7, 0b10: 126.0, 0b100: 106.0, 0b1000: 125.5, 0b10000: 17.3, 0b11: 161.5, 0b1100: 154.5}
    model = SimulatorCostModel(device(DEVICE), Precision.FP32, "paper")
    prices = model.price_stages(StageBatch.concurrent(problem, np.array(list(measured), dtype=np.uint64)))
    for price, latency in zip(prices.tolist(), measured.values(), strict=True):
        assert price == pytest.approx(latency, rel=0.08)


def convolution_us(model: KernelModel, row: Mapping[str, str]) -> float:
    def number(*names: str) -> int:
        return int(next(row[name] for name in names if name in row))

    op = Conv(
        (number("stride_h", "stride"), number("stride_w", "stride")),
        (number("pad_h", "padding"), number("pad_w", "padding")) * 2,
    )
    x = TensorType((number("batch"), number("in_channels"), number("in_h", "in_size"), number("in_w", "in_size")))
    kernel = number("kernel_h", "kernel"), number("kernel_w", "kernel")
    weight = TensorType((number("out_channels"), x.shape[1], *kernel))
    (y,) = op.infer([x, weight])
    step = Step(op, (Operand(x), Operand(weight, True)), (y,), op.flops([x, weight], [y]), Precision.FP32)
    _, prices = model.fastest(family("conv").lower(step))
    return sum(price.alone_us for price in prices)


def rows(path: Path, every: int = 1) -> Iterator[dict[str, str]]:
    with path.open() as file:
        for number, row in enumerate(csv.DictReader(file)):
            if number % every == 0:
                yield row


@pytest.mark.parametrize(("name", "recorded"), [("v100-sxm2", "v100-dgx1"), ("t4", "t4")])
def test_convolutions_called_directly(shared: Path, name: str, recorded: str) -> None:
    table = list(rows(shared / "data" / "kernels_direct" / f"conv2d.{recorded}.csv"))
    model = KernelModel(device(name))
    errors = [abs(convolution_us(model, row) / float(row["latency_us"]) - 1) for row in table]
    assert np.mean(errors) < 0.18


@pytest.mark.parametrize("name", ["v100-pcie-32gb", "t4", "p100-pcie-16gb", "p4"])
def test_convolutions_of_a_framework(shared: Path, name: str) -> None:
    """GPU time beside a host overhead that drifts with the row, fitted as a parabola and taken off."""
    table = list(rows(shared / "data" / "kernels" / f"conv.{name}.csv", every=20))
    model = KernelModel(device(name))
    predicted = np.array([convolution_us(model, row) for row in table])
    measured = np.array([float(row["latency_us"]) for row in table])
    drift = np.array([int(row["row"]) for row in table]) / 5000
    gpu = measured - _overhead(drift, measured - predicted, 1 / predicted)
    assert np.mean(np.abs(predicted - gpu) / np.maximum(gpu, 5)) < 0.24


def _overhead(
    drift: NDArray[np.float64], rest: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """A parabola through ``rest`` by least absolute deviations (iteratively reweighted least squares)."""
    basis = np.stack([np.ones_like(drift), drift, drift**2], axis=1)
    fitted = np.zeros_like(rest)
    scale = weight
    for _ in range(5):
        solution = np.linalg.lstsq(basis * scale[:, None], rest * scale, rcond=None)[0]
        fitted = basis @ solution
        scale = weight / np.sqrt(np.abs(rest - fitted) * weight + 1e-3)
    return fitted
