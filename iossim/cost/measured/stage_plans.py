"""Conversion of stages to measured plans: identity of the work, number of copies, and contents of the record.

A *signature* is the identity of :mod:`iossim.schedule.masks`: stages of equal signature share one measurement,
in any block, network or process. Units are compared by their own signatures (ops, attributes, types) and by the
effect of placement on them (``iossim.execution.in_place``: the terms that they copy). Streams and other consumers are
irrelevant.

A stage takes microseconds, so it is timed several times in a row. Stages of a single group follow one another without
the host; stages of several groups have their engine's boundary between them: under the paper engine a
synchronise, which is subtracted again (``copy_us`` of a record), under the graph engine fork and join, in the price.

Records hold operators in the measurement-set format (``iossim.measurements.operator_kinds``), one for each step of a
unit, so that a Conv-Relu counts as a convolution, and a Relu-SepConv as three operators; none for other steps.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from iossim.base.errors import GraphError, ScheduleError
from iossim.cost.capabilities import FREE, IMPOSSIBLE
from iossim.cost.measured.record import Kind, OperatorRecord, Subject, UnitSubject
from iossim.execution.backend import Choices, Divided
from iossim.execution.engine import Engine
from iossim.execution.in_place import in_place_buffers
from iossim.execution.lower import lower_stage
from iossim.execution.plan import Copy, Plan, Queue, repeat
from iossim.hardware.lowering.step import Step
from iossim.hardware.lowering.unit import merged_step, unit_steps
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.matmul import Gemm, MatMul
from iossim.ir.ops.nary import Add
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.ir.types import Precision, TensorType
from iossim.measurements.kinds import RecordError
from iossim.measurements.measurement import Operator
from iossim.measurements.operator_kinds import KINDS, record_of
from iossim.schedule.batch import FASTEST, StageBatch, Strategy
from iossim.schedule.planned_stage import PlannedStage, planned_of
from iossim.schedule.problem import ScheduleProblem, bits

#: Least time of one measured plan, and the maximum number of copies of its stage to reach it.
TARGET_US = 1500.0
MAX_COPIES = 512


#: The form of the hashed text, and the number of digits of its hash.
_FORMAT, _DIGITS = "stage 1", 32


def stage_digest(strategy: Strategy, groups: Iterable[Sequence[str]]) -> str | None:
    """The identity of one stage as 32 hexadecimal digits; None for a stage that does nothing.

    ``groups`` hold the key of each unit, in order; a merged stage is one group. Stores are keyed by this: changing the
    hashed text requires a new ``_FORMAT``.
    """
    sequences = [[key for key in group if key] for group in groups]
    if strategy is Strategy.MERGE:
        texts = [key for keys in sequences for key in keys]
    else:
        texts = sorted(">".join(keys) for keys in sequences if keys)
    if not texts:
        return None
    return hashlib.sha256("\n".join([_FORMAT, strategy, *texts]).encode()).hexdigest()[:_DIGITS]


@dataclass
class StageSignatures:
    """Computes signatures of stages, caching expensive properties of their networks."""

    _stages: dict[ScheduleProblem, dict[PlannedStage, str]] = field(default_factory=dict)
    _keys: dict[ScheduleProblem, list[str]] = field(default_factory=dict)

    def of_batch(self, batch: StageBatch) -> list[str]:
        """The signature of each stage; raises ScheduleError for a problem without a network."""
        known = self._stages.setdefault(batch.problem, {})
        stages = planned_of(batch)
        for stage in stages:
            if stage not in known:
                known[stage] = self.of_stage(batch.problem, stage)
        return [known[stage] for stage in stages]

    def of_stage(self, problem: ScheduleProblem, stage: PlannedStage) -> str:
        """The signature of one stage, with the variants that it names."""
        network = network_of(problem)
        if stage.strategy is Strategy.MERGE:
            return _merge_signature(network, tuple(problem.units[unit] for unit in bits(stage.mask)))
        if problem not in self._keys:
            self._keys[problem] = [self.unit_key(network, unit) for unit in problem.units]
        keys = self._keys[problem]
        if stage.variants:
            named = dict(stage.variants)
            keys = [f"{key} {named[unit]}" if key and unit in named else key for unit, key in enumerate(keys)]
        groups = ([keys[unit] for unit in bits(group)] for group in problem.groups(stage.mask))
        return stage_digest(Strategy.CONCURRENT, groups) or FREE

    def price_keys(self, problem: ScheduleProblem) -> tuple[str, ...]:
        """Key of each unit's work, including the effects of its placement, alone and merged with others."""
        place = in_place_buffers(network_of(problem))
        units = zip(problem.works, problem.units, strict=True)
        return tuple(work + place.signature(unit) + place.merging(unit) for work, unit in units)

    def unit_key(self, network: Network, unit: int) -> str:
        """A unit's key for comparison; empty if it launches nothing when it runs."""
        placement = in_place_buffers(network)
        return f"{network.signatures[unit]}{placement.signature(unit)}" if placement.moves.get(unit, True) else ""


