"""Streams searched from the best stages, and judged beside them.

The result is never worse than the stages, at the same prices: those of the whole plan, in the fluid model and event by
event. If neither the search nor the stages as streams are faster in both, the stages themselves are returned. With a
limit in seconds, a bound and a run of the stages event by event may each take a quarter of the time left, of which the
search then leaves as much as the run took; without them the gap is unknown, and plans are compared in the fluid alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from iossim.base.compile_time import working_s
from iossim.base.errors import OptionError, Progress
from iossim.cost.capabilities import StreamCostModel, pricing_streams
from iossim.cost.model import CostModel
from iossim.execution.lower import lower_schedule
from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule, SavedSchedule, Schedule, StreamSchedule
from iossim.schedule.streams import IssuedLaunch, as_streams, in_streams, issue_order
from iossim.search.anytime import Clock, Steps
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions
from iossim.search.scheduler import STREAM_SCHEDULER as NAME
from iossim.search.scheduler import schedule
from iossim.search.streams.bounds import stream_bound_us
from iossim.search.streams.search import problem_of, search_launches

#: Fraction of the time left that a bound, and a run of the stages event by event, may take; number of such runs for
#: which the search leaves time.
_PART, _RUNS_LEFT = 0.25, 1.5


#: The scheduler of the stages that streams are searched from.
_STAGES = "ios-both"


def ios_streams(
    network: Network, cost_model: CostModel, options: SearchOptions, progress: Progress, memo: SearchMemo | None
) -> AnySchedule:
    """The scheduler; raises OptionError for a cost model that does not price streams, and for a limit on workspace."""
    cost_model = pricing_streams(cost_model, f"scheduler {NAME!r} orders streams", ", or another scheduler")
    if options.workspace_limit_bytes is not None:
        raise OptionError(f"`workspace_limit` is for stages, and scheduler {NAME!r} has none; give another scheduler")
    started_s, steps = working_s(), Steps(Clock(options.seconds))
    half = replace(options, seconds=steps.clock.part_s(1 / 2))
    stages = schedule(network, cost_model, _STAGES, half, progress, memo)
    if not stages.complete:
        return stages.model_copy(update={"scheduler": NAME, "proven": False})
    try:
        return _streams_from(network, cost_model, stages, options.seed, steps, started_s)
    except KeyboardInterrupt:  # between two steps
        return stages.model_copy(update={"scheduler": NAME, "complete": False, "proven": False})


def _streams_from(
    network: Network, cost_model: StreamCostModel, stages: Schedule, seed: int, steps: Steps, started_s: float
) -> AnySchedule:
    """The streams that a search from stages finds, or the stages; ``started_s`` is when the scheduler began."""
    begun = as_streams(stages, network)
    launches = [IssuedLaunch(tuple(one.units), stream, one.variant) for stream, one in issue_order(begun)]
    judge = _Judge(network, cost_model, stages, steps)
    problem = problem_of(network, launches)
    clock = Clock(steps.clock.part_s(_PART))
    bound_us = steps.take(None, lambda: stream_bound_us(problem, cost_model.launch_work(problem), check=clock.check))
    left_s = steps.clock.part_s()
    if left_s is not None:
        began = perf_counter()
        judge.run_stages(Clock(_PART * left_s))
        taken_s = perf_counter() - began
        left_s = max(_PART * left_s, left_s - taken_s * (1 + _RUNS_LEFT if judge.simulated_us is not None else 1))
    orders = search_launches(network, cost_model, [launches], seed, steps, left_s)
    judge.run_stages(steps.clock)
    found = [begun.model_copy(update=in_streams(network, order)) for order in orders[:-1]]
    return judge.chosen([*found, begun], bound_us, started_s)


class _Judge:
    """Compares streams with the stages that they were searched from, as plans, as far as time permits."""

    def __init__(self, network: Network, cost_model: StreamCostModel, stages: Schedule, steps: Steps) -> None:
        self.network, self.cost_model, self.stages, self.steps = network, cost_model, stages, steps
        self.plan = self._lowered(stages)
        self.simulated_us: float | None = None

    def _lowered(self, schedule: AnySchedule) -> Plan:
        return lower_schedule(schedule, self.network, self.cost_model.identity.engine)

    def run_stages(self, clock: Clock) -> None:
        """Run the stages event by event, unless that was done."""
        if self.simulated_us is None:
            self.simulated_us = self._run(self.plan, clock)

    def _run(self, plan: Plan, clock: Clock) -> float | None:
        clock = clock if clock.is_limited else self.steps.clock
        return self.steps.take(None, self.cost_model.simulated_plan_us, self.network, plan, clock.check)

    def chosen(self, candidates: Sequence[StreamSchedule], bound_us: float | None, started_s: float) -> AnySchedule:
        """The first candidate that is no slower than the stages in the fluid and event by event; else the stages."""
        stages_us = self.cost_model.plan_us(self.network, self.plan)
        best: tuple[float, float | None, StreamSchedule] | None = None
        for candidate in candidates:
            plan = self._lowered(candidate)
            fluid_us = self.cost_model.plan_us(self.network, plan)
            if fluid_us > stages_us or (best is not None and fluid_us >= best[0]):
                continue
            run_us = None if self.simulated_us is None else self._run(plan, self.steps.clock)
            if run_us is None or self.simulated_us is None or run_us <= self.simulated_us:
                best = fluid_us, run_us, candidate
        stages = self.stages
        said = {"scheduler": NAME, "search_s": working_s() - started_s, "proven": False}
        said["complete"] = stages.complete and not self.steps.interrupted
        notes = list(stages.notes)
        if bound_us is None:
            notes.append(f"{NAME}: no lower bound of streams, so that the gap is not known: {self.steps.cause}")
        else:
            said["relaxed_bound_us"] = bound_us
        if best is None or not stages_us:
            how = "in the fluid and event by event" if self.simulated_us is not None else "in the fluid"
            note = f"{NAME}: no streams were found that take less than these stages, {how}"
            return stages.model_copy(update={**said, "notes": [*notes, note]})
        fluid_us, run_us, found = best
        note = (
            f"{NAME}: {fluid_us / 1e3:.4g} ms, the stages it began from {stages_us / 1e3:.4g} ms as a plan "
            f"({fluid_us / stages_us - 1:+.1%}); "
        )
        if run_us is None or self.simulated_us is None:
            note += f"not compared event by event: {self.steps.cause}"
        else:
            gain = run_us / self.simulated_us - 1
            note += f"event by event {run_us / 1e3:.4g} and {self.simulated_us / 1e3:.4g} ms ({gain:+.1%})"
        kept = {name: getattr(stages, name) for name in SavedSchedule.model_fields if name != "format_version"}
        bounds: dict[str, object] = {
            "lower_bound_us": None if bound_us is None else min(bound_us, fluid_us),
            "relaxed_bound_us": bound_us,
            "latency_us": fluid_us,
            "interval_us": None,
            "ties": [],
            "proven": bound_us is not None and bool(fluid_us <= bound_us * (1 + 1e-9)),
        }
        return found.model_copy(update={**kept, **said, **bounds, "notes": [*notes, note]})
