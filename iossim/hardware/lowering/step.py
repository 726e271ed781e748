"""A step of a unit: one op with all ops fused into it.

Families of ops (``iossim.hardware.lowering.gpu.families``) register the functions from a step to candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iossim.ir.op import Op
from iossim.ir.types import TO_FIRST, Precision, TensorType, first_types, permuted


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a step reads."""

    type: TensorType
    is_weight: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One op, or a fused chain that ends in it.

    ``operands`` are those of the anchor op, in its order, or all external inputs of an element-wise chain.
    ``outputs`` are the types that are written; ``flops`` includes fused ops. ``fused_reads`` are the inputs of fused
    element-wise ops besides the anchor's operands, such as a residual. ``parts`` are the steps that compute the same
    sequentially, for an op that the graph has in several parts.
    """

    op: Op
    operands: tuple[Operand, ...]
    outputs: tuple[TensorType, ...]
    flops: int
    precision: Precision
    fused_reads: tuple[Operand, ...] = ()
    parts: tuple[Step, ...] = ()

    @property
    def activation_bytes(self) -> int:
        return sum(operand.type.bytes for operand in self.operands if not operand.is_weight)

    @property
    def weight_bytes(self) -> int:
        return sum(operand.type.bytes for operand in self.operands if operand.is_weight)

    @property
    def bytes_written(self) -> int:
        return sum(output.bytes for output in self.outputs)


def as_channels_first(step: Step) -> Step:
    """The step of the op on NCHW; bytes and arithmetic are the same."""
    x, *rest = step.operands
    return replace(
        step,
        op=step.op.channels_first,
        operands=(replace(x, type=permuted(x.type, TO_FIRST)), *rest),
        outputs=tuple(first_types(step.outputs)),
    )
