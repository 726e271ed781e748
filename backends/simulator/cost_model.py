"""The simulator as a cost model: prices from the kernel and stage models, bounds, and timelines.

Two engines. The *paper* engine gives each group a stream, issues kernels one by one, and synchronises the device
between two stages unless both have a single group. The *graph* engine replays one CUDA graph: nothing is issued while
it runs, each node costs a little, and a stage of several groups is forked into and joined from. The *partition* engine is
the graph engine with SMs of its own for each group of a stage (:mod:`iossim.backends.simulator.partition`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import fsum
from weakref import WeakKeyDictionary

import numpy as np

from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.parallel_pricing import price_concurrent
from iossim.backends.simulator.partition import PreparedPartition, divided_spans
from iossim.backends.simulator.preparation import PreparedProblem, StageRun, UnitPrice, host_issue_us, price_unit
from iossim.backends.simulator.price_memo import PriceMemo
from iossim.backends.simulator.stage_bounds import stage_bounds, stage_bounds_of_any
from iossim.backends.simulator.stage_facts import stage_facts
from iossim.backends.simulator.stage_model import (
    ALONE,
    HOST,
    MAX_GROUPS,
    StageKernels,
    stage_spans,
)
from iossim.backends.simulator.structured_error import StructuredError
from iossim.base.errors import OptionError, ScheduleError
from iossim.cost.model import CostModelIdentity, Prices, StageBounds, Way
from iossim.cost.stage_facts import StageFacts
from iossim.execution.backend import Divided
from iossim.execution.engine import Engine
from iossim.execution.in_place import InPlaceBuffers, in_place_buffers
from iossim.execution.timeline import Span
from iossim.hardware.green_contexts import part_sizes
from iossim.hardware.load import device_names
from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.lowering.target import copy_candidates, target_of
from iossim.hardware.lowering.unit import StepCandidates, lower_merged, lower_unit
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Block, Network
from iossim.ir.types import Precision
from iossim.schedule.batch import FASTEST, StageBatch
from iossim.schedule.problem import Masks, ScheduleProblem, bits
from iossim.schedule.schedule import Schedule, Stage
from iossim.schedule.strategy import Strategy

VERSION = "1"
#: The argument that asks for concats and splits in place, and the one that asks for a structured error, with its seed.
IN_PLACE = "in-place"
STRUCTURED_ERROR = "structured-error="

#: What the price of a unit depends on: its signature, its placement, and its variant.
UnitKey = tuple[str, str, str]


def create(device: DeviceProfile | None, precision: Precision, engine: str, argument: str = "") -> SimulatorCostModel:
    """The simulator of a device under ``paper``, ``graph`` or ``partition``; ``argument`` may be ``in-place``.

    ``structured-error=SEED`` makes it one that is off (:mod:`iossim.backends.simulator.structured_error`).
    """
    seed = argument.removeprefix(STRUCTURED_ERROR) if argument.startswith(STRUCTURED_ERROR) else ""
    if argument not in ("", IN_PLACE) and not seed.isdecimal():
        raise OptionError(
            f"`cost_model` simulator:{argument}: the simulator knows no such argument; leave it out, or give {IN_PLACE}"
        )
    if device is None:
        raise OptionError(
            f"`cost_model` simulator needs a device; give `device` NAME; known: {', '.join(device_names())}"
        )
    device.require(precision)
    error = StructuredError(int(seed)) if seed else None
    return SimulatorCostModel(device, precision, Engine.named(engine), argument == IN_PLACE, error)


class SimulatorCostModel:
    """Prices stages on ``profile``; equal units are lowered and priced once, in whatever network they come.

    Concats launch a kernel a term, as the published engine does; with ``in_place`` they and splits launch what cannot be
    in place alone, as the backends of :mod:`iossim.backends` do. With an ``error`` its units are off.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        precision: Precision,
        engine: Engine = Engine.PAPER,
        in_place: bool = False,
        error: StructuredError | None = None,
    ) -> None:
        self.profile = profile
        self.precision = precision
        self.engine = engine
        self.in_place = in_place
        self._error = error
        costs = profile.engine
        recorded = Engine(engine).is_recorded
        runs_as = costs.graph_gap_factor if recorded else 1.0, Engine(engine).libraries_on(profile.architecture)
        self.kernel_model = KernelModel(profile, *runs_as)
        #: Of each size that a part of a divided device may have; empty where it is not divided.
        self._parts = {
            sms: KernelModel(profile, *runs_as, sms=sms)
            for sms in (part_sizes(profile) if engine == Engine.PARTITION else ())
        }
        # A graph was issued before it runs: its kernels cost the host nothing.
        self._issue_costs = None if recorded else costs
        self._max_kernels = profile.sm_count if target_of(profile).runs_one_kernel_per_sm else MAX_GROUPS
        self._units: dict[tuple[UnitKey, int | None], UnitPrice] = {}
        self._placements: WeakKeyDictionary[Network, InPlaceBuffers] = WeakKeyDictionary()
        self._problems: dict[str, PreparedProblem] = {}
        self._merged: dict[tuple[str, int], UnitPrice | None] = {}
        self._partitions: dict[str, PreparedPartition] = {}
        self._ways: dict[tuple[str, str], tuple[Way, ...]] = {}
        self._memo = PriceMemo()

    @property
    def identity(self) -> CostModelIdentity:
        version = f"{VERSION}+{self.profile.fingerprint}" + (f"+{IN_PLACE}" if self.in_place else "")
        version += f"+{STRUCTURED_ERROR}{self._error.seed}" if self._error else ""
        return CostModelIdentity("simulator", self.profile.name, str(self.precision), self.engine, version)

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; inf for units that do not merge, or merge as a variant.

        Stages whose units run as the same variants are priced together. Raises PlanError for a variant that is not known.
        """
        if batch.variants is None:
            return self._price_alike(batch)
        prices = np.empty(len(batch), dtype=np.float64)
        for variants, stages in batch.by_variants():
            part = batch.take(stages)
            prices[stages] = self._price_alike(part, variants)
            if any(variants):
                prices[stages[part.merged]] = np.inf
        return prices

    def _price_alike(self, batch: StageBatch, variants: Sequence[str] = ()) -> Prices:
        """The prices of stages whose units run as ``variants``, shape ``[len(batch)]``."""
        problem = batch.problem
        prices = np.empty(len(batch), dtype=np.float64)
        concurrent = ~batch.merged
        stages = StageBatch.concurrent(problem, batch.masks[concurrent])
        prices[concurrent] = self._memo.prices(stages, *self._pricing(problem, variants))
        for index in np.flatnonzero(~concurrent).tolist():
            merged = self._merged_unit(problem, int(batch.masks[index]))
            prices[index] = np.inf if merged is None else merged.single_us
        return prices

    def _pricing(self, problem: ScheduleProblem, variants: Sequence[str]) -> tuple[Masks, Callable[[Masks], Prices]]:
        """What tells the units of a problem apart, and what prices its concurrent stages."""
        if self._parts:
            divided = self._partition(problem, variants)
            return divided.unit_keys, lambda masks: divided.price(masks, problem.predecessors)
        prepared = self.prepare(problem, variants)
        interference = self.profile.parameters.interference
        return prepared.unit_keys, lambda masks: price_concurrent(
            masks, problem.predecessors, prepared.kernels, interference, self._max_kernels
        )

    def at(self, profile: DeviceProfile | None = None, engine: Engine | None = None) -> SimulatorCostModel:
        """The simulator of another profile, or under another engine; all else is the same."""
        chosen = profile or self.profile, self.precision, engine or self.engine
        return SimulatorCostModel(*chosen, self.in_place, self._error)

    def price_changed(self, batch: StageBatch, interference: float, launches: float) -> Prices:
        """The stages' prices, did kernels interfere so much and each launch take ``launches`` times as long; us,
        shape ``[len(batch)]``.
        """
        if self._parts:
            # Groups on SMs of their own, issued before they run: neither changes anything.
            return self.price_stages(batch)
        prices = np.empty(len(batch), dtype=np.float64)
        for variants, stages in batch.by_variants():
            part = batch.take(stages)
            prices[stages] = self._price_changed_alike(part, variants, interference, launches)
        return prices

    def _price_changed_alike(
        self, batch: StageBatch, variants: Sequence[str], interference: float, launches: float
    ) -> Prices:
        problem = batch.problem
        prepared = self.prepare(problem, variants)
        begin, columns, _ = prepared.kernels
        changed = columns.copy()
        changed[:, HOST] *= launches
        single_us = np.maximum(prepared.per_unit(changed[:, ALONE]), prepared.per_unit(changed[:, HOST]))
        kernels = StageKernels(begin, changed, single_us)
        prices = np.empty(len(batch), dtype=np.float64)
        concurrent = ~batch.merged
        prices[concurrent] = price_concurrent(
            batch.masks[concurrent], problem.predecessors, kernels, interference, self._max_kernels
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

    def variants(self, problem: ScheduleProblem) -> tuple[tuple[str, ...], ...]:
        """For each unit the variants that it may be named as in a stage: every choice of a candidate for each of its steps."""
        network = self._network(problem)
        return tuple(self.kernel_model.variants(self._steps(network, unit)) for unit in problem.units)

    def ways(self, problem: ScheduleProblem) -> tuple[tuple[Way, ...], ...]:
        """For each unit its variants with their workspaces, what is fastest alone first."""
        network = self._network(problem)
        found = []
        for unit, key in zip(problem.units, self._keys(problem), strict=True):
            if key not in self._ways:
                self._ways[key] = self.kernel_model.ways(self._steps(network, unit))
            found.append(self._ways[key])
        return tuple(found)

    def merged_workspace_bytes(self, problem: ScheduleProblem, mask: int) -> int:
        """What the units need as one stacked convolution; none where they do not merge."""
        try:
            steps = lower_merged(self._network(problem), [problem.units[index] for index in bits(mask)], self.profile)
        except ScheduleError:
            return 0
        return max(candidate.workspace_bytes for candidate, _ in self.kernel_model.chosen(steps))

    def bounds(self, problem: ScheduleProblem, *, of_any_variant: bool = False) -> StageBounds:
        """Bounds by the fluid's own rules (:mod:`iossim.backends.simulator.stage_bounds`).

        These hold of stages whose units run as what is fastest alone, or, ``of_any_variant``, whatever they run as.
        """
        if self._parts:
            return self._partition_of_any(problem).bounds() if of_any_variant else self._partition(problem).bounds()
        interference = self.profile.parameters.interference
        if of_any_variant:
            return stage_bounds_of_any([PreparedProblem.of(ways) for ways in self._every_way(problem)], interference)
        return stage_bounds(self.prepare(problem), interference)

    def _partition_of_any(self, problem: ScheduleProblem) -> PreparedPartition:
        """The least of each of the problem's units over its variants, on parts of each size."""
        network = self._network(problem)
        ways = []
        for names, unit, key in zip(self.variants(problem), problem.units, self._keys(problem), strict=True):
            keys = [(*key, name) for name in (FASTEST, *names)]
            whole = [self._unit(network, unit, one) for one in keys]
            by_size = [(sms, [self._unit(network, unit, one, sms) for one in keys]) for sms in self._parts]
            ways.append(PreparedPartition.of(self.profile, self.kernel_model.rates, whole, by_size))
        return PreparedPartition.least(ways)

    def _every_way(self, problem: ScheduleProblem) -> Iterator[list[UnitPrice]]:
        """For each unit its price as each of its variants, the fastest alone first."""
        network = self._network(problem)
        for names, unit, (signature, text) in zip(
            self.variants(problem), problem.units, self._keys(problem), strict=True
        ):
            yield [self._unit(network, unit, (signature, text, name)) for name in (FASTEST, *names)]

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
                duration_us, found = self._stage_spans(network, stage, number)
                spans += [replace(span, start_us=now + span.start_us, end_us=now + span.end_us) for span in found]
                now += duration_us
                number += 1
        return tuple(spans)

    def prepare(self, problem: ScheduleProblem, variants: Sequence[str] = ()) -> PreparedProblem:
        """The problem's kernels, its units run as ``variants`` (none: as what is fastest alone, each laid out once)."""
        keys = self._keys(problem)
        key = "\n".join((problem.key, *(text for _, text in keys))) if self.in_place else problem.key
        if not any(variants) and key in self._problems:
            return self._problems[key]
        network = self._network(problem)
        names = variants or (FASTEST,) * len(problem)
        prepared = PreparedProblem.of(
            [
                self._unit(network, unit, (*own, variant))
                for unit, own, variant in zip(problem.units, keys, names, strict=True)
            ]
        )
        if not any(variants):
            self._problems[key] = prepared
        return prepared

    def _partition(self, problem: ScheduleProblem, variants: Sequence[str] = ()) -> PreparedPartition:
        """The problem's units on parts of each size, run as ``variants`` (none: as what is fastest alone there)."""
        keys = self._keys(problem)
        key = "\n".join((problem.key, *(text for _, text in keys), *variants))
        if key not in self._partitions:
            network = self._network(problem)
            names = variants or (FASTEST,) * len(problem)
            own = [(unit, (*key, name)) for unit, key, name in zip(problem.units, keys, names, strict=True)]
            self._partitions[key] = PreparedPartition.of(
                self.profile,
                self.kernel_model.rates,
                [self._unit(network, *unit) for unit in own],
                [(sms, [self._unit(network, *unit, sms) for unit in own]) for sms in self._parts],
            )
        return self._partitions[key]

    def _keys(self, problem: ScheduleProblem) -> list[tuple[str, str]]:
        """The signature of each unit, and what its placement changes of its work."""
        texts = [""] * len(problem)
        if self.in_place:
            placement = self._placement(self._network(problem))
            texts = [placement.signature(unit) for unit in problem.units]
        return list(zip(problem.signatures, texts, strict=True))

    def _placement(self, network: Network) -> InPlaceBuffers:
        if network not in self._placements:
            self._placements[network] = in_place_buffers(network)
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

    def _unit(self, network: Network, unit: int, key: UnitKey, sms: int | None = None) -> UnitPrice:
        """A unit's price on all SMs, or on a part of ``sms`` of them."""
        price = self._units.get((key, sms))
        if price is None:
            model = self.kernel_model if sms is None else self._parts[sms]
            price = price_unit(model, self._steps(network, unit), self._issue_costs, key[2])
            price = self._units[key, sms] = price if self._error is None else self._error.of(price, key[0])
        return price

    def _steps(self, network: Network, unit: int) -> StepCandidates:
        """The candidates of each step of a unit, as it lies in its network."""
        moves = self._placement(network).moves if self.in_place else {}
        if unit in moves:
            return tuple(copy_candidates(network.graph.types[term], self.profile) for term, _ in moves[unit])
        return lower_unit(network, network.units[unit], self.profile)

    def price_candidates(self, candidates: Sequence[Candidate]) -> Prices:
        """Microseconds of each as a stage of its own: the longer of host and device time; inf of what cannot run."""
        if not candidates:
            return np.zeros(0)
        alone_us = self.kernel_model.alone_us([kernel for one in candidates for kernel in one.kernels])
        begin = np.cumsum([0, *(len(one.kernels) for one in candidates[:-1])])
        prices: Prices = np.add.reduceat(alone_us, begin)
        if self._issue_costs is not None:
            costs = self._issue_costs
            host_us = [
                fsum(host_issue_us(one, place, costs) for place in range(len(one.kernels))) for one in candidates
            ]
            prices = np.maximum(prices, host_us)
        known = [one.is_in(self.kernel_model.libraries) for one in candidates]
        return np.where(known, prices, np.inf)

    def _merged_unit(self, problem: ScheduleProblem, mask: int) -> UnitPrice | None:
        """The stacked convolution of the units in ``mask``, None where they do not merge."""
        key = (problem.key, mask)
        if key not in self._merged:
            units = [problem.units[index] for index in bits(mask)]
            self._merged[key] = self._lower_merged(self._network(problem), units)
        return self._merged[key]

    def _lower_merged(self, network: Network, units: Sequence[int]) -> UnitPrice | None:
        try:
            steps = lower_merged(network, units, self.profile)
        except ScheduleError:
            return None
        price = price_unit(self.kernel_model, steps, self._issue_costs)
        signature = "merged " + " ".join(network.signatures[unit] for unit in units)
        return price if self._error is None else self._error.of(price, signature)

    def stage_facts(self, network: Network, stage: Stage) -> StageFacts:
        """What holds up a stage of a network's schedule; raises ScheduleError if its units are to merge and do not."""
        run = self.run_stage(network, stage)
        part_of = {unit: len(sms) for group, sms in zip(run.groups, run.sms, strict=False) for unit in group}
        models = [
            self._parts[part_of[unit]] if unit in part_of else self.kernel_model for unit in range(len(run.labels))
        ]
        return stage_facts(run, models, network, stage)

    def run_stage(self, network: Network, stage: Stage, number: int = 0) -> StageRun:
        """One stage of a network's schedule; raises ScheduleError, naming ``number``, if its units are to merge and do not."""
        units = sorted(network.unit_index[name] for name in stage.units)
        if stage.strategy is Strategy.MERGE:
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
            prepared = self.prepare(problem, [stage.variants.get(name, FASTEST) for name in problem.unit_names])
            labels, mask, predecessors = problem.unit_names, problem.full, problem.predecessors
            groups = problem.groups(mask)
            if self._parts and len(groups) > 1:
                return self._run_divided(problem, stage, [bits(group) for group in groups])
        table = np.zeros((len(prepared.kernels.columns), 3), dtype=np.float64)
        duration_us = stage_spans(
            np.uint64(mask),
            predecessors,
            *prepared.kernels,
            self.profile.parameters.interference,
            table,
            self._max_kernels,
        )
        return StageRun(duration_us, labels, prepared, tuple(tuple(bits(group)) for group in groups), table)

    def _run_divided(self, problem: ScheduleProblem, stage: Stage, groups: Sequence[Sequence[int]]) -> StageRun:
        """A stage of several groups, each on SMs of its own: all as much slower as DRAM and power make the whole."""
        network = self._network(problem)
        names = [stage.variants.get(name, FASTEST) for name in problem.unit_names]
        divided = self._partition(problem, names)
        sms = divided.divide(groups)
        part_of = {unit: len(part) for group, part in zip(groups, sms, strict=True) for unit in group}
        prepared = PreparedProblem.of(
            [
                self._unit(network, problem.units[unit], (*key, names[unit]), part_of[unit])
                for unit, key in enumerate(self._keys(problem))
            ]
        )
        (price_us,) = divided.price(np.array([problem.full], dtype=np.uint64), problem.predecessors).tolist()
        return StageRun(
            price_us,
            problem.unit_names,
            prepared,
            tuple(map(tuple, groups)),
            divided_spans(prepared, groups, sms, price_us),
            sms,
        )

    def divided(self, network: Network) -> Divided:
        """The SMs of the groups of a stage of a network, as its price has them."""

        def divide(groups: Sequence[Sequence[int]], variants: Mapping[str, str]) -> tuple[range, ...]:
            units = tuple(sorted(unit for group in groups for unit in group))
            problem = ScheduleProblem.of_block(network, Block("stage", units))
            names = [variants.get(name, FASTEST) for name in problem.unit_names]
            place = {unit: index for index, unit in enumerate(problem.units)}
            return self._partition(problem, names).divide([[place[unit] for unit in group] for group in groups])

        return divide

    def _stage_spans(self, network: Network, stage: Stage, number: int) -> tuple[float, list[Span]]:
        """Price and spans of one stage, from its own start."""
        run = self.run_stage(network, stage, number)
        begin = run.prepared.kernels.kernel_begin.tolist()
        sms_of = {unit: sms for group, sms in zip(run.groups, run.sms, strict=False) for unit in group}
        spans = [
            Span(
                name,
                label,
                number,
                int(run.spans[kernel, 0]),
                float(run.spans[kernel, 1]),
                float(run.spans[kernel, 2]),
                sms_of.get(unit),
            )
            for unit, label in enumerate(run.labels)
            for kernel, name in zip(range(begin[unit], begin[unit + 1]), run.prepared.units[unit].names, strict=True)
        ]
        return run.duration_us, sorted(spans, key=lambda span: (span.stream, span.start_us))
