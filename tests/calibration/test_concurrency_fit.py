"""The parameters of concurrency, fitted to stages made up by the simulator; what they were fitted to is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.calibration import concurrency_fit
from iossim.calibration.bootstrap import KEPT_RESAMPLES
from iossim.calibration.concurrency_fit import borrowing, fit_concurrency, lent_by
from iossim.calibration.profile_fit import uninformed
from iossim.calibration.published_networks import published_models, sequences
from iossim.devices.kinds.gpu import GPU_CONCURRENCY, GPU_SPACE
from iossim.devices.load import device, shipped_names
from iossim.devices.profile import DeviceProfile, with_values
from iossim.devices.transfer import transfer_table
from iossim.execution.engine import Engine
from iossim.ir.types import Precision
from iossim.measurements import published_figures as published
from iossim.measurements.measurement import Header, MeasurementSet, StageMeasurement
from iossim.measurements.operator_kinds import parse_description
from iossim.prediction.stage_price import stage_us

PROFILE = device("t4")
DEVICE = "v100-sxm2"
CROWDING = 0.45


def stages(profile: DeviceProfile) -> Iterator[StageMeasurement]:
    """Pairs of products that fill the device, as ``profile`` runs them, and one that runs by itself."""
    model = SimulatorCostModel(profile, Precision.FP32, Engine.GRAPH)
    for size in (384, 512, 640, 768):
        operator = parse_description(f"gemm m={size} n={size} k={size} trans_a=N trans_b=N")
        groups = ((operator,), (operator,))
        yield StageMeasurement(groups, stage_us(groups, model))
    yield StageMeasurement(((operator, operator),), 1.0)


def measured() -> MeasurementSet:
    header = Header(device=PROFILE.name, data_set="lab", libraries={"cuda": "13"})
    return MeasurementSet(header, (), tuple(stages(with_values(PROFILE, {"interference": CROWDING}))))


def test_stages_tell_how_kernels_disturb_each_other() -> None:
    found = fit_concurrency(PROFILE, [measured()], published=False)
    assert found.parameters.interference == pytest.approx(CROWDING, abs=0.03)
    again = [stage.latency_us for stage in stages(found)]
    np.testing.assert_allclose(again, [stage.latency_us for stage in measured().stages], rtol=0.02)
    own, before = found.provenance, PROFILE.provenance
    assert own.note.startswith(before.note)
    assert own.note.endswith("fitted to 4 schedules and stages on t4")
    assert own.data_sets[:-1] == before.data_sets
    told = own.data_sets[-1]
    assert (told.name, told.device, told.rows, told.libraries) == ("lab, stages", "t4", 4, {"cuda": "13"})
    # Stages of a graph wait for no host: its costs stay, and are said to be open.
    assert found.engine == PROFILE.engine.model_copy(update=dict.fromkeys(TIED, found.engine.bare_launch_us))
    assert {"synchronise_us", "bare_launch_us"} <= set(own.unidentified)
    assert "interference" not in own.unidentified
    assert own.borrowed == []
    assert 0 < own.spread["interference"] < 0.1
    assert len(own.resamples["interference"]) == KEPT_RESAMPLES


TIED = ("library_call_us", "library_kernel_us")


def test_every_launch_costs_the_same() -> None:
    """Published schedules cannot tell them apart: five parameters of the same figures wandered from fit to fit."""
    assert len(GPU_CONCURRENCY.parameters) == 3
    assert {name for name, _, _ in GPU_CONCURRENCY.ties} == set(TIED)
    engine = device(DEVICE).engine
    assert engine.library_call_us == engine.library_kernel_us == engine.bare_launch_us


def test_nothing_to_fit_leaves_the_profile_as_it_is() -> None:
    alone = MeasurementSet(Header(device=PROFILE.name, data_set="lab"), (), measured().stages[-1:])
    assert fit_concurrency(PROFILE, [alone], published=False) is PROFILE
    assert fit_concurrency(PROFILE, (), published=True) is PROFILE


@pytest.mark.slow
def test_a_network_left_out_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures may be anything: neither the kernels nor concurrency are fitted to them."""
    monkeypatch.setattr(concurrency_fit, "_ROUNDS", 1)
    monkeypatch.setattr(concurrency_fit, "_MOST_EVALUATIONS", 2)

    def fitted(without: str) -> tuple[dict[str, Any], list[float]]:
        start = device(DEVICE)
        found = fit_concurrency(start, without=without)
        known = found.parameters.model_dump() | found.engine.model_dump()
        return known, [us for sample in sequences(start, without) for us in sample.latency_us.tolist()]

    before, with_all = fitted("ios_sample"), fitted("")
    figures = published.published_figures()
    slower = [
        {**row, "latency_ms": {name: 3 * ms for name, ms in row["latency_ms"].items()}}
        if row["model"] == "ios_sample"
        else row
        for row in figures["networks"]
    ]
    stages = [
        {**row, "latency_ms": {s: 3 * ms for s, ms in row["latency_ms"].items()}} for row in figures["sample_stages"]
    ]
    changed = {**figures, "networks": slower, "sample_stages": stages}
    monkeypatch.setattr(published, "published_figures", lambda: changed)
    assert fitted("ios_sample") == before
    assert fitted("")[0] != with_all[0]
    assert fitted("")[1] != with_all[1]


