"""Branches side by side on parts of an edge device's units, where that takes less than every operator on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from iossim.edge.capacity import check
from iossim.edge.optimize import plan
from iossim.edge.parts import PartsCostModel
from iossim.edge.plan import EdgePlan, Lane, Stages, one_by_one
from iossim.edge.simulator.events import Timed, simulate
from iossim.search.options import SearchOptions
from iossim.search.scheduler import Progress, ignore, schedule


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage of several lanes: the operators of each, its units, and the stage's time against these operators one after another on
    all units, both event by event."""

    operators: list[list[str]]
    units: list[int]
    parts_us: float
    whole_us: float


@dataclass(frozen=True)
class Parts:
    """``plan`` has lanes in the blocks where they take less. ``proposed`` and ``kept``: stages of several lanes that the search
    found, and those of them that are in the plan."""

    plan: EdgePlan
    timed: Timed
    whole_us: float
    proposed: int
    rows: tuple[StageRow, ...]

    @property
    def total_us(self) -> float:
        return self.timed.total_us

    def to_json(self) -> dict[str, Any]:
        return {
            "parts_us": self.total_us,
            "stages": len(self.plan.stages),
            "stages_proposed": self.proposed,
            "stages_in_parts": [asdict(row) for row in self.rows],
        }


def in_parts(
    whole: EdgePlan, timed: Timed, policy: str, options: SearchOptions | None = None, progress: Progress = ignore
) -> Parts:
    """The stages that the search of IOS finds at closed-form prices, in the blocks where they take less event by event.

    ``whole`` and ``timed`` are the plan of all units and its times. Never slower than it. ``progress`` counts blocks.
    """
    network, device = whole.network, whole.device
    model = PartsCostModel(whole, policy)
    progress(0, len(network.blocks))
    found = schedule(network, model, "ios-parallel", options)
    by_block = [model.stages(block) for block in found.blocks]

    alone = [one_by_one(_steps(block), device.units.value) for block in by_block]

    def planned(blocks: Sequence[Stages]) -> tuple[EdgePlan, Timed]:
        made = plan(
            network, device, whole.variant, policy, stages=tuple(stage for block in blocks for stage in block)
        )
        check(made)
        return made, simulate(made)

    # Where feature maps lie depends on all stages: what a block gains is seen in the whole plan alone.
    chosen, best = alone, (whole, timed)
    if (tried := planned(by_block))[1].total_us < timed.total_us:
        chosen, best = by_block, tried
    for place, (stages, others) in enumerate(zip(by_block, alone, strict=True)):
        progress(place + 1, len(by_block))
        if stages != others:
            flipped = [*chosen[:place], others if chosen[place] == stages else stages, *chosen[place + 1 :]]
            if (tried := planned(flipped))[1].total_us < best[1].total_us:
                chosen, best = flipped, tried
    made, taken = best
    names = [step.operator.name for step in whole.steps]
    rows = tuple(
        StageRow(
            [[names[step] for step in lane.steps] for lane in stage],
            [lane.units for lane in stage],
            _span_us(taken, stage),
            sum(timed.steps[step][1] - timed.steps[step][0] for lane in stage for step in lane.steps),
        )
        for stage in made.stages
        if len(stage) > 1
    )
    return Parts(made, taken, timed.total_us, sum(len(stage) > 1 for block in by_block for stage in block), rows)


def _steps(stages: Stages) -> list[int]:
    """In the network's order."""
    return sorted(step for stage in stages for lane in stage for step in lane.steps)


def _span_us(timed: Timed, stage: tuple[Lane, ...]) -> float:
    ends = [timed.steps[step] for lane in stage for step in lane.steps]
    return max(end for _, end in ends) - min(start for start, _ in ends)