def _merge_signature(network: Network, units: tuple[int, ...]) -> str:
    try:
        plan = lower_stage(network, [units], Strategy.MERGE, in_place=True)
    except ScheduleError:
        return IMPOSSIBLE
    copied = {command.unit for command in plan.commands if isinstance(command, Copy)}
    keys = [f"{network.signatures[unit]}{'copied' * (network.units[unit].name in copied)}" for unit in units]
    return stage_digest(Strategy.MERGE, [keys]) or FREE


def network_of(problem: ScheduleProblem) -> Network:
    """The network that a problem is a block of; raises ScheduleError if there is none."""
    if problem.network is None:
        raise ScheduleError(f"problem {problem.name!r} has no network; only units of a network can be measured")
    return problem.network


@dataclass(frozen=True, eq=False)
class MeasuredStage:
    """One stage to be measured: its network's units by index, without groups that launch nothing."""

    network: Network
    groups: tuple[tuple[int, ...], ...]
    strategy: Strategy
    signature: str
    #: Variants of units, by name; units that run as fastest alone are left out.
    variants: Mapping[str, str]

    @property
    def kind(self) -> Kind:
        if self.strategy is Strategy.MERGE:
            return Kind.MERGE
        return Kind.UNIT if sum(map(len, self.groups)) == 1 else Kind.STAGE

    def synchronises(self, engine: str, copies: int) -> int:
        """Number of synchronises in a plan of this number of copies."""
        return copies if len(self.groups) > 1 and Engine(engine).synchronises else 1

    def plan(
        self,
        engine: str,
        choices: Choices,
        copies: int,
        synchronises: int | None = None,
        divided: Divided | None = None,
    ) -> Plan:
        """The stage ``copies`` times in a row.

        ``synchronises`` (one, or one per copy) defaults to the number that it needs.
        """
        count = self.synchronises(engine, copies) if synchronises is None else synchronises
        one = lower_stage(
            self.network,
            self.groups,
            self.strategy,
            engine,
            in_place=True,
            choices=choices,
            variants=self.variants,
            divided=divided,
        )
        return repeat(one, copies, synchronise=count > 1)


def measured_stage(signatures: StageSignatures, problem: ScheduleProblem, stage: PlannedStage) -> MeasuredStage:
    """The measurable form of a problem's stage that launches something."""
    network = network_of(problem)
    members = [tuple(problem.units[unit] for unit in bits(group)) for group in stage.groups(problem)]
    if stage.strategy is Strategy.CONCURRENT:
        members = [units for units in members if any(signatures.unit_key(network, unit) for unit in units)]
    named = {problem.unit_names[unit]: variant for unit, variant in stage.variants}
    return MeasuredStage(network, tuple(members), stage.strategy, signatures.of_stage(problem, stage), named)


