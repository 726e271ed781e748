"""Measured stages: prices are those of the simulator, and known errors are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_sets import DEVICE, shapes

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.calibration.validation import evaluate_stages
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.ir.types import Precision
from iossim.measurements.measurement import Header, MeasurementSet, Operator, StageMeasurement
from iossim.measurements.operator_kinds import parse_description
from iossim.prediction.predict import stage_us

SMALL = parse_description("conv batch=1 in_channels=128 out_channels=64 kernel=1 in_size=14 stride=1 padding=0")
#: An L2 of 6 MiB keeps more than this.
KEPT_BYTES = 2_000_000
RELU = parse_description("relu rows=64 cols=196")


@pytest.fixture(scope="module")
def model() -> SimulatorCostModel:
    return SimulatorCostModel(device(DEVICE), Precision.FP32, Engine.GRAPH)


@given(st.lists(st.sampled_from(shapes()), min_size=1, max_size=5))
@settings(deadline=None, max_examples=20)
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
