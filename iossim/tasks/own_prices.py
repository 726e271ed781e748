"""Cost models made for a purpose: of a saved schedule, by default as it was priced, and of what another measures."""

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
from iossim.schedule.schedule import SavedSchedule, StreamSchedule


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


def prices_of_schedule(
    schedule: SavedSchedule,
    device: DeviceProfile | str | Path | None = None,
    engine: str | None = None,
    spec: str | None = None,
    store: Path | None = None,
) -> CostModel | None:
    """Prices of a saved schedule on ``device``, or on its own: those of the cost model ``spec``, else of the one that
    priced it, else of the simulator; None for stages that were priced without a device, where none is given.

    Raises as :func:`own_prices` and :func:`~iossim.cost.create.create_cost_model`.
    """
    under = engine or schedule.engine or AUTO
    Engine.named(under)  # an unknown engine is refused, whether or not the cost model uses it
    if spec is None:
        own = own_prices(schedule, device, under)
        if own is not None or (device is None and not isinstance(schedule, StreamSchedule)):
            return own
    named = spec or "simulator"
    is_of_devices = named.partition(":")[0] in ("simulator", schedule.cost_model["name"]) and not measures(named)
    if device is None and is_of_devices and schedule.cost_model.get("engine"):
        device = schedule.device
    profile = None if device is None else load_device(device)
    return create_cost_model(named, profile, Precision.named(schedule.precision), under, store)


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
