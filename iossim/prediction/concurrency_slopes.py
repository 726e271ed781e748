"""How a schedule's latency changes with the parameters of concurrency, from pricing its stages a little off.

The kernels stay as they were chosen and priced: what they cost each other and what the host takes to launch them is
priced anew, which is a microsecond a stage.
"""

from __future__ import annotations

from collections.abc import Sequence

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.cost.model import ChangesConcurrency
from iossim.devices.profile import DeviceProfile
from iossim.execution.engine import Engine
from iossim.ir.network import Network
from iossim.schedule.planned_stage import batch_of, planned
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import BlockSchedule, Schedule

#: The step of a parameter, as a part of its value, and at least this much.
_STEP, _LEAST_STEP = 0.05, 0.01


class ConcurrencySlopes:
    """Slopes of the schedules of one network on one device; ``names`` are the parameters asked for.

    ``model`` has priced them, or a like one is made for the engine of a schedule.
    """

    def __init__(
        self, network: Network, profile: DeviceProfile, names: Sequence[str], model: ChangesConcurrency | None = None
    ) -> None:
        self._network = network
        self._profile = profile
        self._names = tuple(name for name in ("interference", "bare_launch_us", "synchronise_us") if name in names)
        self._models: dict[str, ChangesConcurrency] = {} if model is None else {str(model.engine): model}
        self._problems: dict[int, ScheduleProblem] = {}
        self._block_of = {
            network.units[unit].name: index for index, block in enumerate(network.blocks) for unit in block.units
        }

    def of(self, schedule: Schedule) -> dict[str, float]:
        """By parameter the relative change of the latency for a change of one."""
        if not self._names or not schedule.latency_us:
            return {}
        model = self._models.get(schedule.engine)
        if model is None:
            engine = Engine.named(schedule.engine)
            model = self._models[schedule.engine] = SimulatorCostModel(self._profile, self._network.precision, engine)
        interference, launch_us = self._profile.parameters.interference, self._profile.engine.bare_launch_us
        base_us = self._stages_us(schedule, model, interference, 1.0)
        slopes: dict[str, float] = {}
        for name in self._names:
            if name == "interference":
                step = max(_STEP * interference, _LEAST_STEP)
                change_us = self._stages_us(schedule, model, interference + step, 1.0) - base_us
            elif name == "bare_launch_us":
                step = max(_STEP * launch_us, _LEAST_STEP)
                factor = 1.0 + step / launch_us if launch_us else 1.0
                change_us = self._stages_us(schedule, model, interference, factor) - base_us
            else:
                step = 1.0
                is_synchronised = [stage.boundary_us > 0 for stage in schedule.stages]
                change_us = float(sum(is_synchronised)) if schedule.engine == Engine.PAPER else 0.0
            slopes[name] = change_us / step / schedule.latency_us
        return slopes

    def _stages_us(
        self, schedule: Schedule, model: ChangesConcurrency, interference: float, launches: float
    ) -> float:
        """All stages together, boundaries left out."""
        total_us = 0.0
        for block in schedule.blocks:
            if block.stages:
                problem = self._problem(block)
                batch = batch_of(problem, planned(problem, block))
                total_us += float(model.price_changed(batch, interference, launches).sum())
        return total_us

    def _problem(self, block: BlockSchedule) -> ScheduleProblem:
        index = self._block_of[block.stages[0].units[0]]
        if index not in self._problems:
            self._problems[index] = ScheduleProblem.of_block(self._network, self._network.blocks[index])
        return self._problems[index]
