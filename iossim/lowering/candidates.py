"""All that a step may run as: the kernels of GPUs by family, and what one thread of a processor does.

A device takes those that its libraries have (:meth:`iossim.lowering.kernel.Candidate.runs_on`).
"""

from __future__ import annotations

from iossim.lowering.kernel import Candidate
from iossim.lowering.processor import processor_candidates
from iossim.lowering.step import Step, family


def step_candidates(step: Step) -> list[Candidate]:
    """The candidates of a step for every device; those of its family first."""
    return [*family(step.op.kind).lower(step), *processor_candidates(step)]
