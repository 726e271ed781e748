"""Where the stages of a schedule lie on its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iossim.execution.timeline import Span
from iossim.schedule.schedule import Schedule, Stage


@dataclass(frozen=True, slots=True)
class StageExtent:
    """Stage ``number`` of a schedule, from the start of its first kernel to the end of its last."""

    number: int
    block: str
    stage: Stage
    start_us: float
    end_us: float


def stage_extents(schedule: Schedule, spans: Sequence[Span]) -> list[StageExtent]:
    """The stages that have kernels, in execution order."""
    bounds: dict[int, tuple[float, float]] = {}
    for span in spans:
        start_us, end_us = bounds.get(span.stage, (span.start_us, span.end_us))
        bounds[span.stage] = (min(start_us, span.start_us), max(end_us, span.end_us))
    stages = [(block.name, stage) for block in schedule.blocks for stage in block.stages]
    return [StageExtent(number, *stages[number], *bounds[number]) for number in sorted(bounds)]
