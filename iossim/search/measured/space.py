"""What a measured search searches: the blocks' transitions, and the classes of their stages."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from iossim.cost.model import CostModel, MeasuringCostModel
from iossim.schedule.batch import StageBatch
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import ScheduleProblem
from iossim.schedule.strategy import Strategy
from iossim.search.block_parts import prepare_block
from iossim.search.measured.planner import PathStep, Planner
from iossim.search.measured.stage_classes import StageClasses, classify, number_units
from iossim.search.measured.transitions import Transitions, enumerate_transitions
from iossim.search.options import SearchOptions

#: A block of more transitions is pruned: all are held in memory, and swept again and again.
MAX_TRANSITIONS = 10_000_000


@dataclass(frozen=True, eq=False)
class MeasuredSpace:
    """``transitions`` of the distinct problems; ``order[i]`` which of them comes ``i``-th.

    ``place[i]`` is the block that the ``i``-th belongs to and the units of it that it has.
    """

    transitions: list[Transitions]
    order: list[int]
    place: list[tuple[int, tuple[int, ...]]]
    classes: StageClasses
    planner: Planner
    notes: tuple[str, ...]

    def plans(self, steps: Sequence[PathStep]) -> tuple[tuple[PlannedStage, ...], ...]:
        """The stages of each block."""
        blocks: list[list[PlannedStage]] = [[] for _ in range(self.place[-1][0] + 1)]
        for step in steps:
            space = self.transitions[self.order[step.position]]
            block, units = self.place[step.position]
            mask, strategy = int(space.masks[step.stage]), Strategy.of_code(int(space.strategies[step.stage]))
            blocks[block].append(PlannedStage(mask, strategy).spread(units))
        return tuple(tuple(stages) for stages in blocks)


def build_space(
    problems: Sequence[ScheduleProblem],
    estimate: CostModel,
    truth: MeasuringCostModel,
    options: SearchOptions,
    *,
    concurrent: bool,
    merge: bool,
) -> MeasuredSpace:
    """Enumerate the transitions of all blocks, equal ones once, and find the classes of their stages.

    Blocks are pruned and split as by ``ios``, at :data:`MAX_TRANSITIONS`.
    """
    limits = replace(options.limits, max_transitions=min(MAX_TRANSITIONS, options.limits.max_transitions))
    options = replace(options, limits=limits)
    transitions: list[Transitions] = []
    signatures: list[Sequence[Hashable]] = []
    order: list[int] = []
    place: list[tuple[int, tuple[int, ...]]] = []
    notes: list[str] = []
    known: dict[Hashable, tuple[list[tuple[int, tuple[int, ...]]], list[str]]] = {}
    for block, problem in enumerate(problems):
        alone = StageBatch.concurrent(problem, np.uint64(1) << np.arange(len(problem), dtype=np.uint64))
        own = tuple(truth.signatures(alone))
        # Blocks of equal units may still be measured apart: what is copied behind a unit, say, is no part of a problem.
        key = problem.key, own
        if key not in known:
            parts, said = prepare_block(problem, estimate, options, concurrent=concurrent, merge=merge, few_states=0)
            numbers: list[tuple[int, tuple[int, ...]]] = []
            for part in parts:
                found = enumerate_transitions(
                    part.problem, part.lattice, part.space, part.merges.masks, concurrent, np.iinfo(np.int32).max
                )
                assert found is not None, "a part has been counted"
                numbers.append((len(transitions), part.units))
                transitions.append(found)
                signatures.append([own[unit] for unit in part.units])
            known[key] = numbers, said
        numbers, said = known[key]
        order += [number for number, _ in numbers]
        place += [(block, units) for _, units in numbers]
        notes += [f"block {problem.name}: {sentence}" for sentence in said]
    of_unit, units = number_units(signatures)
    classes = classify(transitions, of_unit, units, estimate)
    boundary = np.array([[truth.price_boundary(bool(i), bool(j)) for j in range(2)] for i in range(2)])
    planner = Planner(transitions, order, boundary, concurrent)
    return MeasuredSpace(transitions, order, place, classes, planner, tuple(notes))
