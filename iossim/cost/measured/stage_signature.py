"""Which work a stage is: stages of equal signature share one measurement, in whatever block, network or process.

A signature is the identity of :mod:`iossim.schedule.stage_hash`. Units are compared by their own signatures (ops, attributes,
types) and by what placement makes of them (``iossim.execution.in_place``: which terms they copy); one that launches nothing
does nothing. Which stream a group gets, and who else reads its inputs, do not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from iossim.base.errors import ScheduleError
from iossim.cost.model import FREE, IMPOSSIBLE
from iossim.execution.in_place import InPlaceBuffers, in_place_buffers
from iossim.execution.lower import lower_stage
from iossim.execution.plan import Copy
from iossim.ir.network import Network
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.stage_hash import stage_digest
from iossim.schedule.strategy import Strategy


@dataclass
class StageSignatures:
    """Signs stages, and remembers what is expensive to find out about their networks."""

    _placements: dict[Network, InPlaceBuffers] = field(default_factory=dict)
    _stages: dict[ScheduleProblem, dict[tuple[int, Strategy], str]] = field(default_factory=dict)
    _keys: dict[ScheduleProblem, list[str]] = field(default_factory=dict)
    _merges: dict[tuple[Network, tuple[int, ...]], str] = field(default_factory=dict)

    def of_batch(self, batch: StageBatch) -> list[str]:
        """The signature of each stage; raises ScheduleError for a problem without a network."""
        known = self._stages.setdefault(batch.problem, {})
        stages = list(batch.stages())
        for stage in stages:
            if stage not in known:
                known[stage] = self.of_stage(batch.problem, *stage)
        return [known[stage] for stage in stages]

    def of_stage(self, problem: ScheduleProblem, mask: int, strategy: Strategy) -> str:
        """The signature of one stage."""
        network = network_of(problem)
        if strategy is Strategy.MERGE:
            return self._merge(network, tuple(problem.units[unit] for unit in bits(mask)))
        if problem not in self._keys:
            self._keys[problem] = [self.unit_key(network, unit) for unit in problem.units]
        keys = self._keys[problem]
        groups = ([keys[unit] for unit in bits(group)] for group in problem.groups(mask))
        return stage_digest(Strategy.CONCURRENT, groups) or FREE

    def placement(self, network: Network) -> InPlaceBuffers:
        """Where the network's values lie."""
        if network not in self._placements:
            self._placements[network] = in_place_buffers(network)
        return self._placements[network]

    def unit_key(self, network: Network, unit: int) -> str:
        """What a unit is compared by; empty if it launches nothing when it runs."""
        placement = self.placement(network)
        return f"{network.signatures[unit]}{placement.signature(unit)}" if placement.moves.get(unit, True) else ""

    def _merge(self, network: Network, units: tuple[int, ...]) -> str:
        if (network, units) not in self._merges:
            self._merges[network, units] = self._merge_signature(network, units)
        return self._merges[network, units]

    def _merge_signature(self, network: Network, units: tuple[int, ...]) -> str:
        try:
            plan = lower_stage(network, [units], Strategy.MERGE, in_place=True)
        except ScheduleError:
            return IMPOSSIBLE
        copied = {command.unit for command in plan.commands if isinstance(command, Copy)}
        keys = [f"{network.signatures[unit]}{'copied' * (network.units[unit].name in copied)}" for unit in units]
        return stage_digest(Strategy.MERGE, [keys]) or FREE


def network_of(problem: ScheduleProblem) -> Network:
    """The network that a problem is a block of; raises ScheduleError where there is none."""
    if problem.network is None:
        raise ScheduleError(f"problem {problem.name!r} has no network; only units of a network can be measured")
    return problem.network
