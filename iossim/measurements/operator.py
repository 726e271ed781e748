"""A measured or predicted operator: an op of the IR with its shapes and precision, outside a network."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from iossim.base.errors import GraphError
from iossim.hardware.lowering.step import Operand, Step
from iossim.ir.op import Op, Work
from iossim.ir.types import Precision, TensorType

#: Fraction of all shapes that no fit ever uses.
HELD_OUT_FRACTION = 0.3

_HASH_DIGITS = 15  # hexadecimal digits of the hash that decide: nearly as many as a float holds


@dataclass(frozen=True)
class Operator:
    """One op on inputs of given types; raises GraphError if they do not fit, or if there is no output.

    ``kind`` is its name in tables (``conv``, ``linear``, ``gemm``, ``add``, ``relu`` ...): ``linear`` and ``gemm``
    are both :class:`~iossim.ir.ops.matmul.Gemm`. ``weights`` are the indices of the inputs that are weights.
    """

    kind: str
    op: Op
    inputs: tuple[TensorType, ...]
    weights: tuple[int, ...] = ()
    precision: Precision = Precision.FP32

    def __post_init__(self) -> None:
        if any(min(output.shape, default=1) < 1 for output in self.outputs):
            raise GraphError(f"its output {self.outputs[0]} is empty: the kernel does not fit the padded input")

    @cached_property
    def outputs(self) -> tuple[TensorType, ...]:
        return self.op.infer(self.inputs)

    @cached_property
    def work(self) -> Work:
        """Arithmetic, and the bytes of all inputs and outputs, each moved once."""
        return self.op.work(self.inputs, self.outputs)

    @property
    def flops(self) -> int:
        return self.work.flops

    @property
    def bytes(self) -> int:
        return self.work.bytes

    def step(self) -> Step:
        """The step for lowering: a unit of this op alone."""
        operands = tuple(Operand(value, index in self.weights) for index, value in enumerate(self.inputs))
        return Step(self.op, operands, self.outputs, self.flops, self.precision)

    @cached_property
    def key(self) -> str:
        """Op and shapes as readable text, independent of the table's naming.

        Precision and the table's kind are left out: one shape at two precisions, or a layer that one table calls
        ``linear`` and another ``gemm``, is the same work and stays on the same side of a split.
        """
        shapes = ("x".join(map(str, value.shape)) for value in self.inputs)
        return " ".join((self.op.signature, *shapes))

    @cached_property
    def shape_hash(self) -> str:
        """SHA-256 of :attr:`key`, hexadecimal."""
        return hashlib.sha256(self.key.encode()).hexdigest()

    def is_held_out(self, fraction: float = HELD_OUT_FRACTION) -> bool:
        """Whether fits leave this shape out for evaluation.

        Only the hash decides: its first 60 bits, read as a fraction of one, are below ``fraction``. So the split is
        the same for every device, data set, order of rows and program run, and larger fractions hold out more.
        """
        return bool(int(self.shape_hash[:_HASH_DIGITS], 16) < fraction * 2 ** (4 * _HASH_DIGITS))
