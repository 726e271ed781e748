"""What is lowered: a step of a unit, one op with everything that was fused into it.

A family of ops registers a function that turns a step into candidates; the files of ``iossim.lowering.families`` are
found by discovery. An op kind without a family is priced as one streaming kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from iossim.ir.op import Op
from iossim.ir.types import Precision, TensorType
from iossim.lowering.kernel import Candidate


class Role(Enum):
    """How an op takes part in the fusion inside a unit."""

    ANCHOR = "anchor"  #: a call or kernel of its own
    ELEMENTWISE = "elementwise"  #: joins its element-wise neighbours in one kernel
    ACTIVATION = "activation"  #: element-wise on one input
    CONCAT = "concat"  #: a kernel per term
    VIEW = "view"  #: no kernel: the same bytes under another shape


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a step reads."""

    type: TensorType
    is_weight: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One op, or a fused chain that ends in it.

    ``operands`` are those of the anchor op, in its order, or all that an element-wise chain reads from outside.
    ``outputs`` are the types that are written; ``flops`` counts fused ops too. ``fused_reads`` is what the element-wise ops
    that an anchor takes along read besides its operands: a residual, say.
    """

    op: Op
    operands: tuple[Operand, ...]
    outputs: tuple[TensorType, ...]
    flops: int
    precision: Precision
    fused_reads: tuple[Operand, ...] = ()

    @property
    def activation_bytes(self) -> int:
        return sum(operand.type.bytes for operand in self.operands if not operand.is_weight)

    @property
    def weight_bytes(self) -> int:
        return sum(operand.type.bytes for operand in self.operands if operand.is_weight)

    @property
    def bytes_written(self) -> int:
        return sum(output.bytes for output in self.outputs)


Lower = Callable[[Step], list[Candidate]]


@dataclass(frozen=True, slots=True)
class Family:
    """How the ops of a kind are lowered.

    Ops with ``has_epilogue`` compute what is element-wise behind them as they write their result, those with
    ``has_prologue`` what is element-wise before their first operand as they load it.
    """

    role: Role
    lower: Lower
    has_epilogue: bool = False
    has_prologue: bool = False


_FAMILIES: dict[str, Family] = {}


def lowers(
    *kinds: str, role: Role = Role.ANCHOR, has_epilogue: bool = False, has_prologue: bool = False
) -> Callable[[Lower], Lower]:
    """Register the decorated function for op kinds."""

    def register(lower: Lower) -> Lower:
        for kind in kinds:
            _FAMILIES[kind] = Family(role, lower, has_epilogue, has_prologue)
        return lower

    return register


def family(kind: str) -> Family:
    """The family of an op kind; for a kind that none registered, one streaming kernel."""
    import iossim.lowering.families  # noqa: F401  (importing it registers every family)

    return _FAMILIES.get(kind) or _FAMILIES[""]
