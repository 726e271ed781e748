"""Parameters of concurrency, fitted to stages made up by the simulator; and measured stages, whose known errors are found."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_sets import DEVICE, shapes
from operators import parse_description

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.calibration.calibrate import uninformed
from iossim.calibration.concurrency_fit import borrowing, fit_concurrency, lent_by
from iossim.calibration.host_fit import published_models
from iossim.calibration.validation import evaluate_stages
from iossim.execution.engine import Engine
from iossim.hardware.fits import GPU_SPACE, TENSOR_SPACE
from iossim.hardware.kind import device_kind
from iossim.hardware.load import device
from iossim.hardware.names import shipped_names
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.transfer import transfer_table
from iossim.ir.types import Precision
from iossim.measurements.measurement import Header, MeasurementSet, Operator, StageMeasurement
from iossim.prediction import published
from iossim.prediction.predict import stage_us

PROFILE = device("t4")
BOARD = "v100-sxm2"
EDGE_US = 6.0
TIED = ("library_call_us", "library_kernel_us")


def stages(profile: DeviceProfile) -> Iterator[StageMeasurement]:
    """Pairs of small products in graphs, as ``profile`` runs them, and one group that runs by itself."""
    model = SimulatorCostModel(profile, Precision.FP32, Engine.GRAPH)
    for size in (64, 128, 192, 256):
        operator = parse_description(f"gemm m={size} n={size} k={size} trans_a=N trans_b=N")
        groups = ((operator,), (operator,))
        yield StageMeasurement(groups, stage_us(groups, model))
    yield StageMeasurement(((operator, operator),), 1.0)


def measured() -> MeasurementSet:
    header = Header(device=PROFILE.name, data_set="lab", libraries={"cuda": "13"})
    return MeasurementSet(
        header, (), tuple(stages(with_values(PROFILE, dict.fromkeys(("fork_us", "join_us"), EDGE_US))))
    )


def test_stages_tell_what_edges_cost() -> None:
    found = fit_concurrency(PROFILE, [measured()])
    assert found.engine.fork_us == found.engine.join_us == pytest.approx(EDGE_US, abs=0.6)
    again = [stage.latency_us for stage in stages(found)]
    np.testing.assert_allclose(again, [stage.latency_us for stage in measured().stages], rtol=0.03)
    own, before = found.provenance, PROFILE.provenance
    assert own.note.startswith(before.note)
    assert own.note.endswith("fitted to 4 stages on t4")
    assert own.data_sets[:-1] == before.data_sets
    told = own.data_sets[-1]
    assert (told.name, told.device, told.rows, told.libraries) == ("lab, stages", "t4", 4, {"cuda": "13"})
    # Stages of a graph wait for no host: what it takes stays, and where that is from.
    assert found.engine.bare_launch_us == PROFILE.engine.bare_launch_us
    assert own.borrowed == before.borrowed
    assert found.spread["fork_us"] == own.spread["fork_us"]


def test_nothing_to_fit_leaves_the_profile_as_it_is() -> None:
    alone = MeasurementSet(Header(device=PROFILE.name, data_set="lab"), (), measured().stages[-1:])
    assert fit_concurrency(PROFILE, [alone]) is PROFILE
    assert fit_concurrency(PROFILE, ()) is PROFILE


def test_figures_that_no_fit_may_see_are_seen_by_none() -> None:
    assert "nasnet_a" not in published_models(BOARD)
    assert {row["model"] for row in published.published_figures()["networks"]} > set(published_models(BOARD))


def test_a_fit_to_published_figures_starts_from_none() -> None:
    """What ships was fitted to them: nothing of it is left at the start."""
    own = device(BOARD)
    other = with_values(own, {"gemm_efficiency": 0.3, "fork_us": 7.0, **dict.fromkeys(("bare_launch_us", *TIED), 9.0)})
    assert uninformed(own).parameters == uninformed(other).parameters
    assert uninformed(own).engine == uninformed(other).engine


def test_what_ships_of_tensor_cores_decides_no_fit_either() -> None:
    """A profile that was fitted to rows of tensor cores begins anew as its generation has them."""
    fitted = device("h200-sxm")
    begin = fitted.device_kind.default_parameters(fitted.compute_capability).model_dump()
    names = [name for name in TENSOR_SPACE.names if name in begin]
    assert any(fitted.parameter_values[name] != begin[name] for name in names)
    assert all(uninformed(fitted).parameter_values[name] == begin[name] for name in names)


def test_published_figures_weigh_less_than_a_fifth() -> None:
    told = {one.name: one for one in device(BOARD).provenance.data_sets}
    shares = [one.weight_percent for one in told.values() if one.weight_percent is not None]
    assert sum(shares) == pytest.approx(100, abs=1)
    both = [told["published networks"].weight_percent, told["published stages"].weight_percent]
    assert sum(share or 100 for share in both) < 20


@pytest.mark.parametrize("name", shipped_names())
def test_profiles_say_where_their_launches_are_from(name: str) -> None:
    """One device has networks measured on it: all others borrow, with the spread of hosts, and say so."""
    profile = device(name)
    told = profile.provenance
    assert set(told.at_bounds) <= set(told.unidentified)
    assert {"bare_launch_us", "synchronise_us", "fork_us", "join_us", "graph_gap_factor"} <= set(profile.spread)
    costs = profile.device_kind.engine_costs(profile.compute_capability)
    assert profile.engine.synchronise_us == costs.values.synchronise_us
    if name == BOARD:
        assert told.borrowed == []
        assert set(told.left_out) == set(published_models(BOARD))
        known = {*GPU_SPACE.names, *device_kind("gpu").fits().launches.names, *TIED}
        assert all(set(values) == known for values in told.left_out.values())
        assert {"bare_launch_us", "kernel_gap_us"} <= set(told.spread)
        return
    (borrowed,) = told.borrowed
    assert borrowed.device == BOARD
    assert set(borrowed.parameters) == {"bare_launch_us", *TIED}
    lender = device(BOARD)
    own, lent = profile.parameter_values, lender.parameter_values
    assert {key: own[key] for key in borrowed.parameters} == {key: lent[key] for key in borrowed.parameters}
    assert profile.spread["bare_launch_us"] > lender.spread["bare_launch_us"]


def test_what_is_lent_is_the_lenders() -> None:
    lent = lent_by(device(BOARD))
    assert transfer_table().concurrency == lent
    other = borrowing(with_values(PROFILE, {"bare_launch_us": 1.0}), lent)
    assert other.engine.bare_launch_us == device(BOARD).engine.bare_launch_us
    assert len(other.provenance.borrowed) == 1


SMALL = parse_description("conv batch=1 in_channels=128 out_channels=64 kernel=1 in_size=14 stride=1 padding=0")
#: An L2 of 6 MiB keeps more than this.
KEPT_BYTES = 2_000_000
RELU = parse_description("relu rows=64 cols=196")


@pytest.fixture(scope="module")
def model() -> SimulatorCostModel:
    return SimulatorCostModel(device(DEVICE), Precision.FP32, Engine.GRAPH)


@given(st.lists(st.sampled_from(shapes()), min_size=1, max_size=5))
@settings(max_examples=20)
def test_one_group_is_the_sum_of_its_operators(model: SimulatorCostModel, operators: list[Operator]) -> None:
    """Where L2 keeps the operands of all; where it does not, later ones read their inputs from DRAM."""
    together_us, apart_us = stage_us([operators], model), sum(stage_us([[each]], model) for each in operators)
    steps = [each.step() for each in operators]
    touched_bytes = sum(step.activation_bytes + step.weight_bytes + step.bytes_written for step in steps)
    assert together_us >= apart_us * (1 - 1e-9)
    assert touched_bytes > KEPT_BYTES or together_us == pytest.approx(apart_us)


def test_small_groups_run_beside_each_other(model: SimulatorCostModel) -> None:
    one = stage_us([[SMALL, RELU]], model)
    two = stage_us([[SMALL, RELU], [SMALL, RELU]], model)
    costs = device(DEVICE).engine
    around_us = costs.fork_us + costs.join_us
    assert one + around_us <= two * (1 + 1e-9)
    assert two < 2 * one + around_us


def test_known_errors(model: SimulatorCostModel) -> None:
    groups = ((SMALL, RELU), (SMALL,))
    together, serial = stage_us(groups, model), stage_us([[SMALL, RELU, SMALL]], model)
    stages = (
        StageMeasurement(groups, 1.25 * together, serial_us=serial),
        StageMeasurement(((SMALL,),), stage_us([[SMALL]], model)),
        StageMeasurement(((SMALL,), (replace(SMALL, precision=Precision.FP16),)), 10.0),
    )
    found = evaluate_stages(MeasurementSet(Header(device=DEVICE, data_set="made"), (), stages), device(DEVICE))
    assert found.left_out == 1
    assert found.groups.tolist() == [2, 1]
    assert found.concurrent.latency().mean_error == pytest.approx(0.2)
    assert found.latency().mean_error == pytest.approx(0.1)
    # The measured gain is the predicted one over 1.25.
    gain = found.concurrent.gain()
    assert gain.rows == 1
    assert gain.bias == pytest.approx(0.25)
    assert found.to_json()["concurrent_stages"] == 1


def test_no_stages() -> None:
    found = evaluate_stages(MeasurementSet(Header(device=DEVICE, data_set="made")), device(DEVICE))
    assert len(found) == 0
    assert found.latency().mean_error is None
    assert np.array_equal(found.groups, [])
