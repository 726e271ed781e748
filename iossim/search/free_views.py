"""Blocks as they are searched: without views, and with equal units in one order.

A unit that launches nothing runs with the one unit that makes what it reads.

In any schedule such a view may move into the stage of that unit, where it joins its group and changes no price. So a
search has fewer states: up to ``2^n`` times fewer for ``n`` splits. The view stays where the unit may merge with
others, since a merged stage holds nothing else, and where it reads nothing of the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from iossim.ir.network import BATCH_VIEW
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem, bits, masks_of


@dataclass(frozen=True, eq=False)
class WithoutViews:
    """``problem`` is the original without some of its views. ``units[i]`` is its unit ``i`` in the original,
    ``members[i]`` the mask there of that unit and of the views that run with it.
    """

    problem: ScheduleProblem
    units: tuple[int, ...]
    members: tuple[int, ...]

    @staticmethod
    def of(problem: ScheduleProblem) -> WithoutViews:
        network = problem.network
        views = [
            unit
            for unit, index in enumerate(problem.units)
            if network is not None and network.units[index].kind == BATCH_VIEW
        ]
        runs_with = _runs_with(problem, views)
        units = tuple(unit for unit, own in enumerate(runs_with) if own == unit)
        members = [0] * len(problem)
        for unit, own in enumerate(runs_with):
            members[own] |= 1 << unit
        if len(units) == len(problem):
            return WithoutViews(_in_order(problem), units, tuple(members))
        position = {unit: index for index, unit in enumerate(units)}

        def renumbered(mask: int) -> int:
            return sum(1 << place for place in {position[runs_with[unit]] for unit in bits(mask)})

        kept = tuple(members[unit] for unit in units)
        read = [
            renumbered(reduce(or_, (int(problem.predecessors[unit]) for unit in bits(own)))) & ~(1 << index)
            for index, own in enumerate(kept)
        ]
        before = problem.not_before
        smaller = ScheduleProblem(
            problem.name,
            tuple(problem.unit_names[unit] for unit in units),
            masks_of(read, len(units)),
            problem.merge_class[list(units)],
            tuple(problem.signatures[unit] for unit in units),
            network,
            tuple(problem.units[unit] for unit in units),
            None if before is None else masks_of([renumbered(int(before[unit])) for unit in units], len(units)),
            tuple(dict.fromkeys(map(renumbered, problem.clusters))),
        )
        return WithoutViews(_in_order(smaller), units, kept)

    def with_views(self, stages: Sequence[PlannedStage]) -> tuple[PlannedStage, ...]:
        """Stages of the original."""
        return tuple(
            replace(
                stage,
                mask=sum(self.members[unit] for unit in bits(stage.mask)),
                variants=tuple((self.units[unit], variant) for unit, variant in stage.variants),
            )
            for stage in stages
        )


def _in_order(problem: ScheduleProblem) -> ScheduleProblem:
    """The problem where equal neighbours start in the order of their numbers: units of one work that read the same and
    are read by the same. Renumbering them changes no stage, since nothing is issued between them, so that of ``n``
    there are ``n + 1`` states and not ``2^n``.
    """
    if problem.not_before is not None or problem.clusters:
        return problem
    arrays = problem.predecessors.tolist(), problem.successors.tolist(), problem.merge_class.tolist()
    alike = list(zip(problem.signatures, *arrays, strict=True))
    before = [1 << (unit - 1) if unit and alike[unit] == alike[unit - 1] else 0 for unit in range(len(problem))]
    return replace(problem, not_before=masks_of(before, len(problem))) if any(before) else problem


def _runs_with(problem: ScheduleProblem, views: Sequence[int]) -> list[int]:
    """Unit that each unit runs with: itself, or for a view that is left out its producer."""
    found = list(range(len(problem)))
    for view in views:
        makers = {found[unit] for unit in bits(int(problem.predecessors[view]))}
        if len(makers) == 1 and problem.merge_class[maker := makers.pop()] < 0 and maker not in views:
            found[view] = maker
    return found
