"""All that a step may run as: the kernels of GPUs by family, and what one thread of a processor does.

A device takes those that its libraries have (:meth:`iossim.lowering.kernel.Candidate.runs_on`).
"""

from __future__ import annotations

from iossim.ir.types import TensorType
from iossim.lowering.families.streaming import copy_candidate
from iossim.lowering.kernel import Candidate
from iossim.lowering.processor import processor_candidates, processor_copy
from iossim.lowering.step import Step, family


def step_candidates(step: Step) -> list[Candidate]:
    """The candidates of a step for every device; those of its family first."""
    return [*family(step.op.kind).lower(step), *processor_candidates(step)]


def copy_candidates(moved: TensorType) -> tuple[Candidate, ...]:
    """The candidates of a copy of a tensor for every device."""
    return copy_candidate(moved), processor_copy(moved)
