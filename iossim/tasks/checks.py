"""Is a schedule valid, free of races, fast enough, no slower than before? Each check returns a :class:`Check`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from iossim.base.errors import OptionError, ScheduleError
from iossim.cost.model import CostModel
from iossim.execution.engine import Engine
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import with_memory
from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.schedule.fit import fit
from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.search.assemble import comparable_us, reprice_any

#: Sums of the same prices in another order may differ by this much.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Check:
    """One check by name: does it hold, and what was found, in words."""

    name: str
    holds: bool
    found: str

    def __str__(self) -> str:
        return f"{'PASS' if self.holds else 'FAIL'} {self.name}: {self.found}"


def check_limits(limit_ms: float | None = None, tolerance: float = 0.0) -> None:
    """Raise OptionError for what is no time, or no part: before long work, not after."""
    if limit_ms is not None and not (limit_ms > 0 and math.isfinite(limit_ms)):
        raise OptionError(f"`max_latency_ms` {limit_ms:g} is not a time; give milliseconds above 0")
    if not 0 <= tolerance < math.inf:
        raise OptionError(f"`tolerance` {tolerance:g} is not a fraction; give 0.02 for 2%")


def valid(schedule: AnySchedule, network: Network) -> Check:
    """Whether the schedule runs each unit of the network once, and behind what it reads."""
    try:
        fit(schedule, network)
    except ScheduleError as error:
        return Check("valid", False, str(error))
    parts = f"{len(schedule.stages)} stages" if isinstance(schedule, Schedule) else f"{len(schedule.streams)} streams"
    return Check("valid", True, f"{parts} run each of {len(network.units)} units once")


def race_free(plan: Plan) -> Check:
    """Whether a plan computes the same however its queues interleave; its memory is planned where it is not yet."""
    try:
        check_happens_before(with_memory(plan))
    except ScheduleError as error:
        return Check("free of races", False, str(error))
    return Check("free of races", True, f"all conflicting accesses of {len(plan.commands)} commands are ordered")


def runs_without_races(schedule: AnySchedule, network: Network, engine: str = "") -> Check:
    """:func:`race_free` of the plan that real backends run, by default under the schedule's own engine.

    Raises ScheduleError for a schedule that does not fit.
    """
    chosen = Engine.named(engine or schedule.engine or Engine.PAPER)
    return race_free(lower_schedule(schedule, network, chosen, in_place=True))


def latency_at_most(schedule: AnySchedule, limit_ms: float) -> Check:
    """Whether the schedule takes no longer than ``limit_ms``; raises OptionError for what is no time."""
    check_limits(limit_ms)
    found_ms = schedule.latency_us / 1e3
    return Check("latency", found_ms <= limit_ms * (1 + _ROUNDING), f"{found_ms:.3f} ms, limit {limit_ms:g} ms")


def no_slower_than(
    schedule: AnySchedule, baseline: AnySchedule, network: Network, prices: CostModel, tolerance: float = 0.0
) -> Check:
    """Whether the schedule takes no longer than ``baseline``, by more than ``tolerance`` (0.02: two per cent).

    A baseline of the same graph is priced again, as the schedule was; if one has stages and the other streams, both as
    whole plans. One of another graph (the model has changed) counts with the latency that was saved: raises
    OptionError if it was priced by something else, or is of the other kind; ScheduleError if it is of the same graph in
    other units.
    """
    check_limits(tolerance=tolerance)
    found_us = schedule.latency_us
    one_kind = isinstance(schedule, Schedule) == isinstance(baseline, Schedule)
    if baseline.graph_hash == network.graph.hash:
        fit(baseline, network)
        both = {"found": schedule, "before": reprice_any(baseline, network, prices)}
        found_us, before_us = comparable_us(both, network, prices).values()
        how = "priced again" if one_kind else "both as whole plans"
    elif one_kind and baseline.cost_model == schedule.cost_model and baseline.precision == schedule.precision:
        of_another = f", of {baseline.network!r}" if baseline.network != network.name else ""
        before_us, how = baseline.latency_us, f"as it was saved{of_another}"
    else:
        reason = f"is of another graph, and was priced by {_words(baseline)}, not by {_words(schedule)}"
        if not one_kind:
            reason = "is of another graph, and one of the two is of stages, the other of streams"
        remedy = "the two cannot be compared; save one with optimize and the same options"
        raise OptionError(f"the baseline of {baseline.network!r} {reason}: {remedy}")
    allowed = f" + {tolerance:.1%}" if tolerance else ""
    found = f"{found_us / 1e3:.3f} ms, baseline {before_us / 1e3:.3f} ms ({how}){allowed}"
    return Check("no slower than before", found_us <= before_us * (1 + tolerance + _ROUNDING), found)


def _words(schedule: AnySchedule) -> str:
    """What priced it; a cost model may say the precision itself."""
    return " ".join(filter(None, dict.fromkeys([*schedule.cost_model.values(), schedule.precision])))
