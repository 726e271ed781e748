"""An attention as the three ops that compute it if no fused kernel does: scores, softmax, mixed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.lowering.step import Operand, Step
from iossim.hardware.lowering.target import Lower
from iossim.ir.ops.attention import Attention
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.softmax import Softmax
from iossim.ir.types import TensorType


def unfused(step: Step[Attention], families: Mapping[str, Lower]) -> list[Candidate]:
    """Candidates for running the ops of an attention sequentially; an attention op's mask is an epilogue."""
    found: list[Candidate] = []
    parts = [families[part.op.kind](part) for part in step.parts or _parts(step)]
    for chosen in product(*parts):
        architectures, libraries = (
            frozenset.intersection(*sets) if (sets := [each for each in given if each is not None]) else None
            for given in zip(*((one.architectures, one.libraries) for one in chosen), strict=True)
        )
        if architectures != frozenset() and libraries != frozenset():
            kernels = tuple(kernel for one in chosen for kernel in one.kernels)
            workspace_bytes = max(one.workspace_bytes for one in chosen)
            name = "+".join(one.algorithm for one in chosen)
            found.append(Candidate(name, kernels, workspace_bytes, True, architectures, libraries))
    return found


def _parts(step: Step[Attention]) -> tuple[Step, Step, Step]:
    types = [operand.type for operand in step.operands]
    shape, dtype = step.op.shape(types), types[0].dtype
    # Heads that share keys are additional rows of one product.
    rows = (shape.batch, shape.kv_heads, shape.heads // shape.kv_heads * shape.queries)
    q, k, v, scores, y = (
        TensorType((*sizes, last), dtype)
        for *sizes, last in (
            (*rows, shape.features),
            (*rows[:2], shape.features, shape.keys),
            (*rows[:2], shape.keys, shape.value_features),
            (*rows, shape.keys),
            (*rows, shape.value_features),
        )
    )
    mask, count, extra = step.operands[3:], scores.elements, max(0, step.flops - step.op.flops(types, step.outputs))
    first = Step(MatMul(), (Operand(q), Operand(k), *mask), (scores,), 0, step.precision)
    first = replace(first, flops=2 * count * shape.features + (1 + len(mask)) * count)
    weights = Step(Softmax(), (Operand(scores),), (scores,), 5 * count, step.precision)
    mixed = Step(MatMul(), (Operand(scores), Operand(v)), (y,), 2 * count * shape.value_features, step.precision)
    return first, weights, replace(mixed, flops=mixed.flops + extra)
