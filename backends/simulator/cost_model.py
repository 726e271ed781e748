"""The simulator as a cost model: it prices stages, knows the variants of units, and runs stages of schedules.

Four engines. The *paper* engine gives each group a stream, issues kernels one by one, and synchronises the device
between two stages unless both have a single group. The *graph* engine replays one CUDA graph: nothing is issued while
it runs, each node costs a little, and a stage of several groups is forked into and joined from. The *partition*
engine is the graph engine with SMs of its own for each group of a stage (:mod:`iossim.backends.simulator.partition`).

The *onnxruntime* engine is the streams of a session, without barriers
(:mod:`~iossim.backends.simulator.event_costs`). The sum of stages, which a search needs, is the makespan of each
stage's groups as streams, with a notification between two stages of which one has several groups. It leaves out that
streams run on into the next stage, that the host is ahead there, and that a stage may read nothing from other streams:
those are in the prices of whole plans, and in the event-driven engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iossim.backends.simulator.event_costs import EventCosts, tell_unknown
from iossim.backends.simulator.stage_pricing import StagePricing
from iossim.backends.simulator.unit_prices import BACKEND, COPIES, IN_PLACE, UnitPrice, UnitPrices
from iossim.base.errors import OptionError, ScheduleError
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.execution.engine import Engine
from iossim.execution.in_place import in_place_buffers
from iossim.hardware.lowering.kernel import Candidate, Libraries
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch, UnitVariant
from iossim.schedule.problem import Masks, ScheduleProblem, bits
from iossim.schedule.schedule import AnySchedule, Stage, StreamSchedule

if TYPE_CHECKING:
    from iossim.backends.simulator.plan_pricing import PlanPricing
    from iossim.backends.simulator.structured_error import StructuredError
    from iossim.cost.facts import LaunchWork, StageFacts, StreamPrices, VariantBounds
    from iossim.execution.backend import Divided
    from iossim.execution.execution import Span
    from iossim.execution.plan import Plan
    from iossim.schedule.streams import StreamBatch, StreamProblem

VERSION = "2"
#: The argument for errors, with a seed.
STRUCTURED_ERROR = "structured-error="


def create(
    device: DeviceProfile | None, precision: Precision, engine: str, argument: str = "", store: Path | None = None
) -> SimulatorCostModel:
    """The simulator of a device under an engine; ``argument`` may be ``in-place`` or ``copies``, of concats and splits,
    or ``backend``: in place, and in TF32 with images channels first, as iossim's backends of GPUs run.

    ``structured-error=SEED`` gives each unit an error (:mod:`iossim.backends.simulator.structured_error`).
    """
    seed = argument.removeprefix(STRUCTURED_ERROR) if argument.startswith(STRUCTURED_ERROR) else ""
    if argument not in ("", IN_PLACE, COPIES, BACKEND) and not seed.isdecimal():
        raise OptionError(
            f"`cost_model` simulator:{argument}: the simulator knows no such argument; leave it out, or give "
            f"{IN_PLACE}, {COPIES} or {BACKEND}"
        )
    if device is None:
        from iossim.hardware.names import device_names

        known = ", ".join(device_names())
        raise OptionError(f"`cost_model` simulator needs a device; give `device` NAME; known: {known}")
    device.require(precision)
    chosen = Engine.named(engine, device)
    tell_unknown(chosen, device)
    error = None
    if seed:
        from iossim.backends.simulator.structured_error import StructuredError

        error = StructuredError(int(seed))
    in_place = {IN_PLACE: True, COPIES: False}.get(argument)
    return SimulatorCostModel(device, precision, chosen, in_place, error, argument == BACKEND)


class SimulatorCostModel:
    """A :class:`~iossim.cost.capabilities.VariantCostModel`, ``DeviceCostModel`` and ``StreamCostModel`` of
    ``profile``; equal units are priced once.

    With ``in_place`` concats and splits launch kernels only for what cannot lie in place, as inference compilers have
    them, else one for each term, as the published engine does; None leaves it to the engine. An ``error`` changes the
    prices of units; ``of_backend`` they are of iossim's backends of GPUs: in place, TF32 with images channels first.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        precision: Precision,
        engine: Engine = Engine.PAPER,
        in_place: bool | None = None,
        error: StructuredError | None = None,
        of_backend: bool = False,
    ) -> None:
        self.profile = profile
        self.precision = precision
        self.engine = Engine(engine)
        self.in_place = of_backend or (self.engine.facts.in_place if in_place is None else in_place)
        self._asked, self._error, self._of_backend = in_place, error, of_backend
        own = self.engine.libraries_on(profile.architecture)
        libraries = Libraries.CHANNELS_FIRST if of_backend and own is Libraries.COMPILED else own
        self.units = UnitPrices(profile, precision, self.engine, self.in_place, error, libraries)
        self.stages = StagePricing(profile, self.units, self.engine)
        self._plans: PlanPricing | None = None
        self._merged: dict[tuple[str, int], UnitPrice | None] = {}

    @property
    def identity(self) -> CostModelIdentity:
        version = f"{VERSION}+{self.profile.fingerprint}"
        version += "" if self._asked is None else f"+{IN_PLACE if self._asked else COPIES}"
        version += f"+{BACKEND}" * self._of_backend + (f"+{STRUCTURED_ERROR}{self._error.seed}" if self._error else "")
        return CostModelIdentity("simulator", self.profile.name, str(self.precision), self.engine, version)

    def at(self, profile: DeviceProfile | None = None, engine: Engine | None = None) -> SimulatorCostModel:
        """The simulator of another profile, or under another engine; all else is the same."""
        chosen = profile or self.profile, self.precision, engine or self.engine
        return SimulatorCostModel(*chosen, self._asked, self._error, self._of_backend)

    def remarks(self, network: Network) -> list[str]:
        return self.units.remarks(network)

    def price_keys(self, problem: ScheduleProblem) -> Sequence[str]:
        """Key of each unit's work, including the effects of its placement, alone and merged with others."""
        keys = [work + placed for work, placed in self.units.keys(problem)]
        if not self.in_place:
            return keys
        place = in_place_buffers(self.units.network(problem))
        return [key + place.merging(unit) for key, unit in zip(keys, problem.units, strict=True)]

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; inf for units that do not merge, or merge as a variant.

        Raises PlanError for a variant that is not known.
        """
        if batch.variants is not None and not self.stages.is_divided and not batch.merged.any():
            from iossim.backends.simulator.variants import price_varied  # imported only when needed, as below

            return price_varied(self.stages, batch, batch.variants)
        return self._price(batch, self.stages.price, lambda merged: merged.single_us)

    def price_below(self, batch: StageBatch, limits_us: Prices) -> Prices:
        return self.stages.price(batch.problem, batch.masks, limits_us=limits_us)

    def price_changed(self, batch: StageBatch, launches: float) -> Prices:
        if self.stages.is_divided:  # groups on SMs of their own are issued before they run
            return self.price_stages(batch)
        return self._price(
            batch,
            partial(self.stages.price_changed, launches=launches),
            lambda merged: max(merged.device_us, launches * sum(merged.host_us)),
        )

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        """Microseconds between two neighbouring stages: nothing between two of a single group each."""
        costs = self.profile.engine
        if not self.engine.has_barriers:
            events = EventCosts.of(self.engine, self.profile)
            return 2 * events.host_us + events.wait_us if left_concurrent or right_concurrent else 0.0
        if self.engine.synchronises:
            return costs.synchronise_us if left_concurrent or right_concurrent else 0.0
        return (costs.join_us if left_concurrent else 0.0) + (costs.fork_us if right_concurrent else 0.0)

    def price_candidates(self, candidates: Sequence[Candidate]) -> Prices:
        """Microseconds of each as a stage of its own: the longer of host and device time; inf of what cannot run."""
        if not candidates:
            return np.zeros(0)
        model = self.units.whole
        alone_us = model.alone_us([kernel for one in candidates for kernel in one.kernels])
        begin = np.cumsum([0, *(len(one.kernels) for one in candidates[:-1])])
        host_us = [fsum(self.units.issue_us(one)) for one in candidates]
        prices: Prices = np.maximum(np.add.reduceat(alone_us, begin), host_us)
        return np.where([one.is_in(model.libraries) for one in candidates], prices, np.inf)

    def bounds(self, problem: ScheduleProblem) -> StageBounds:
        return self.stages.bounds(problem)

    def bounds_of_variants(self, problem: ScheduleProblem) -> tuple[VariantBounds, ...]:
        from iossim.backends.simulator.variants import bounds_of_variants

        return bounds_of_variants(self.stages, problem)

    def variants(self, problem: ScheduleProblem) -> tuple[tuple[UnitVariant, ...], ...]:
        from iossim.backends.simulator.variants import variants_of

        return variants_of(self.units, problem)

    def merged_workspace_bytes(self, problem: ScheduleProblem, mask: int) -> int:
        network, units = self.units.network(problem), [problem.units[unit] for unit in bits(mask)]
        try:
            return self.units.workspace_bytes(self.units.merged_steps(network, units))
        except ScheduleError:  # they do not merge
            return 0

    @property
    def plans(self) -> PlanPricing:
        """Prices whole plans; raises OptionError under the partition engine."""
        from iossim.backends.simulator.plan_pricing import PlanPricing

        if self._plans is None:
            self._plans = PlanPricing(self.profile, self.units, self.engine, self.stages.limits[0])
        return self._plans

    def price_streams(self, batch: StreamBatch) -> StreamPrices:
        return self.plans.price(batch)

    def launch_work(self, problem: StreamProblem) -> LaunchWork:
        return self.plans.work(problem)

    def plan_us(self, network: Network, plan: Plan) -> float:
        return self.plans.run(network, plan)[0]

    def plan_spans(self, network: Network, plan: Plan) -> tuple[Span, ...]:
        return self.plans.run(network, plan)[1]

    def simulated_plan_us(self, network: Network, plan: Plan, check: Callable[[], None] = lambda: None) -> float:
        from iossim.backends.simulator.events.run import run_plan

        how = self.profile, self.engine, None, lambda *_: check(), self.in_place, self.units.whole.libraries
        return run_plan(plan, network, *how).latency_us

    def timeline(self, network: Network, schedule: AnySchedule) -> tuple[Span, ...]:
        if isinstance(schedule, StreamSchedule):
            from iossim.execution.lower import lower_schedule

            return self.plan_spans(network, lower_schedule(schedule, network, self.engine))
        from iossim.backends.simulator.stage_runs import timeline

        return timeline(self.stages, self.price_boundary, network, schedule)

    def stage_facts(self, network: Network, stage: Stage) -> StageFacts:
        from iossim.backends.simulator.stage_facts import stage_facts
        from iossim.backends.simulator.stage_runs import run_stage

        return stage_facts(run_stage(self.stages, network, stage), network, stage)

    def divided(self, network: Network) -> Divided:
        """The SMs of the groups of a stage of a network, as its price has them."""
        from iossim.backends.simulator.stage_runs import divided_as_priced

        return divided_as_priced(self.stages, network)

    def _price(
        self,
        batch: StageBatch,
        price: Callable[[ScheduleProblem, Masks, Sequence[str]], Prices],
        price_merged: Callable[[UnitPrice], float],
    ) -> Prices:
        """The prices of a batch from those of concurrent stages of the same variants, and of merged units."""
        problem, merged = batch.problem, batch.merged
        prices = np.empty(len(batch), dtype=np.float64)
        for variants, stages in batch.by_variants():
            concurrent = stages[~merged[stages]]
            prices[concurrent] = price(problem, batch.masks[concurrent], variants)
            for index in stages[merged[stages]].tolist():
                unit = None if any(variants) else self._merged_unit(problem, int(batch.masks[index]))
                prices[index] = np.inf if unit is None else price_merged(unit)
        return prices

    def _merged_unit(self, problem: ScheduleProblem, mask: int) -> UnitPrice | None:
        """The stacked convolution of the units in ``mask``, None where they do not merge."""
        key = (problem.key, mask)
        if key not in self._merged:
            units = [problem.units[index] for index in bits(mask)]
            self._merged[key] = self.units.price_merged(self.units.network(problem), units)
        return self._merged[key]
