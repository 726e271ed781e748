"""Substitutions searched together with the schedule.

A graph that costs least one operator after another need not have the fastest schedule: two convolutions that are
merged no longer run beside each other, and work that is added may fill what is idle. So graphs are compared by their
optimal schedules. The graphs that are best one operator after another, by backtracking and by equality saturation,
are seeds of that search, so that its result is never worse than scheduling the network as it is, nor than rewriting
it first and scheduling it then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter
from typing import Literal

from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.transforms.rewriting.backtracking import (
    ALPHA,
    Candidate,
    Found,
    RewriteBudget,
    RewriteProgress,
    cheaper,
    ignore,
)
from iossim.transforms.rewriting.graph_costs import OptimalSchedule, SumOfOperators
from iossim.transforms.rewriting.parts import MOST_OPS, search_in_parts
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.saturation import SaturationLimits, saturate

#: How a network is rewritten: by backtracking or by saturation, for the least sum of operators, or for its schedule,
#: from what both find.
RewriteSearch = Literal["joint", "saturation", "backtracking"]
#: Networks of up to so many ops are one e-graph; larger ones have one for each part.
WHOLE_OPS = 100
#: E-nodes of an e-graph: with more of them the choice takes the solver long, and what was found is begun with again
#: anyway.
_NODES, _NODES_PER_OP = 200, 5
#: Graphs expanded to find the steps at a place again.
_GRAPHS = 100


@dataclass(eq=False)
class Saturation:
    """Equality saturation of networks and of parts of them, each once, for the least sum of operators. Seconds of the
    budget are for all of them together; its graphs limit the search for steps."""

    rules: Sequence[Rule]
    cost: SumOfOperators
    budget: RewriteBudget = field(default_factory=RewriteBudget)
    progress: RewriteProgress = ignore
    _known: dict[tuple[str, ...], Found] = field(default_factory=dict, repr=False)
    _spent_s: float = 0.0

    def search(self, network: Network) -> Found:
        """The best of the whole network, or of its parts where it is large."""
        most_ops = WHOLE_OPS if len(network.graph.nodes) <= WHOLE_OPS else MOST_OPS
        proposed = search_in_parts(
            network,
            self.rules,
            self.cost,
            budget=RewriteBudget(graphs=0),
            proposes=self.of,
            blocks_whole=True,
            most_ops=most_ops,
            progress=self.progress,
        )
        whole = self._known.get(_names(network))
        return proposed if whole is None else replace(proposed, complete=whole.complete)

    def of(self, network: Network) -> Found:
        """The best of one e-graph after another."""
        names = _names(network)
        if names not in self._known:
            started = perf_counter()
            limits = SaturationLimits(
                nodes=max(_NODES, _NODES_PER_OP * len(network.graph.nodes)),
                graphs=min(_GRAPHS, self.budget.graphs or _GRAPHS),
                seconds=inf if self.budget.seconds is None else self.budget.seconds - self._spent_s,
            )
            self._known[names] = saturate(network, self.rules, self.cost, limits, self.progress).found
            self._spent_s += perf_counter() - started
        return self._known[names]


def _names(network: Network) -> tuple[str, ...]:
    return tuple(node.name for node in network.graph.nodes)


@dataclass(frozen=True, eq=False)
class JointlyFound:
    """The best network under the sum of operators, by backtracking (``summed``) and by saturation (``saturated``),
    and the best under its optimal schedule (``joint``).

    ``summed_us`` and ``saturated_us``: the optimal schedules of the former two.
    """

    summed: Found
    saturated: Found
    joint: Found
    summed_us: float
    saturated_us: float

    @property
    def seen(self) -> int:
        """Graphs of all searches."""
        return self.summed.seen + self.saturated.seen + self.joint.seen


def search_operators(
    network: Network,
    rules: Sequence[Rule],
    operators: SumOfOperators,
    search: RewriteSearch,
    *,
    alpha: float = ALPHA,
    budget: RewriteBudget | None = None,
    progress: RewriteProgress = ignore,
) -> Found:
    """The network of the least sum of operators that one of the searches finds, or where ``joint`` the better
    one's."""
    saturation = Saturation(rules, operators, budget or RewriteBudget(), progress)
    if search == "saturation":
        return saturation.search(network)
    summed = search_in_parts(network, rules, operators, alpha=alpha, budget=budget, progress=progress)
    if search == "backtracking" or summed.interrupted:
        return summed
    saturated = saturation.search(network)
    return replace(
        saturated,
        best=cheaper(summed.best, saturated.best),
        seen=summed.seen + saturated.seen,
        expanded=summed.expanded + saturated.expanded,
        complete=summed.complete and not saturated.interrupted,
    )


def search_jointly(
    network: Network,
    rules: Sequence[Rule],
    cost_model: CostModel,
    *,
    cost: OptimalSchedule | None = None,
    alpha: float = ALPHA,
    budget: RewriteBudget | None = None,
    progress: RewriteProgress = ignore,
) -> JointlyFound:
    """The network of the fastest schedule, by default ``ios-both``'s, that the rules make of this one; each search
    has the budget. KeyboardInterrupt ends it with the best so far."""
    scheduled = cost or OptimalSchedule(cost_model)
    operators = SumOfOperators(cost_model)
    saturation = Saturation(rules, operators, budget or RewriteBudget(), progress)
    before_us = scheduled.us(network)
    begun = Candidate(network, (), before_us)
    summed = search_in_parts(network, rules, operators, alpha=alpha, budget=budget, progress=progress)
    nothing = Found(Candidate(network, (), summed.before_us), summed.before_us, 1, 0, False, True, summed.matched)
    saturated = nothing if summed.interrupted else saturation.search(network)
    known = begun
    first_us = []
    for found in (summed, saturated):
        candidate = Candidate(found.best.network, found.best.steps, scheduled.us(found.best.network))
        known = cheaper(known, candidate)
        first_us.append(candidate.cost_us)
    if saturated.interrupted:
        joint = Found(known, before_us, 1, 0, False, True, summed.matched)
    else:
        joint = search_in_parts(
            network,
            rules,
            scheduled,
            alpha=alpha,
            budget=budget,
            guides=[operators],
            proposes=saturation.of,
            blocks_whole=True,
            progress=progress,
        )
    joint = replace(joint, best=cheaper(joint.best, known))
    return JointlyFound(summed, saturated, joint, *first_us)
