"""The cost model that priced a saved schedule, made again."""

from __future__ import annotations

from pathlib import Path

from iossim.base.errors import DeviceError, OptionError
from iossim.cost.capabilities import DeviceCostModel
from iossim.cost.create import COST_MODELS, measures
from iossim.execution.engine import AUTO, Engine
from iossim.hardware.load import device as load_device
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
    except DeviceError:
        if schedule.cost_model.get("engine"):
            raise
        return None  # prices without an engine have no device
    under = Engine.named(engine or schedule.engine or AUTO, profile)
    try:
        found = create(profile, Precision.named(schedule.precision), under, "".join(version.split("+", 2)[2:]), None)
    except OptionError:
        return None  # it needs more than a device
    return found if isinstance(found, DeviceCostModel) else None
