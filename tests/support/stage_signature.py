"""What the price of a stage may depend on, written as plainly as can be: what faster code is held to."""

from __future__ import annotations

from iossim.schedule.batch import Strategy
from iossim.schedule.problem import ScheduleProblem, bits

Signature = tuple[Strategy, tuple[tuple[str, ...], ...]]


def stage_signature(problem: ScheduleProblem, mask: int, strategy: Strategy) -> Signature:
    """The strategy and, of each group, the sequence of its units' signatures; groups are a multiset."""
    groups = problem.groups(mask) if strategy is Strategy.CONCURRENT else [mask]
    sequences = [tuple(problem.signatures[unit] for unit in bits(group)) for group in groups]
    return strategy, tuple(sorted(sequences))
