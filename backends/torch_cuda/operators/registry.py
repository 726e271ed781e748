"""Register of the functions that compute each op kind in torch, or of the reason why it runs on the host.

A function looks at types, never at tensors, so that it also traces symbolic operands of ``torch.fx``. A table of
numbers that it reads is a :func:`constant`: if it were copied to the device in each run, no CUDA graph could hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import fx

from iossim.backends.torch_cuda.tensors import DTYPES, to_array, to_tensor
from iossim.ir.op import Array, KindTable, Op
from iossim.ir.ops.functions import Nary, Unary
from iossim.ir.ops.reduce import Reduce
from iossim.ir.types import DType, TensorType

#: A tensor, or what stands for one while a module is traced.
Operand: TypeAlias = torch.Tensor | fx.Proxy
Types = Sequence[TensorType]
#: Computes an op, from it, the types of its operands, and each of these: its one output, or a tuple of several.
Operator = Callable[..., Operand]
#: Why an op on operands of these types is not computed, in a few words; empty where it is.
Refusal = Callable[..., str]

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


def only_floats(op: Op, types: Types) -> str:
    """Refusal of ops that torch's own function computes on floating-point numbers alone."""
    if not types[0].dtype.is_floating:
        return f"{op.kind} is computed on floating-point numbers only, not on {types[0].dtype}"
    return ""


def without(functions: Mapping[str, object], exact: Callable[..., bool]) -> Refusal:
    """Refusal of ops whose function is not among ``functions``, and of whole numbers where it is not ``exact``."""

    def refusal(op: Unary | Nary | Reduce, types: Types) -> str:
        if op.function not in functions:
            return f"function {op.function!r} has no counterpart in torch"
        return "" if exact(op, types) else only_floats(op, types)

    return refusal


def covers(op: Op, types: Types) -> str:
    """Why torch cannot compute the op on operands of these types, in a few words; empty where it can."""
    if (known := OPERATORS.get(op.kind)) is None:
        return "it has no function in torch"
    _, refuses = known
    return refuses(op, types) if refuses else ""


class OnHost(torch.nn.Module):  # type: ignore[misc]  # of a library that is not read
    """An op as its definition evaluates it, on the host: from copies of its operands, to tensors where these are."""

    def __init__(self, op: Op) -> None:
        super().__init__()
        self._op = op

    def forward(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        device = str(operands[0].device) if operands else "cpu"
        return tuple(to_tensor(array, device) for array in self._op.evaluate([*map(to_array, operands)]))


def apply(op: Op, operands: Sequence[Operand], types: Types) -> tuple[Operand, ...]:
    """The op's outputs; traced, one that torch does not cover is a module :class:`OnHost`."""
    if not covers(op, types):
        made = OPERATORS[op.kind][0](op, types, *operands)
        return made if isinstance(made, tuple) else (made,)
    traced = next((operand for operand in operands if isinstance(operand, fx.Proxy)), None)
    if traced is None:
        return OnHost(op).forward(*operands)
    root = traced.tracer.root
    name = f"part{len(list(root.children()))}"
    root.add_module(name, OnHost(op))
    made = traced.tracer.create_proxy("call_module", name, tuple(operands), {})
    return tuple(made[place] for place in range(len(op.infer(types))))