def algorithm_of(plan: Plan, copies: int) -> str:
    """The backend's choices for the launches of one copy, separate per stream and sorted; empty if it had no choice."""
    streams: dict[Queue, list[str]] = {}
    for launch in plan.launches[: len(plan.launches) // copies]:
        streams.setdefault(launch.queue, []).append(launch.algorithm)
    chosen = sorted(">".join(algorithms) for algorithms in streams.values())
    return "|".join(chosen) if any(launch.algorithm for launch in plan.launches) else ""


def copies_for(single_us: float, boundary_us: float, target_us: float = TARGET_US) -> int:
    """Number of copies of a plan of ``single_us``, including one synchronise, that take ``target_us``."""
    one_us = max(single_us - boundary_us, 0.1 * single_us, 0.1)
    return max(1, min(MAX_COPIES, math.ceil(target_us / one_us)))


#: Channels of candidate convolutions, each on a 28x28 image, for measuring the price of a synchronise.
BOUNDARY_CHANNELS = (16, 32, 64, 128, 256)
#: The first one of at least this time is used, else the last: the host has to issue it while its predecessor runs.
BOUNDARY_UNIT_US = 60.0


def boundary_network(precision: str) -> Network:
    """Convolutions of increasing size, each a unit with its own input."""
    builder = GraphBuilder("boundary", Precision(precision))
    with builder.block("boundary"):
        outputs = [
            builder.conv(builder.input(f"x{size}", (1, size, 28, 28)), size, kernel=3, padding=1, name=f"conv{size}")
            for size in BOUNDARY_CHANNELS
        ]
    return builder.network(outputs)


def stage_subject(stage: MeasuredStage) -> Subject:
    """``words``: the units by name, grouped; ``groups``: for each unit that launches something its ``signature``,
    ``kind`` and ``operators`` (None if they have no columns, or it runs as a variant). Merged units are one entry.
    """
    network, groups, placement = stage.network, stage.groups, in_place_buffers(stage.network)
    named = [[network.units[unit].name for unit in group] for group in groups]
    around = f"{network.name}, batch {network.source.batch}"
    if stage.strategy is Strategy.MERGE:
        (units,) = groups
        merged: UnitSubject = {
            "signature": "+".join(network.signatures[unit] for unit in units),
            "kind": "merged",
            "operators": step_operators([merged_step(network, units)]),
        }
        return {"words": f"{around}: merged {' + '.join(named[0])}", "groups": [[merged]]}
    entries = [[_entry(stage, unit) for unit in group if placement.moves.get(unit, True)] for group in groups]
    words = " | ".join(", ".join(names) for names in named)
    return {"words": f"{around}: {words}", "groups": [entry for entry in entries if entry]}


def _entry(stage: MeasuredStage, unit: int) -> UnitSubject:
    """A unit of a subject."""
    network, variant = stage.network, stage.variants.get(stage.network.units[unit].name, FASTEST)
    return {
        "signature": network.signatures[unit] + in_place_buffers(network).signature(unit),
        "kind": f"{network.units[unit].kind} by {variant}" if variant else network.units[unit].kind,
        "operators": None if variant else _unit_operators(network, unit),
    }


def _unit_operators(network: Network, unit: int) -> list[OperatorRecord] | None:
    """The operators of a unit; for a unit that only moves data, those of the terms that it copies."""
    moves = in_place_buffers(network).moves
    if unit not in moves:
        return step_operators(unit_steps(network, network.units[unit]))
    types = [network.graph.types[term] for term, _ in moves[unit]]
    return [_plane("concat", value) for value in types]


def step_operators(steps: Sequence[Step]) -> list[OperatorRecord] | None:
    """The records of steps in measurement-set format; None if one of them has none."""
    try:
        return [_operator(step) for step in steps] or None
    except (RecordError, GraphError):
        return None


def _operator(step: Step) -> OperatorRecord:
    """The record of a step; raises RecordError if it has none."""
    read = tuple(operand.type for operand in step.operands)
    weights = tuple(index for index, operand in enumerate(step.operands) if operand.is_weight)
    (written,) = step.outputs
    if not all(operand.is_weight for operand in step.fused_reads):  # a bias is a weight
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
    if isinstance(step.op, MatMul) and 1 in weights and len(read[1].shape) == 2:
        depth = read[1].shape[0]
        rows = TensorType((read[0].elements // depth, depth), read[0].dtype)
        return record_of(Operator("gemm", Gemm(), (rows, read[1]), (1,), step.precision))
    if step.op.kind in KINDS and step.op.kind.endswith("_pool"):
        return record_of(Operator(step.op.kind, step.op, read, (), step.precision))
    if weights or any(value != written for value in read):
        raise RecordError("operands that are weights, or of several shapes")
    if isinstance(step.op, Concat) and len(read) == 1:
        return _plane("concat", written)
    if isinstance(step.op, Relu | Add) and len(read) <= 2:
        # A kernel that reads one value is an activation, one that reads two a sum, possibly followed by an activation.
        return _plane("relu" if len(read) == 1 else "add", written)
    raise RecordError(f"{step.op.kind} of {len(read)} operands")


def _plane(kind: str, value: TensorType) -> OperatorRecord:
    """A record of an element-wise kind, which counts elements: a row for each image and channel."""
    rows = math.prod(value.shape[:2])
    return {"op": kind, "rows": rows, "cols": value.elements // rows}
