"""How a schedule's latency changes with what launches, synchronisations and edges of graphs cost, by pricing its stages a little off.

The kernels stay as they were chosen and priced. On streams what the host takes to launch them is priced anew, which is a
microsecond a stage; in a graph the gap between its nodes, by a model of another gap; boundaries are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.cost.model import ChangesConcurrency, CostModel, Prices
from iossim.execution.engine import Engine
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.ir.network import Network
from iossim.schedule.batch import StageBatch
from iossim.schedule.planned_stage import batch_of, planned
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.schedule import BlockSchedule, Schedule

#: The parameters that a latency may be asked for.
COSTS = ("interference", "bare_launch_us", "synchronise_us", "graph_gap_factor", "fork_us", "join_us")
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
        self._names = tuple(name for name in COSTS if name in names)
        self._models: dict[str, ChangesConcurrency] = {} if model is None else {str(model.engine): model}
        #: By parameter a model of another value of it; those of graphs alone: on streams nothing is lowered anew.
        self._changed: dict[str, CostModel] = {}
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
        return {name: self._change_us(name, schedule, model) / schedule.latency_us for name in self._names}

    def _change_us(self, name: str, schedule: Schedule, model: ChangesConcurrency) -> float:
        """The change of the latency for a change of one parameter by 1."""
        is_graph = schedule.engine == Engine.GRAPH
        concurrent = [stage.concurrent for stage in schedule.stages]
        if name == "synchronise_us":
            return 0.0 if is_graph else float(sum(left or right for left, right in pairwise(concurrent)))
        if name in ("fork_us", "join_us"):
            return float(sum(concurrent[1:] if name == "fork_us" else concurrent[:-1])) if is_graph else 0.0
        if name == ("bare_launch_us" if is_graph else "graph_gap_factor"):
            return 0.0
        own, interference = self._profile.parameter_values[name], self._profile.parameters.interference
        step = max(_STEP * own, _LEAST_STEP)
        base_us = self._stages_us(schedule, lambda batch: model.price_changed(batch, interference, 1.0))
        if name == "bare_launch_us":
            factor = 1.0 + step / own if own else 1.0
            changed_us = self._stages_us(schedule, lambda batch: model.price_changed(batch, interference, factor))
        else:
            if name not in self._changed:
                self._changed[name] = model.at(with_values(self._profile, {name: own + step}))
            changed_us = self._stages_us(schedule, self._changed[name].price_stages)
        return (changed_us - base_us) / step

    def _stages_us(self, schedule: Schedule, price: Callable[[StageBatch], Prices]) -> float:
        """All stages together, boundaries left out."""
        total_us = 0.0
        for block in schedule.blocks:
            if block.stages:
                problem = self._problem(block)
                total_us += float(price(batch_of(problem, planned(problem, block))).sum())
        return total_us

    def _problem(self, block: BlockSchedule) -> ScheduleProblem:
        index = self._block_of[block.stages[0].units[0]]
        if index not in self._problems:
            self._problems[index] = ScheduleProblem.of_block(self._network, self._network.blocks[index])
        return self._problems[index]
