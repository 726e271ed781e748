"""Cost models made for a purpose: the one that priced a saved schedule, and one that proposes what another measures."""

from __future__ import annotations

from pathlib import Path

from iossim.base.errors import DeviceError, OptionError
from iossim.cost.capabilities import DeviceCostModel, MeasuredBy, MeasuringCostModel
from iossim.cost.create import COST_MODELS, create_cost_model, measures
from iossim.cost.model import CostModel
from iossim.execution.engine import AUTO, Engine
from iossim.hardware.load import device as load_device
from iossim.hardware.names import user_folder
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.schedule.schedule import SavedSchedule


def own_prices(
    schedule: SavedSchedule, device: DeviceProfile | str | Path | None = None, engine: str = ""
) -> DeviceCostModel | None:
    """The cost model that priced a schedule, from the profile of its device, recreated for that or another one.

    It has the same argument, which is at the end of its version (:attr:`DeviceCostModel.identity`). None if the
    schedule was measured, or priced without a profile. Raises DeviceError for an unknown device.
    """
    name, version = (schedule.cost_model.get(key, "") for key in ("name", "version"))
    if measures(name) or (create := COST_MODELS.get(name)) is None:
        return None
    try:
        profile = load_device(device or schedule.device)
    except DeviceError as error:
        if not schedule.cost_model.get("engine"):
            return None  # prices without an engine have no device
        raise error if device else DeviceError(f"{error}, or keep the schedule's own in {user_folder()}") from None
    under = Engine.named(engine or schedule.engine or AUTO, profile)
    try:
        found = create(profile, Precision.named(schedule.precision), under, "".join(version.split("+", 2)[2:]), None)
    except OptionError:
        return None  # it needs more than a device
    return found if isinstance(found, DeviceCostModel) else None


def own_device(schedule: SavedSchedule) -> str:
    """The device that a schedule was priced for; raises OptionError if there is none."""
    if own_prices(schedule) is None:
        reason = f"the schedule was priced by {schedule.cost_model.get('name')!r}, not for a device"
        raise OptionError(f"{reason}; say which with `device` or `cost_model`")
    return schedule.device


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
    spec = "simulator" if truth.measured_by is MeasuredBy.STAND_IN else "simulator:backend"
    return create_cost_model(spec, profile, precision, Engine.named(truth.identity.engine))