def test_figures_that_no_fit_may_see_are_seen_by_none() -> None:
    assert "nasnet_a" not in published_models(DEVICE)
    assert {row["model"] for row in published.published_figures()["networks"]} > set(published_models(DEVICE))


def test_a_fit_to_published_figures_starts_from_none() -> None:
    """What ships was fitted to them: nothing of it is left at the start."""
    own = device(DEVICE)
    other = with_values(own, {"interference": 0.4, "gemm_efficiency": 0.3, "bare_launch_us": 9.0})
    assert uninformed(own).parameters == uninformed(other).parameters
    assert uninformed(own).engine == uninformed(other).engine


def test_published_figures_weigh_less_than_a_fifth() -> None:
    told = {one.name: one for one in device(DEVICE).provenance.data_sets}
    shares = [one.weight_percent for one in told.values() if one.weight_percent is not None]
    assert sum(shares) == pytest.approx(100, abs=1)
    both = [told["published networks"].weight_percent, told["published stages"].weight_percent]
    assert sum(share or 100 for share in both) < 20


@pytest.mark.parametrize("name", shipped_names())
def test_profiles_say_where_their_concurrency_is_from(name: str) -> None:
    """One device has schedules measured on it: all others borrow, with the spread, and say so."""
    profile = device(name)
    told = profile.provenance
    assert set(told.at_bounds) <= set(told.unidentified)
    assert {"interference", "synchronise_us", "bare_launch_us"} <= set(told.resamples)
    if name == DEVICE:
        assert told.borrowed == []
        assert set(told.left_out) == set(published_models(DEVICE))
        known = {*GPU_SPACE.names, *GPU_CONCURRENCY.names, *TIED}
        assert all(set(values) == known for values in told.left_out.values())
        return
    (borrowed,) = told.borrowed
    assert borrowed.device == DEVICE
    assert set(borrowed.parameters) == {*GPU_CONCURRENCY.names, *TIED}
    own, lender = (one.parameters.model_dump() | one.engine.model_dump() for one in (profile, device(DEVICE)))
    assert {key: own[key] for key in borrowed.parameters} == {key: lender[key] for key in borrowed.parameters}
    assert told.resamples["interference"] == device(DEVICE).provenance.resamples["interference"]


def test_what_is_lent_is_the_lenders() -> None:
    lent = lent_by(device(DEVICE))
    assert transfer_table().concurrency == lent
    other = borrowing(with_values(PROFILE, {"interference": 0.01}), lent)
    assert other.parameters.interference == device(DEVICE).parameters.interference
    assert len(other.provenance.borrowed) == 1
    assert len({len(values) for values in other.provenance.resamples.values()}) == 1
