"""The simulator that proposes what a cost model measures."""

from __future__ import annotations

from pathlib import Path

from iossim.base.errors import DeviceError, OptionError
from iossim.cost.capabilities import MeasuredBy, MeasuringCostModel
from iossim.cost.create import create_cost_model
from iossim.cost.model import CostModel
from iossim.execution.engine import Engine
from iossim.hardware.load import device as load_device
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision


def estimating_model(
    truth: MeasuringCostModel, device: DeviceProfile | str | Path | None, precision: Precision
) -> CostModel:
    """Simulator that proposes what to measure; raises OptionError if the device has no profile."""
    own = truth.identity.device
    try:
        profile = load_device(own if device is None else device)
    except DeviceError:
        if device is not None:
            raise
        remedy = "run 'iossim profile' and 'iossim calibrate', or give `device` PROFILE.yaml"
        raise OptionError(f"{own!r} has no profile to estimate its stages with; {remedy}") from None
    # Backends keep values in place; their stand-in is the simulator, which does as the published engine.
    spec = "simulator" if truth.measured_by is MeasuredBy.STAND_IN else "simulator:in-place"
    return create_cost_model(spec, profile, precision, Engine.named(truth.identity.engine))
