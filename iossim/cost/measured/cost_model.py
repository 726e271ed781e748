"""Prices by measurement: stages run on a backend, several times in a row, and every measurement is stored.

Equal work is measured once: in this process, and, through the store, on the same device with the same libraries.
The algorithm of a unit is recorded but not part of the key: a backend may choose otherwise in the next process;
settings that restrict its choice are options of its context. Stages are measured in a seeded random order, a chunk at
a time; each chunk, or every two seconds of it, is committed to the store before its prices are returned.

Under the paper engine the price of a boundary is that of a synchronise, measured once and subtracted from stage times.
Under the graph engine stages include their forks and joins, and a boundary costs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np

from iossim.base.errors import OptionError, Progress, ignore
from iossim.cost.capabilities import FREE, IMPOSSIBLE, MeasuredBy
from iossim.cost.measured.record import Kind, MeasurementRecord, boundary_us
from iossim.cost.measured.stage_plans import (
    BOUNDARY_UNIT_US,
    TARGET_US,
    MeasuredStage,
    StageSignatures,
    algorithm_of,
    boundary_network,
    copies_for,
    measured_stage,
    network_of,
    stage_subject,
)
from iossim.cost.measured.store import MeasurementStore
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.execution.backend import (
    Backend,
    BackendError,
    Choices,
    Context,
    OffersVariants,
    Samples,
    Timing,
    backend_from,
    context_of,
    divided_by,
)
from iossim.execution.engine import Engine
from iossim.execution.plan import Plan
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch, Strategy, UnitVariant
from iossim.schedule.planned_stage import PlannedStage, planned_of
from iossim.schedule.problem import ScheduleProblem

#: Maximum number of stages measured in one random order, and the time after which measurements are committed.
CHUNK = 32
COMMIT_US = 2e6
#: Rounds to determine the number of copies of a stage, and those before them.
QUICK_ROUNDS, QUICK_WARM_UP = 3, 1


@dataclass
class MeasuredCostModel:
    """Prices stages by ``backend``, through ``store``.

    ``timing`` has the number of rounds of a plan, and the seed of the order. A plan repeats its stage to take about
    ``target_us`` or more. With ``again`` the store is not read, and all is measured anew. ``progress`` counts chunks.
    """

    measured_by = MeasuredBy.DEVICE
    backend: Backend
    store: MeasurementStore
    timing: Timing = field(default_factory=Timing)
    target_us: float = TARGET_US
    again: bool = False
    progress: Progress = ignore
    #: Number of stages that this model measured.
    measured: int = 0
    _signatures: StageSignatures = field(default_factory=StageSignatures)
    _records: dict[str, MeasurementRecord] = field(default_factory=dict)
    _prices_us: dict[str, float] = field(default_factory=dict)
    _single_us: dict[str, float] = field(default_factory=dict)
    _boundary_us: float | None = None
    _variants: dict[str, tuple[UnitVariant, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._choices_of: Callable[[Network], Choices] = cache(self.backend.choices)
        self._context_of: Callable[[Network], Context] = cache(partial(context_of, self.backend))

    @property
    def context(self) -> Context:
        return self.backend.context

    @property
    def identity(self) -> CostModelIdentity:
        return identity_of(self.context.timed(self.timing))

    def price_keys(self, problem: ScheduleProblem) -> Sequence[str]:
        return self._signatures.price_keys(problem)

    def signatures(self, batch: StageBatch) -> list[str]:
        """The signature of each stage, extended by the network's own part of the context."""
        own = self._own(network_of(batch.problem))
        return [each if each in (FREE, IMPOSSIBLE) else each + own for each in self._signatures.of_batch(batch)]

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; inf for units that do not merge.

        Measures stages that neither this model nor the store knows. Raises BackendError if the backend cannot run them,
        StoreError if the store fails, ScheduleError for a problem without a network.
        """
        boundary_us = self.boundary_us()
        for key, record in self.measure(batch).items():
            if key not in self._prices_us:
                self._prices_us[key] = record.copy_us(boundary_us)
        return price_signatures(self.signatures(batch), self._prices_us)

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return self.boundary_us() if left_concurrent or right_concurrent else 0.0

    def variants(self, problem: ScheduleProblem) -> tuple[tuple[UnitVariant, ...], ...]:
        """Variants of each unit that the backend offers, and times when they are first asked for.

        Raises OptionError where it offers none.
        """
        if not isinstance(self.backend, OffersVariants):
            raise OptionError(
                f"`company`: backend {self.context.backend} knows one kernel of each unit; leave it out, or measure by "
                "cupy_cudnn"
            )
        network, found = network_of(problem), []
        for unit in problem.units:
            key = network.signatures[unit]
            if key not in self._variants:
                self._variants[key] = self.backend.variants(network, network.units[unit].name)
            found.append(self._variants[key])
        return tuple(found)

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        """None: measurements give no bound for unmeasured stages."""
        return None

    def measure(self, *batches: StageBatch) -> dict[str, MeasurementRecord]:
        """The record of each stage by signature, measured if missing; without free and impossible stages."""
        self.recall(*batches)
        missing = self._missing(*batches)
        done = 0
        for chunk in _chunks(missing):
            self._time_once(chunk)
            for part in self._parts(chunk):
                self._measure_part(part)
                done += len(part)
                self.progress(done, len(missing))
        return self.known(*batches)

    def known(self, *batches: StageBatch) -> dict[str, MeasurementRecord]:
        """The available records, by signature: measured, or recalled from the store."""
        keys = [key for batch in batches for key in self.signatures(batch)]
        return {key: self._records[key] for key in keys if key in self._records}

    def recall(self, *batches: StageBatch) -> int:
        """Look the stages up in the store; returns the number of distinct ones still to be measured."""
        stages = self._missing(*batches)
        for context in dict.fromkeys(self._context_of(stage.network) for stage in stages) if not self.again else ():
            keys = {stage.signature: self._key(stage) for stage in stages if self._context_of(stage.network) == context}
            found = self.store.newest(context, keys, self.timing.cold)
            self._records |= {keys[signature]: record for signature, record in found.items()}
        return sum(self._key(stage) not in self._records for stage in stages)

    def boundary_us(self) -> float:
        """Overhead between two stages, one of which has several groups."""
        if not Engine(self.context.engine).synchronises:
            return 0.0
        if self._boundary_us is None:
            known = None
            if not self.again:
                context = self._context_of(boundary_network(self.context.precision))
                known = boundary_us(self.store.of_kind(context, Kind.BOUNDARY, self.timing.cold))
            self._boundary_us = self._measure_boundary() if known is None else known
        return self._boundary_us

    def _missing(self, *batches: StageBatch) -> list[MeasuredStage]:
        """The distinct stages without a record, in a seeded random order independent of the batches' order."""
        first: dict[str, tuple[ScheduleProblem, PlannedStage]] = {}
        for batch in batches:
            for key, stage in zip(self.signatures(batch), planned_of(batch), strict=True):
                if key not in self._records and key not in (FREE, IMPOSSIBLE):
                    first.setdefault(key, (batch.problem, stage))
        stages = [measured_stage(self._signatures, *first[key]) for key in sorted(first)]
        random.Random(self.timing.seed).shuffle(stages)
        return stages

    def _key(self, stage: MeasuredStage) -> str:
        return stage.signature + self._own(stage.network)

    def _own(self, network: Network) -> str:
        """The network's part of the key: equal stages with different image layouts are not equal work."""
        layout = self._context_of(network).layout
        return "" if layout == self.context.layout else f" {layout}"

    def _parts(self, chunk: Sequence[MeasuredStage]) -> Iterator[list[MeasuredStage]]:
        """A chunk in parts that take about ``COMMIT_US`` to measure, or a single longer stage."""
        part: list[MeasuredStage] = []
        taken_us = 0.0
        for stage in chunk:
            stage_us = max(self.target_us, self._single_us[self._key(stage)])
            stage_us *= self.timing.rounds + self.timing.warm_up
            if part and taken_us + stage_us > COMMIT_US:
                yield part
                part, taken_us = [], 0.0
            part.append(stage)
            taken_us += stage_us
        if part:
            yield part

    def _measure_part(self, stages: Sequence[MeasuredStage]) -> None:
        """Measure stages of one network together, commit them, and then remember them."""
        boundary = self.boundary_us()
        copies = [
            # With cold caches, a second copy would find everything in the caches.
            1 if self.timing.cold else copies_for(self._single_us[self._key(stage)], boundary, self.target_us)
            for stage in stages
        ]
        plans = [self._plan(stage, count) for stage, count in zip(stages, copies, strict=True)]
        taken = self._run(stages[0].network, plans, self.timing, stages)
        records = [
            self._record(stage.kind, stage, count, stage.synchronises(self.context.engine, count), plan, samples)
            for stage, count, plan, samples in zip(stages, copies, plans, taken, strict=True)
        ]
        self.store.add(records)
        self._records.update(zip(map(self._key, stages), records, strict=True))
        self.measured += len(records)

    def _plan(self, stage: MeasuredStage, copies: int, synchronises: int | None = None) -> Plan:
        choices, divided = self._choices_of(stage.network), divided_by(self.backend, stage.network)
        return stage.plan(self.context.engine, choices, copies, synchronises, divided)

    def _record(
        self, kind: Kind, stage: MeasuredStage, copies: int, synchronises: int, plan: Plan, samples: Samples
    ) -> MeasurementRecord:
        return MeasurementRecord(
            self._context_of(stage.network),
            kind,
            f"boundary {stage.signature}" if kind is Kind.BOUNDARY else stage.signature,
            copies,
            synchronises,
            samples,
            algorithm=algorithm_of(plan, copies),
            is_cold=self.timing.cold,
            subject=stage_subject(stage),
        )

    def _time_once(self, stages: Sequence[MeasuredStage]) -> None:
        """Run a few rounds of one copy of each stage of one network, if not yet timed like this."""
        new = [stage for stage in stages if self._key(stage) not in self._single_us]
        if not new:
            return
        plans = [self._plan(stage, 1) for stage in new]
        quick = Timing(QUICK_ROUNDS, QUICK_WARM_UP, self.timing.seed, self.timing.cold)
        for stage, samples in zip(new, self._run(new[0].network, plans, quick, new), strict=True):
            self._single_us[self._key(stage)] = samples.median_us

    def _run(
        self, network: Network, plans: Sequence[Plan], timing: Timing, stages: Sequence[MeasuredStage]
    ) -> list[Samples]:
        taken = self.backend.measure(network, plans, timing)
        for stage, samples in zip(stages, taken, strict=True):
            if not samples.times_us:
                names = ", ".join(network.units[unit].name for group in stage.groups for unit in group)
                raise BackendError(
                    f"{self.context.backend} accepted no round of {names}: {samples.rejected} were disturbed; "
                    "measure when the machine is idle"
                )
        return taken

    def _measure_boundary(self) -> float:
        """Measure a unit with and without a synchronise after each copy, commit both, and return the difference."""
        network = boundary_network(self.context.precision)
        problem = ScheduleProblem.of_block(network, network.blocks[0])
        alone = [PlannedStage(1 << unit, Strategy.CONCURRENT) for unit in range(len(problem))]
        stages = [measured_stage(self._signatures, problem, one) for one in alone]
        self._time_once(stages)
        singles = [self._single_us[self._key(stage)] for stage in stages]
        unit = next((unit for unit, us in enumerate(singles) if us >= BOUNDARY_UNIT_US), len(singles) - 1)
        stage = stages[unit]
        copies = max(8, copies_for(singles[unit], 0.0, 2 * self.target_us))
        plans = [self._plan(stage, copies, count) for count in (1, copies)]
        taken = self._run(network, plans, self.timing, [stage, stage])
        records = [
            self._record(Kind.BOUNDARY, stage, copies, count, plan, samples)
            for count, plan, samples in zip((1, copies), plans, taken, strict=True)
        ]
        self.store.add(records)
        found = boundary_us(records)
        assert found is not None, "the two records are a pair"
        return found


