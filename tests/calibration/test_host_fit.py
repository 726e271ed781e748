"""The gap between kernels and the cost of a launch: what published sequential figures tell of them, and what they do not touch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iossim.calibration.bootstrap import KEPT_RESAMPLES
from iossim.calibration.host_fit import DATA_SET, fit_host, sequences, with_gap
from iossim.hardware.load import device
from iossim.hardware.profile import with_values
from iossim.measurements.operator_kinds import parse_description
from iossim.prediction.predict import predict
from iossim.prediction.published import published_figures

DEVICE = "v100-sxm2"


def changed(monkeypatch: pytest.MonkeyPatch, factor: float, *, sequential: bool, model: str = "") -> None:
    """Multiply the figures of sequential schedules and single units, or of all others, of one model or of all."""
    figures: dict[str, Any] = published_figures()

    def times(ms: float, is_sequential: bool) -> float:
        return factor * ms if is_sequential == sequential else ms

    networks = [
        {**row, "latency_ms": {name: times(ms, name == "sequential") for name, ms in row["latency_ms"].items()}}
        if model in ("", row["model"])
        else row
        for row in figures["networks"]
    ]
    stages = [
        {**row, "latency_ms": {name: times(ms, "," not in name) for name, ms in row["latency_ms"].items()}}
        if model in ("", "ios_sample")
        else row
        for row in figures["sample_stages"]
    ]
    told = {**figures, "networks": networks, "sample_stages": stages}
    monkeypatch.setattr("iossim.calibration.host_fit.published_figures", lambda: told)


def test_the_profile_that_ships_is_what_is_found() -> None:
    own, found = device(DEVICE), fit_host(device(DEVICE))
    assert found is not None
    known = own.parameter_values
    assert found.values == pytest.approx({name: known[name] for name in found.values}, rel=0.01)
    assert {name: own.provenance.spread[name] for name in found.spread} == dict(found.spread)
    assert [one.rows for one in own.provenance.data_sets if one.name == DATA_SET] == [found.figures]
    # A concat of three terms by itself, 17.9 us, is three launches.
    assert found.values["bare_launch_us"] == pytest.approx(17.9 / 3, rel=0.03)


def test_what_the_profile_had_is_not_remembered() -> None:
    start = with_gap(with_values(device(DEVICE), {"bare_launch_us": 2.0, "library_call_us": 2.0}), 2.5)
    own, other = fit_host(device(DEVICE)), fit_host(start)
    assert own is not None
    assert other is not None
    assert other.values == pytest.approx(dict(own.values), rel=0.02)


def test_concurrent_figures_may_be_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fit_host(device(DEVICE))
    changed(monkeypatch, 3.0, sequential=False)
    assert fit_host(device(DEVICE)) == before


def test_sequential_figures_take_part_and_a_network_left_out_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = device(DEVICE)

    def fitted(without: str) -> tuple[Any, list[float]]:
        return fit_host(profile, without), [us for one in sequences(profile, without) for us in one.latency_us.tolist()]

    before, with_all = fitted("ios_sample"), fitted("")
    changed(monkeypatch, 1.2, sequential=True, model="ios_sample")
    assert fitted("ios_sample") == before
    assert fitted("")[0] != with_all[0]
    assert fitted("")[1] != with_all[1]


def test_a_device_without_networks_has_nothing_to_fit() -> None:
    assert fit_host(device("t4")) is None


def test_a_gap_moves_and_calls_take_as_long() -> None:
    """Rows of operators tell the gap and what a call costs besides as a sum alone."""
    profile = with_values(device(DEVICE), {"kernel_gap_us": 3.0, "dispatch_us": 6.0, "dispatch_kernel_us": 0.0})
    moved = with_gap(profile, 1.5)
    operators = [
        parse_description(text) for text in ("gemm m=512 n=512 k=512 trans_a=N trans_b=N", "relu rows=512 cols=512")
    ]
    assert moved.parameters.kernel_gap_us == 1.5
    for before, after in zip(predict(operators, profile), predict(operators, moved), strict=True):
        assert before.gpu_time_us == pytest.approx(after.gpu_time_us, rel=1e-9)
    assert (moved.engine.dispatch_us, moved.engine.dispatch_kernel_us) == (7.5, 1.5)


def test_draws_are_of_the_distribution_that_is_left() -> None:
    found = fit_host(device(DEVICE))
    assert found is not None
    for name, several in found.draws.items():
        assert len(several) == KEPT_RESAMPLES
        assert abs(np.mean(several) - found.values[name]) < found.spread[name]
        assert np.std(several) == pytest.approx(found.spread[name], rel=0.5)
