"""The simulator as a cost model: prices from the kernel and stage models, bounds, and timelines.

Two engines. The *paper* engine gives each group a stream, issues kernels one by one, and synchronises the device
between two stages unless both have a single group. The *graph* engine replays one CUDA graph: nothing is issued while
it runs, each node costs a little, and a stage of several groups is forked into and joined from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.parallel_pricing import price_concurrent
from iossim.backends.simulator.preparation import PreparedProblem, UnitPrice, price_unit
from iossim.backends.simulator.price_memo import PriceMemo
from iossim.backends.simulator.stage_model import (
    ALONE,
    DEVICE_DEMAND,
    HOST,
    ISSUE_DEMAND,
    MAX_GROUPS,
    StageKernels,
    stage_spans,
)
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.devices.load import device_names
from iossim.devices.profile import DeviceProfile
from iossim.errors import OptionError, ScheduleError
from iossim.execution.engine import Engine
from iossim.execution.placement import Placement, placed
from iossim.execution.timeline import Span
from iossim.ir.network import Block, Network
from iossim.ir.types import Precision
from iossim.lowering.candidates import copy_candidates
from iossim.lowering.unit import StepCandidates, lower_merged, lower_unit
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import Schedule
from iossim.schedule.strategy import Strategy

VERSION = "1"
#: The argument that asks for concats and splits in place.
IN_PLACE = "in-place"

#: Bounds are lowered by this part, so that rounding in the fluid never lifts one above a price.
_ROUNDING = 1e-9


def create(device: DeviceProfile | None, precision: Precision, engine: str, argument: str = "") -> SimulatorCostModel:
    """The simulator of a device under ``paper`` or ``graph``; ``argument`` may be ``in-place``."""
    if argument not in ("", IN_PLACE):
        raise OptionError(
            f"--cost-model simulator:{argument}: the simulator knows no such argument; leave it out, or give {IN_PLACE}"
        )
    if device is None:
        raise OptionError(
            f"--cost-model simulator needs a device; give --device NAME; known: {', '.join(device_names())}"
        )
    device.require(precision)
    return SimulatorCostModel(device, precision, Engine.named(engine), in_place=argument == IN_PLACE)


@dataclass(frozen=True, eq=False)
class StageRun:
    """A stage as the fluid ran it. ``spans``, ``[kernels, 3]``: stream, start and end of each kernel of ``prepared``.

    ``labels`` are the units, or the merged one, and ``groups`` of them run side by side, in the order of their issue.
    """

    duration_us: float
    labels: tuple[str, ...]
    prepared: PreparedProblem
    groups: tuple[tuple[int, ...], ...]
    spans: NDArray[np.float64]


class SimulatorCostModel:
    """Prices stages on ``profile``; equal units are lowered and priced once, in whatever network they come.

    Concats launch a kernel a term, as the published engine does; with ``in_place`` they and splits launch what cannot be
    in place alone, as the backends of :mod:`iossim.backends` do.
    """

    def __init__(
        self, profile: DeviceProfile, precision: Precision, engine: Engine = Engine.PAPER, in_place: bool = False
    ) -> None:
        self.profile = profile
        self.precision = precision
        self.engine = engine
        self.in_place = in_place
        costs = profile.engine
        self.kernel_model = KernelModel(
            profile, costs.graph_gap_factor if engine == Engine.GRAPH else 1.0, Engine(engine).libraries
        )
        # A graph was issued before it runs: its kernels cost the host nothing.
        self._issue_costs = costs if engine == Engine.PAPER else None
        # A core of a processor runs one thread at a time.
        self._room = profile.sm_count if profile.is_processor else MAX_GROUPS
        self._units: dict[tuple[str, str], UnitPrice] = {}
        self._placements: WeakKeyDictionary[Network, Placement] = WeakKeyDictionary()
        self._problems: dict[str, PreparedProblem] = {}
        self._merged: dict[tuple[str, int], UnitPrice | None] = {}
        self._memo = PriceMemo()

    @property
    def identity(self) -> CostModelIdentity:
        version = f"{VERSION}+{self.profile.fingerprint}" + (f"+{IN_PLACE}" if self.in_place else "")
        return CostModelIdentity("simulator", self.profile.name, str(self.precision), self.engine, version)

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; inf for units that do not merge."""
        problem = batch.problem
        prepared = self.prepare(problem)
        prices = np.empty(len(batch), dtype=np.float64)
        concurrent = ~batch.merged
        crowding = self.profile.parameters.crowding
        prices[concurrent] = self._memo.prices(
            StageBatch.concurrent(problem, batch.masks[concurrent]),
            prepared.unit_keys,
            lambda masks: price_concurrent(masks, problem.predecessors, prepared.kernels, crowding, self._room),
        )
        for index in np.flatnonzero(~concurrent).tolist():
            merged = self._merged_unit(problem, int(batch.masks[index]))
            prices[index] = np.inf if merged is None else merged.single_us
        return prices

    def price_changed(self, batch: StageBatch, crowding: float, launches: float) -> Prices:
        """The stages' prices, did kernels crowd each other so much and each launch take ``launches`` times as long."""
        problem = batch.problem
        prepared = self.prepare(problem)
        begin, columns, _ = prepared.kernels
        changed = columns.copy()
        changed[:, HOST] *= launches
        single_us = np.maximum(prepared.per_unit(changed[:, ALONE]), prepared.per_unit(changed[:, HOST]))
        kernels = StageKernels(begin, changed, single_us)
        prices = np.empty(len(batch), dtype=np.float64)
        concurrent = ~batch.merged
        prices[concurrent] = price_concurrent(
            batch.masks[concurrent], problem.predecessors, kernels, crowding, self._room
        )
        for index in np.flatnonzero(~concurrent).tolist():
            merged = self._merged_unit(problem, int(batch.masks[index]))
            prices[index] = np.inf if merged is None else max(merged.device_us, launches * sum(merged.host_us))
        return prices

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        """Microseconds between two neighbouring stages: nothing between two of a single group each."""
        costs = self.profile.engine
        if self.engine == Engine.PAPER:
            return costs.synchronise_us if left_concurrent or right_concurrent else 0.0
        return (costs.join_us if left_concurrent else 0.0) + (costs.fork_us if right_concurrent else 0.0)

    def bounds(self, problem: ScheduleProblem) -> StageBounds:
        """Bounds by the fluid's own rules; resources are host issue, issue capacity, and what all SMs share.

        On no SM do the resident blocks together get more than it has, so neither do they on all SMs. While two or more
        kernels are active, what they ask for counts ``1 + crowding`` times, so a kernel of demand ``d`` that runs beside
        others takes ``(1 + crowding) * d`` of the device's time for each of its own, and one that runs by itself takes all of
        it: at least the smaller of the two, whatever part of it runs which way.
        """
        prepared = self.prepare(problem)
        alone_us, issue, device, host_us = prepared.kernels.columns[:, (ALONE, ISSUE_DEMAND, DEVICE_DEMAND, HOST)].T
        crowded = 1.0 + self.profile.parameters.crowding
        work = np.stack(
            [
                prepared.per_unit(host_us),
                prepared.per_unit(alone_us * np.minimum(1.0, crowded * issue)),
                prepared.per_unit(alone_us * np.minimum(1.0, crowded * device)),
            ],
            axis=1,
        )
        keep = 1.0 - _ROUNDING
        return StageBounds(prepared.per_unit(alone_us) * keep, prepared.kernels.single_us * keep, work * keep)

    def timeline(self, network: Network, schedule: Schedule) -> tuple[Span, ...]:
        """When each kernel of a schedule runs; its last end is the schedule's latency, boundaries included."""
        spans: list[Span] = []
        now = 0.0
        number = 0
        left: bool | None = None
        for block in schedule.blocks:
            for stage in block.stages:
                if left is not None:
                    now += self.price_boundary(left, stage.concurrent)
                left = stage.concurrent
                units = sorted(network.unit_index[name] for name in stage.units)
                merge = stage.strategy is Strategy.MERGE
                duration_us, found = self._stage_spans(network, units, merge, number)
                spans += [
                    Span(span.name, span.unit, number, span.stream, now + span.start_us, now + span.end_us)
                    for span in found
                ]
                now += duration_us
                number += 1
        return tuple(spans)

    def prepare(self, problem: ScheduleProblem) -> PreparedProblem:
        """The problem's kernels, laid out once for each distinct problem."""
        placement = self._placement(self._network(problem)) if self.in_place else None
        texts = [placement.signature(unit) if placement else "" for unit in problem.units]
        key = "\n".join((problem.key, *texts)) if any(texts) else problem.key
        prepared = self._problems.get(key)
        if prepared is None:
            network = self._network(problem)
            units = [
                self._unit(network, unit, (signature, text))
                for unit, signature, text in zip(problem.units, problem.signatures, texts, strict=True)
            ]
            prepared = self._problems[key] = PreparedProblem.of(units)
        return prepared

    def _placement(self, network: Network) -> Placement:
        if network not in self._placements:
            self._placements[network] = placed(network)
        return self._placements[network]

    def _network(self, problem: ScheduleProblem) -> Network:
        if problem.network is None:
            raise ScheduleError(f"problem {problem.name!r} has no network; the simulator prices units of a network")
        if problem.network.precision is not self.precision:
            raise OptionError(
                f"network {problem.network.name!r} computes in {problem.network.precision}, the simulator was made "
                f"for {self.precision}; make both with the same dtype"
            )
        return problem.network

    def _unit(self, network: Network, unit: int, key: tuple[str, str]) -> UnitPrice:
        price = self._units.get(key)
        if price is None:
            moves = self._placement(network).moves if self.in_place else {}
            if unit in moves:
                types = network.graph.types
                steps: StepCandidates = tuple(copy_candidates(types[term]) for term, _ in moves[unit])
            else:
                steps = lower_unit(network, network.units[unit])
            price = self._units[key] = price_unit(self.kernel_model, steps, self._issue_costs)
        return price

    def _merged_unit(self, problem: ScheduleProblem, mask: int) -> UnitPrice | None:
        """The stacked convolution of the units in ``mask``, None where they do not merge."""
        key = (problem.key, mask)
        if key not in self._merged:
            units = [problem.units[index] for index in bits(mask)]
            self._merged[key] = self._lower_merged(self._network(problem), units)
        return self._merged[key]

    def _lower_merged(self, network: Network, units: Sequence[int]) -> UnitPrice | None:
        try:
            steps = lower_merged(network, units)
        except ScheduleError:
            return None
        return price_unit(self.kernel_model, steps, self._issue_costs)

    def run_stage(self, network: Network, units: Sequence[int], merge: bool, number: int = 0) -> StageRun:
        """One stage of units of a network, in ascending order; raises ScheduleError, naming ``number``, if they do not merge."""
        if merge:
            merged = self._lower_merged(network, units)
            if merged is None:
                names = ", ".join(network.units[unit].name for unit in units)
                raise ScheduleError(f"stage {number}: units {names} do not merge; run them concurrently")
            label = "+".join(network.units[unit].name for unit in units)
            prepared = PreparedProblem.of([merged])
            labels: tuple[str, ...] = (label,)
            mask, predecessors, groups = 1, np.zeros(1, dtype=np.uint64), [1]
        else:
            problem = ScheduleProblem.of_block(network, Block(f"stage {number}", tuple(units)))
            prepared = self.prepare(problem)
            labels, mask, predecessors = problem.unit_names, problem.full, problem.predecessors
            groups = problem.groups(mask)
        table = np.zeros((len(prepared.kernels.columns), 3), dtype=np.float64)
        duration_us = stage_spans(
            np.uint64(mask),
            predecessors,
            *prepared.kernels,
            self.profile.parameters.crowding,
            table,
            self._room,
        )
        return StageRun(duration_us, labels, prepared, tuple(tuple(bits(group)) for group in groups), table)

    def _stage_spans(
        self, network: Network, units: Sequence[int], merge: bool, number: int
    ) -> tuple[float, list[Span]]:
        """Price and spans of one stage, from its own start."""
        run = self.run_stage(network, units, merge, number)
        begin = run.prepared.kernels.kernel_begin.tolist()
        spans = [
            Span(
                name,
                label,
                number,
                int(run.spans[kernel, 0]),
                float(run.spans[kernel, 1]),
                float(run.spans[kernel, 2]),
            )
            for unit, label in enumerate(run.labels)
            for kernel, name in zip(range(begin[unit], begin[unit + 1]), run.prepared.units[unit].names, strict=True)
        ]
        return run.duration_us, sorted(spans, key=lambda span: (span.stream, span.start_us))
