"""Space of a measured search: transitions, classes of stages, and prices measured so far.

The measuring model may distinguish stages of one class (by copies after a merged convolution, for example). So a
stage counts as measured only if its own signature is: until then it is assumed to cost as much as the first of its
class.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from iossim.base.compiled import Floats
from iossim.cost.capabilities import FREE, IMPOSSIBLE, MeasuringCostModel
from iossim.cost.model import CostModel
from iossim.schedule.batch import StageBatch
from iossim.schedule.planned_stage import PlannedStage, planned_of
from iossim.schedule.problem import ScheduleProblem
from iossim.search.block_parts import BlockNote, notes_of_blocks, prepare_block
from iossim.search.measured.company import adding_company
from iossim.search.measured.planner import PathStep, Planner, Transitions, enumerate_transitions
from iossim.search.measured.stage_classes import StageClasses, classify, number_units
from iossim.search.options import SearchOptions

#: A stage: the number of a distinct problem, and that of one of its distinct stages.
StageKey = tuple[int, int]

#: A block with more transitions is pruned: all are kept in memory, and swept repeatedly.
MAX_TRANSITIONS = 10_000_000


@dataclass(frozen=True, eq=False)
class MeasuredSpace:
    """``transitions`` of the distinct problems; ``order[i]`` is the index of the ``i``-th problem among them.

    ``place[i]`` is the block of the ``i``-th problem, and its units in that block.
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
            (stage,) = planned_of(space.batch(np.array([step.stage])))
            blocks[block].append(stage.spread(units))
        return tuple(tuple(stages) for stages in blocks)


def build_space(
    problems: Sequence[ScheduleProblem],
    estimate: CostModel,
    truth: MeasuringCostModel,
    options: SearchOptions,
    slack: float = 0.0,
) -> MeasuredSpace:
    """Enumerate the transitions of all blocks, equal ones once, and find the classes of their stages.

    Blocks are pruned and split as by ``ios``, at :data:`MAX_TRANSITIONS`. With ``company`` in the options there are
    stages of other kernels, too (:func:`~iossim.search.measured.company.adding_company`, which takes ``slack``): raises
    OptionError for a cost model that has none.
    """
    with_company = adding_company(estimate, slack) if options.company else None
    limits = replace(options.limits, max_transitions=min(MAX_TRANSITIONS, options.limits.max_transitions))
    options = replace(options, limits=limits)
    transitions: list[Transitions] = []
    signatures: list[Sequence[Hashable]] = []
    order: list[int] = []
    place: list[tuple[int, tuple[int, ...]]] = []
    notes: list[tuple[str, BlockNote]] = []
    known: dict[Hashable, tuple[list[tuple[int, tuple[int, ...]]], list[BlockNote]]] = {}
    for block, problem in enumerate(problems):
        own = tuple(truth.signatures(StageBatch.alone(problem)))
        # Equal blocks may still be measured apart: copies after a unit are no part of a problem.
        key = problem.key, own
        if key not in known:
            parts, remarks = prepare_block(problem, estimate, options, few_states=0)
            numbers: list[tuple[int, tuple[int, ...]]] = []
            for part in parts:
                found = enumerate_transitions(part.problem, part.lattice, part.space, part.merges.masks)
                found = found if with_company is None else with_company(found)
                numbers.append((len(transitions), part.units))
                transitions.append(found)
                signatures.append([own[unit] for unit in part.units])
            known[key] = numbers, remarks
        numbers, remarks = known[key]
        order += [number for number, _ in numbers]
        place += [(block, units) for _, units in numbers]
        notes += [(problem.name, note) for note in remarks]
    of_unit, units = number_units(signatures)
    classes = classify(transitions, of_unit, units, estimate)
    boundary = np.array([[truth.price_boundary(left, right) for right in (False, True)] for left in (False, True)])
    planner = Planner(transitions, order, boundary, options.space.concurrent)
    return MeasuredSpace(transitions, order, place, classes, planner, tuple(notes_of_blocks(notes)))


class MeasuredCosts:
    """Measures stages, each signature once, and keeps the prices.

    ``class_us[c]`` (NaN while unknown) is the price of the first stage of class ``c`` that was measured.
    """

    def __init__(self, space: MeasuredSpace, truth: MeasuringCostModel) -> None:
        self._space = space
        self._truth = truth
        # A stage that launches nothing takes no time, and one that does not merge cannot run.
        self._prices: dict[Hashable, float] = {FREE: 0.0, IMPOSSIBLE: np.inf}
        self._signatures: dict[StageKey, Hashable] = {}
        self.class_us = np.full(len(space.classes), np.nan)
        #: Stages with another price than the first of their class.
        self._apart: dict[StageKey, float] = {}

    def __len__(self) -> int:
        """Number of measurements made."""
        return len(self._prices) - 2

    def price(self, step: PathStep) -> float:
        """The measured price of a step's stage."""
        return self._prices[self._signature(self._key(step))]

    def unmeasured(self, steps: Sequence[PathStep]) -> list[StageKey]:
        """One stage for each unmeasured signature on a path, in the path's order."""
        return self.without_repeats([self._key(step) for step in steps])

    def without_repeats(self, keys: Sequence[StageKey]) -> list[StageKey]:
        """Stages among these whose signatures are not measured yet, one for each signature."""
        self._sign(keys)
        found: dict[Hashable, StageKey] = {}
        for key in keys:
            if self._signatures[key] in self._prices:
                self._enter(key, self._prices[self._signatures[key]])
            else:
                found.setdefault(self._signatures[key], key)
        return list(found.values())

    def measure(self, keys: Sequence[StageKey]) -> list[int]:
        """Measure stages of distinct signatures; returns the classes whose first measurements these are."""
        first: list[int] = []
        for problem in sorted({problem for problem, _ in keys}):
            stages = np.array([stage for other, stage in keys if other == problem], dtype=np.int64)
            prices = self._truth.price_stages(self._space.transitions[problem].batch(stages)).tolist()
            for stage, price in zip(stages.tolist(), prices, strict=True):
                self._prices[self._signature((problem, stage))] = price
                if self._enter((problem, stage), price):
                    first.append(int(self._space.classes.of_stage[problem][stage]))
        return first

    def prices_us(self, class_us: Floats) -> list[Floats]:
        """The price of each stage of each problem, from prices of classes; measured stages count as measured."""
        known = np.where(np.isnan(self.class_us), class_us, self.class_us)
        prices = [known[classes] for classes in self._space.classes.of_stage]
        for (problem, stage), price in self._apart.items():
            prices[problem][stage] = price
        return prices

    def _enter(self, key: StageKey, price: float) -> bool:
        """Enter the price of a stage; True if it is the first of its class."""
        problem, stage = key
        one = int(self._space.classes.of_stage[problem][stage])
        if np.isnan(self.class_us[one]):
            self.class_us[one] = price
            return True
        if self.class_us[one] != price:
            self._apart[key] = price
        return False

    def _key(self, step: PathStep) -> StageKey:
        return self._space.order[step.position], step.stage

    def _signature(self, key: StageKey) -> Hashable:
        self._sign([key])
        return self._signatures[key]

    def _sign(self, keys: Sequence[StageKey]) -> None:
        missing = sorted({key for key in keys if key not in self._signatures})
        for problem in sorted({problem for problem, _ in missing}):
            stages = [stage for other, stage in missing if other == problem]
            batch = self._space.transitions[problem].batch(np.array(stages, dtype=np.int64))
            for stage, signature in zip(stages, self._truth.signatures(batch), strict=True):
                self._signatures[problem, stage] = signature