def _chunks(stages: Sequence[MeasuredStage]) -> Iterator[list[MeasuredStage]]:
    """Stages in parts that are measured together: each of one network, and limited in size."""
    by_network: dict[Network, list[MeasuredStage]] = {}
    for stage in stages:
        by_network.setdefault(stage.network, []).append(stage)
    for of_one in by_network.values():
        for begin in range(0, len(of_one), CHUNK):
            yield of_one[begin : begin + CHUNK]


def price_signatures(signatures: Sequence[str], prices_us: Mapping[str, float]) -> Prices:
    """The price of each signature, microseconds: 0 for stages that launch nothing, inf for those without a price."""
    return np.array(
        [0.0 if signature == FREE else prices_us.get(signature, np.inf) for signature in signatures], dtype=np.float64
    )


def identity_of(context: Context) -> CostModelIdentity:
    """The identity of prices measured in a context; its version contains everything not in the other fields."""
    named = [f"driver {context.driver}"] if context.driver else []
    named += [*(" ".join(pair) for pair in context.libraries), *("=".join(pair) for pair in context.options)]
    return CostModelIdentity(
        context.backend, context.device, context.precision, context.engine, ", ".join([context.layout, *named])
    )


def create(
    name: str,
    device: DeviceProfile | None,
    precision: Precision,
    engine: str,
    argument: str = "",
    store: Path | None = None,
) -> MeasuredCostModel:
    """The backend called ``name`` as a cost model; ``argument`` has its options: ``threads=2,pin=no``.

    A ``device`` must be the backend's own. Raises OptionError if it is not, or for an invalid option;
    BackendError if the backend cannot run here.
    """
    backend = backend_from(f"{name}:{argument}", precision, engine)
    own = backend.context.device
    if device is not None and device.name != own:
        raise OptionError(f"`cost_model` {name} measures {own!r}, not {device.name!r}; leave out `device`")
    return MeasuredCostModel(backend, MeasurementStore(store))
