"""All that a step may run as: the kernels of GPUs by family, and what one thread of a processor does.

A device takes those that its libraries have (:meth:`iossim.lowering.kernel.Candidate.runs_on`).
"""

from __future__ import annotations

from dataclasses import replace

from iossim.ir.types import TensorType
from iossim.lowering.families.streaming import copy_candidate
from iossim.lowering.kernel import Candidate
from iossim.lowering.processor import processor_candidates, processor_copy
from iossim.lowering.step import Step, family


def step_candidates(step: Step) -> list[Candidate]:
    """The candidates of a step for every device; those of its family first.

    What fused ops read besides counts to the last kernel, which computes them.
    """
    found = [*family(step.op.kind).lower(step), *processor_candidates(step)]
    if not step.fused_reads:
        return found
    activation_bytes = sum(operand.type.bytes for operand in step.fused_reads if not operand.is_weight)
    weight_bytes = sum(operand.type.bytes for operand in step.fused_reads if operand.is_weight)
    return [_reading_besides(candidate, activation_bytes, weight_bytes) for candidate in found]


def _reading_besides(candidate: Candidate, activation_bytes: int, weight_bytes: int) -> Candidate:
    *others, last = candidate.kernels
    reading = replace(
        last,
        activation_bytes=last.activation_bytes + activation_bytes,
        weight_bytes=last.weight_bytes + weight_bytes,
        l2_bytes=last.l2_bytes + activation_bytes + weight_bytes,
    )
    return replace(candidate, kernels=(*others, reading))


def copy_candidates(moved: TensorType) -> tuple[Candidate, ...]:
    """The candidates of a copy of a tensor for every device."""
    return copy_candidate(moved), processor_copy(moved)
