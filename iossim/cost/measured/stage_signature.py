"""Which work a stage is: stages of equal signature share one measurement, in whatever block, network or process.

A signature is a hash of the strategy and, of each group, the sequence of its units: each by its own signature (ops,
attributes, types) and by what placement makes of it (``iossim.execution.placement``: which terms it copies). Groups are a
multiset: which stream a group gets, and who else reads its inputs, do not count. Units that launch nothing do not count
either, nor do groups of such units alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from iossim.cost.model import FREE, IMPOSSIBLE
from iossim.errors import ScheduleError
from iossim.execution.lower import lower_stage
from iossim.execution.placement import Placement, placed
from iossim.execution.plan import Copy
from iossim.ir.network import Network
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.strategy import Strategy

_FORMAT = "stage 1"
_DIGITS = 32


@dataclass
class StageSignatures:
    """Signs stages, and remembers what is expensive to find out about their networks."""

    _placements: dict[Network, Placement] = field(default_factory=dict)
    _stages: dict[ScheduleProblem, dict[tuple[int, Strategy], str]] = field(default_factory=dict)
    _groups: dict[ScheduleProblem, dict[int, str]] = field(default_factory=dict)
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
        known = self._groups.setdefault(problem, {})
        texts = []
        for group in problem.groups(mask):
            if group not in known:
                known[group] = self.group_text(network, [problem.units[unit] for unit in bits(group)])
            if known[group]:
                texts.append(known[group])
        return _hashed(Strategy.CONCURRENT, sorted(texts)) if texts else FREE

    def placement(self, network: Network) -> Placement:
        """Where the network's values lie."""
        if network not in self._placements:
            self._placements[network] = placed(network)
        return self._placements[network]

    def launches(self, network: Network, unit: int) -> bool:
        """Whether a unit does anything at all when it runs."""
        return bool(self.placement(network).moves.get(unit, True))

    def group_text(self, network: Network, units: Sequence[int]) -> str:
        """The units of a group that launch something, each by its signature and placement; empty if none does."""
        placement = self.placement(network)
        return ">".join(
            f"{network.signatures[unit]}{placement.signature(unit)}" for unit in units if self.launches(network, unit)
        )

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
        parts = [f"{network.signatures[unit]}{'copied' * (network.units[unit].name in copied)}" for unit in units]
        return _hashed(Strategy.MERGE, parts)


def network_of(problem: ScheduleProblem) -> Network:
    """The network that a problem is a block of; raises ScheduleError where there is none."""
    if problem.network is None:
        raise ScheduleError(f"problem {problem.name!r} has no network; only units of a network can be measured")
    return problem.network


def _hashed(strategy: Strategy, texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join([_FORMAT, strategy, *texts]).encode()).hexdigest()[:_DIGITS]
