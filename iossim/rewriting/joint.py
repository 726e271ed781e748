"""Substitutions searched together with the schedule.

A graph that costs least one operator after another need not have the fastest schedule: two convolutions that are merged no longer
run beside each other, and work that is added may fill what is idle. So graphs are compared by their optimal schedules. The graphs
that are best one operator after another are seeds of that search, so that its result is never worse than
scheduling the network as it is, nor than rewriting it first and scheduling it then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.rewriting.backtracking import ALPHA, Candidate, Found, RewriteBudget, RewriteProgress, cheaper, ignore
from iossim.rewriting.graph_costs import OptimalSchedule, SumOfOperators
from iossim.rewriting.parts import search_in_parts
from iossim.rewriting.rule import Rule


@dataclass(frozen=True, eq=False)
class JointlyFound:
    """The best network under the sum of operators (``summed``), and under its optimal schedule (``joint``).

    ``rewritten_first_us``: the optimal schedule of the former.
    """

    summed: Found
    joint: Found
    rewritten_first_us: float


def search_jointly(
    network: Network,
    rules: Sequence[Rule],
    cost_model: CostModel,
    *,
    cost: OptimalSchedule | None = None,
    alpha: float = ALPHA,
    budget: RewriteBudget | None = None,
    seeds: Sequence[Candidate] = (),
    progress: RewriteProgress = ignore,
) -> JointlyFound:
    """The network of the fastest schedule, by default ``ios-both``'s, that the rules make of this one; both searches have the budget.

    ``seeds`` are networks that were found otherwise (:func:`~iossim.rewriting.saturation.saturate`), with the steps to them from this one:
    neither result is worse than any of them.

    KeyboardInterrupt ends it with the best so far.
    """
    scheduled = cost or OptimalSchedule(cost_model)
    operators = SumOfOperators(cost_model)
    summed = search_in_parts(network, rules, operators, alpha=alpha, budget=budget)
    for seed in seeds:
        other = Candidate(seed.network, seed.steps, operators.us(seed.network))
        summed = replace(summed, best=cheaper(summed.best, other))
    first = Candidate(summed.best.network, summed.best.steps, scheduled.us(summed.best.network))
    known = first
    for seed in seeds:
        known = cheaper(known, Candidate(seed.network, seed.steps, scheduled.us(seed.network)))
    if summed.interrupted:
        before_us = scheduled.us(network)
        best = cheaper(Candidate(network, (), before_us), known)
        return JointlyFound(summed, replace(summed, best=best, before_us=before_us), first.cost_us)
    joint = search_in_parts(
        network,
        rules,
        scheduled,
        alpha=alpha,
        budget=budget,
        guides=[operators],
        blocks_whole=True,
        progress=progress,
    )
    return JointlyFound(summed, replace(joint, best=cheaper(joint.best, known)), first.cost_us)
