"""What was measured, in words and as operators: what a record says of its stage besides the signature.

Operators are records of the measurement-set format (``iossim.measurements.operator_kinds``): one for each step of a unit
(``iossim.hardware.lowering.unit``), so that a Conv-Relu counts as a convolution, and a Relu-SepConv as three operators. A unit has
none where one of its steps has no columns there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from iossim.base.errors import GraphError
from iossim.execution.in_place import InPlaceBuffers
from iossim.hardware.lowering.step import Step
from iossim.hardware.lowering.unit import merged_step, unit_steps
from iossim.ir.network import Network
from iossim.ir.ops.add import Add
from iossim.ir.ops.concat import Concat
from iossim.ir.ops.gemm import Gemm
from iossim.ir.ops.relu import Relu
from iossim.ir.types import TensorType
from iossim.measurements.kinds.kind import RecordError
from iossim.measurements.operator import Operator
from iossim.measurements.operator_kinds import KINDS, record_of
from iossim.schedule.strategy import Strategy

OperatorRecord = dict[str, int | str]


def stage_subject(
    network: Network, placement: InPlaceBuffers, groups: Sequence[Sequence[int]], strategy: Strategy
) -> dict[str, Any]:
    """``words``: the units by name, groups apart; ``groups``: of each unit that launches something its ``signature``,
    ``kind`` and ``operators`` (None where they have no columns). Merged units are one entry."""
    named = [[network.units[unit].name for unit in group] for group in groups]
    around = f"{network.name}, batch {network.source.batch}"
    if strategy is Strategy.MERGE:
        (units,) = groups
        merged = {
            "signature": "+".join(network.signatures[unit] for unit in units),
            "kind": "merged",
            "operators": _operators([merged_step(network, units)]),
        }
        return {"words": f"{around}: merged {' + '.join(named[0])}", "groups": [[merged]]}
    entries = [
        [
            {
                "signature": network.signatures[unit] + placement.signature(unit),
                "kind": network.units[unit].kind,
                "operators": _unit_operators(network, placement, unit),
            }
            for unit in group
            if placement.moves.get(unit, True)
        ]
        for group in groups
    ]
    words = " | ".join(", ".join(names) for names in named)
    return {"words": f"{around}: {words}", "groups": [entry for entry in entries if entry]}


def _unit_operators(network: Network, placement: InPlaceBuffers, unit: int) -> list[OperatorRecord] | None:
    """The operators of a unit; a unit that only moves data has those of the terms that it copies."""
    if unit not in placement.moves:
        return _operators(unit_steps(network, network.units[unit]))
    types = [network.graph.types[term] for term, _ in placement.moves[unit]]
    return [_plane("concat", value) for value in types]


def _operators(steps: Sequence[Step]) -> list[OperatorRecord] | None:
    try:
        return [_operator(step) for step in steps] or None
    except (RecordError, GraphError):
        return None


def _operator(step: Step) -> OperatorRecord:
    """The record of a step; raises RecordError where it has none."""
    read = tuple(operand.type for operand in step.operands)
    weights = tuple(index for index, operand in enumerate(step.operands) if operand.is_weight)
    (written,) = step.outputs
    if step.fused_reads:
        raise RecordError("fused ops that read more than the operands")
    if step.op.kind == "conv":
        if weights[:1] != (1,) or len(read[1].shape) != 4:
            raise RecordError("a convolution of one or three dimensions, or without a constant weight")
        return record_of(Operator("conv", step.op, read[:2], (1,), step.precision))
    if isinstance(step.op, Gemm):
        plain = Gemm(trans_a=step.op.trans_a, trans_b=step.op.trans_b)
        if step.op.alpha != 1 or 1 not in weights:
            raise RecordError("a scaled product, or one of two values")
        return record_of(Operator("gemm", plain, read[:2], (1,), step.precision))
    if step.op.kind in KINDS and step.op.kind.endswith("_pool"):
        return record_of(Operator(step.op.kind, step.op, read, (), step.precision))
    if weights or any(value != written for value in read):
        raise RecordError("operands that are weights, or of several shapes")
    if isinstance(step.op, Concat) and len(read) == 1:
        return _plane("concat", written)
    if isinstance(step.op, Relu | Add) and len(read) <= 2:
        # One kernel that reads one value is an activation, one that reads two a sum, with or without one behind it.
        return _plane("relu" if len(read) == 1 else "add", written)
    raise RecordError(f"{step.op.kind} of {len(read)} operands")


def _plane(kind: str, value: TensorType) -> OperatorRecord:
    """An element-wise kind counts elements: a row for each image and channel."""
    rows = math.prod(value.shape[:2])
    return {"op": kind, "rows": rows, "cols": value.elements // rows}
