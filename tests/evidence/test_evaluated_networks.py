"""Networks against figures: errors, orders, intervals and gains, for figures that are made."""

from __future__ import annotations

from math import log
from typing import Any

import pytest

from evidence.validation.networks import evaluate_networks, published_devices
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.prediction.published import published_figures, without_network
from iossim.search.scheduler import schedule, scheduler_names

DEVICE = "v100-sxm2"


@pytest.fixture(scope="module")
def predicted_ms() -> dict[str, float]:
    network, simulator = load("squeezenet"), SimulatorCostModel(device(DEVICE), Precision.FP32)
    return {name: schedule(network, simulator, name).latency_us / 1e3 for name in scheduler_names()}


def figures(latency_ms: dict[str, float], on: str = DEVICE) -> dict[str, Any]:
    return {"networks": [{"model": "squeezenet", "device": on, "batch": 1, "latency_ms": latency_ms}]}


def test_figures_that_are_met(predicted_ms: dict[str, float]) -> None:
    found = evaluate_networks(device(DEVICE), figures(predicted_ms))
    assert [each.scheduler for each in found.latencies] == list(scheduler_names())
    assert found.errors == pytest.approx([0.0], abs=1e-6)
    assert found.unseen_errors == pytest.approx([0.0] * 4, abs=1e-6)
    assert all(order.is_right for order in found.orders)
    assert found.orders
    for each in found.latencies:
        assert each.speedup == pytest.approx(each.published_speedup, rel=1e-5)
    assert found.coverage == 1.0


def test_figures_that_are_not_met(predicted_ms: dict[str, float]) -> None:
    turned = {name: 1.0 / latency_ms for name, latency_ms in predicted_ms.items()}
    found = evaluate_networks(device(DEVICE), figures(turned))
    assert found.orders
    assert not any(order.is_right for order in found.orders)
    assert len(found.to_json()["wrong_orders"]) == len(found.orders)
    fitted, told = found.to_json()["in_sample"], found.to_json()["unseen"]
    assert (fitted["figures"], fitted["worst_error"]) == (1, found.latencies[0].error)
    unseen = [each for each in found.latencies if each.scheduler != "sequential"]
    assert told["worst_error"] == max((each.error for each in unseen), key=abs)
    assert told["mean_error"] == pytest.approx(sum(abs(each.error) for each in unseen) / len(unseen))
    assert told["mean_error_by_scheduler"]["greedy"] == pytest.approx(abs(found.latencies[1].error))
    assert told["orders_right"] == 0


def test_orders_within_the_noise_are_not_judged() -> None:
    found = evaluate_networks(device(DEVICE), figures({"sequential": 1.0, "greedy": 1.02, "ios-both": 0.9}))
    assert {(order.faster, order.slower) for order in found.orders} == {
        ("ios-both", "sequential"),
        ("ios-both", "greedy"),
    }


def test_intervals() -> None:
    """They are those of the fits that saw no figure of the network: what took part says little of others."""
    profile = device(DEVICE)
    other = without_network(profile, "squeezenet")
    assert other is not None
    network, simulator = load("squeezenet"), SimulatorCostModel(other, Precision.FP32)
    foretold_ms = {name: schedule(network, simulator, name).latency_us / 1e3 for name in scheduler_names()}
    tenfold = {**foretold_ms, "greedy": 10.0 * foretold_ms["greedy"]}
    found = evaluate_networks(profile, figures(tenfold))
    assert [each.scheduler for each in found.latencies if not each.is_covered] == ["greedy"]
    assert found.coverage == pytest.approx(0.8)
    for each in found.latencies:
        assert each.is_in_sample == (each.scheduler == "sequential")
        assert each.left_out is not None
        assert each.foretold.low_us < each.foretold.predicted_us < each.foretold.high_us
        if each.scheduler != "greedy":
            assert each.foretold_error == pytest.approx(0.0, abs=1e-6)
            assert each.error != each.foretold_error


def test_figures_that_no_fit_saw_are_not_in_sample(predicted_ms: dict[str, float]) -> None:
    unseen = {**figures(predicted_ms)["networks"][0], "fitted": False}
    found = evaluate_networks(device(DEVICE), {"networks": [unseen]})
    assert found.in_sample == ()
    assert found.foretold_errors == pytest.approx([0.0] * len(predicted_ms), abs=1e-6)
    (row, *_) = found.to_json()["networks"]
    assert (row["in_sample"], row["left_out"]["predicted_us"]) == (False, row["predicted_us"])


def test_figures_of_other_devices_are_none_of_its(predicted_ms: dict[str, float]) -> None:
    found = evaluate_networks(device("t4"), figures(predicted_ms))
    assert found.latencies == found.stages == found.active_warps == ()
    assert found.to_json()["in_sample"]["mean_error"] is None
    assert found.to_json()["left_out"]["interval_coverage"] is None


@pytest.mark.slow
def test_all_that_is_published() -> None:
    told: list[tuple[int, int]] = []
    found = evaluate_networks(device(DEVICE), progress=lambda done, total: told.append((done, total)))
    published = published_figures()
    assert published_devices() == (DEVICE,)
    assert len(found.latencies) == sum(len(row["latency_ms"]) for row in published["networks"])
    assert {each.stage for each in found.stages} == set(published["sample_stages"][0]["latency_ms"])
    assert told[-1] == (len(published["networks"]), len(published["networks"]))
    (warps,) = found.active_warps
    assert warps.published == 1.58
    # Two streams keep more warps active than one.
    assert warps.predicted > 1.1


def test_networks_that_were_left_out_say_how_wide_the_interval_of_a_network_is() -> None:
    """Conformal: nine of ten of the distances from the prediction, over half the width, are at most 1."""
    found = evaluate_networks(device(DEVICE))
    foretold = [each.foretold for each in found.latencies]
    distances = sorted(
        2 * abs(log(each.published_us / one.predicted_us)) / log(one.high_us / one.low_us)
        for each, one in zip(found.latencies, foretold, strict=True)
    )
    rank = int(0.9 * (len(distances) + 1)) - 1
    assert 0.7 < distances[rank] <= 1.0
