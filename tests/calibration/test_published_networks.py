"""The parameters of concurrency, fitted to stages made up by the simulator; what they were fitted to is told."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.calibration import published_networks
from iossim.calibration.measurement import Header, MeasurementSet, StageMeasurement
from iossim.calibration.operator_kinds import parse_description
from iossim.calibration.parameter_space import with_values
from iossim.calibration.published_networks import fit_concurrency
from iossim.calibration.stage_price import stage_us
from iossim.devices.load import device
from iossim.devices.profile import DeviceProfile
from iossim.execution.engine import Engine
from iossim.ir.types import Precision

PROFILE = device("t4")
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
    return MeasurementSet(header, (), tuple(stages(with_values(PROFILE, {"crowding": CROWDING}))))


def test_stages_tell_how_kernels_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_networks, "_ROUNDS", 1)
    found = fit_concurrency(PROFILE, [measured()], published=False)
    assert found.parameters.crowding == pytest.approx(CROWDING, abs=0.03)
    again = [stage.latency_us for stage in stages(found)]
    np.testing.assert_allclose(again, [stage.latency_us for stage in measured().stages], rtol=0.02)
    own, before = found.provenance, PROFILE.provenance
    assert own.note.startswith(before.note)
    assert own.note.endswith("crowding and the costs of the host fitted to 4 schedules and stages on t4")
    assert own.data_sets[:-1] == before.data_sets
    told = own.data_sets[-1]
    assert (told.name, told.device, told.rows, told.libraries) == ("lab, stages", "t4", 4, {"cuda": "13"})


def test_nothing_to_fit_leaves_the_profile_as_it_is() -> None:
    alone = MeasurementSet(Header(device=PROFILE.name, data_set="lab"), (), measured().stages[-1:])
    assert fit_concurrency(PROFILE, [alone], published=False) is PROFILE
    assert fit_concurrency(PROFILE, (), published=True) is PROFILE
