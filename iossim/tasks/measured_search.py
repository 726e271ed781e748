"""A schedule found by measuring what decides, from the simulator's estimates."""

from __future__ import annotations

from iossim.base.errors import DeviceError, OptionError
from iossim.cost.create import create_cost_model
from iossim.cost.model import CostModel, MeasuredBy, MeasuringCostModel
from iossim.execution.engine import Engine
from iossim.hardware.load import device as load_device
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.schedule.schedule import Schedule
from iossim.search.measured.budget import Budget
from iossim.search.measured.schedule import schedule_measured
from iossim.search.measured.search import MeasuredProgress, ignore
from iossim.search.options import SearchOptions


def measured_schedule(
    network: Network,
    truth: CostModel,
    scheduler: str,
    budget: Budget | str,
    device: DeviceProfile | str | None = None,
    options: SearchOptions | None = None,
    progress: MeasuredProgress = ignore,
) -> Schedule:
    """The schedule that a scheduler of IOS finds within a budget of measurements.

    ``device`` is the one whose simulator proposes what to measure, by default the one that is measured. Raises OptionError
    as :func:`usable_budget`, and where the device has no profile.
    """
    chosen = usable_budget(budget, truth)
    assert isinstance(truth, MeasuringCostModel), "its budget is usable"
    estimate = _estimating_model(truth, device, network.precision)
    return schedule_measured(network, estimate, truth, scheduler, options or SearchOptions(), chosen, progress)


def usable_budget(budget: Budget | str, truth: CostModel) -> Budget:
    """The budget, read where it is text; raises OptionError for a text that is none, and for prices that nothing measures."""
    if not isinstance(truth, MeasuringCostModel):
        raise OptionError(
            f"`budget` is for a cost model that measures, and {truth.identity.name!r} does not; leave it out, or give "
            "a backend as `cost_model`"
        )
    return Budget.parse(budget) if isinstance(budget, str) else budget


def _estimating_model(truth: CostModel, device: DeviceProfile | str | None, precision: Precision) -> CostModel:
    """The simulator that proposes what to measure."""
    own = truth.identity.device
    try:
        profile = load_device(own) if device is None else load_device(device) if isinstance(device, str) else device
    except DeviceError:
        if device is not None:
            raise
        raise OptionError(
            f"{own!r} has no profile to estimate its stages with; run 'iossim profile' and 'iossim calibrate', or give "
            "`device` PROFILE.yaml"
        ) from None
    # Backends keep values in place; the stand-in for one is the simulator, which does as the published engine.
    is_stand_in = isinstance(truth, MeasuringCostModel) and truth.measured_by is MeasuredBy.STAND_IN
    spec = "simulator" if is_stand_in else "simulator:in-place"
    return create_cost_model(spec, profile, precision, Engine.named(truth.identity.engine))
