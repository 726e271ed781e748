"""Register of the functions that compute each op kind in torch, and of the reasons why one cannot.

A function looks at types, never at tensors, so that it also traces symbolic operands of ``torch.fx``. A table of
numbers that it reads is a :func:`constant`: if it were copied to the device in each run, no CUDA graph could hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from iossim.backends.torch_cuda.tensors import DTYPES
from iossim.execution.backend import BackendError
from iossim.ir.op import Array, KindTable, Op
from iossim.ir.types import DType, TensorType

#: A tensor, or what stands for one while a module is traced.
Operand = Any
Types = Sequence[TensorType]
#: Computes an op, from it, the types of its operands, and each of these: its one output, or a tuple of several.
Operator = Callable[..., Operand]
#: Why an op on operands of these types is not computed, in a few words; empty where it is.
Refusal = Callable[[Any, Types], str]

OPERATORS = KindTable[tuple[Operator, Refusal | None]]()


def computes(*kinds: str, refuses: Refusal | None = None) -> Callable[[Operator], Operator]:
    """Registers the function that computes ops of these kinds, unless ``refuses`` gives a reason."""

    def register(function: Operator) -> Operator:
        OPERATORS.register(*kinds)((function, refuses))
        return function

    return register


def register(functions: Mapping[str, Operator], refuses: Refusal | None = None) -> None:
    """Registers a function for each kind."""
    for kind, function in functions.items():
        OPERATORS[kind] = (function, refuses)


def constant(numbers: Array, like: Operand, dtype: DType | None = None) -> torch.Tensor:
    """A table beside an operand, of its own element type if none is given; traced, it is a buffer of the module."""
    made = torch.as_tensor(np.ascontiguousarray(numbers), dtype=dtype and DTYPES[dtype])
    return made.to(like.device) if isinstance(like, torch.Tensor) else made


def floating_only(op: Op, types: Types) -> str:
    """Refusal of ops that torch's own function computes on floating-point numbers alone."""
    if not types[0].dtype.is_floating:
        return f"{op.kind} is computed on floating-point numbers only, not on {types[0].dtype}"
    return ""


def covers(op: Op, types: Types) -> str:
    """Why torch cannot compute the op on operands of these types, in a few words; empty where it can."""
    known = OPERATORS.get(op.kind)
    if known is None:
        return f"op kind {op.kind!r} has no function in torch"
    for value in (*types, *op.infer(types)):
        if value.dtype not in DTYPES:
            return f"{op.kind} is not computed on {value.dtype} in torch"
    _, refuses = known
    return refuses(op, types) if refuses else ""


def apply(op: Op, operands: Sequence[Operand], types: Types) -> tuple[Operand, ...]:
    """The op's outputs; raises BackendError for an op that torch does not cover."""
    if reason := covers(op, types):
        raise BackendError(f"{reason}; use backend numpy_reference")
    made = OPERATORS[op.kind][0](op, types, *operands)
    return made if isinstance(made, tuple) else (made,)
