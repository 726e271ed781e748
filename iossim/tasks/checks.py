"""Checks of a schedule: valid, free of races, fast enough, no slower than before. Each returns a :class:`Check`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from iossim.base.display import counted
from iossim.base.errors import OptionError, ScheduleError
from iossim.cost.capabilities import StreamCostModel
from iossim.cost.model import CostModel
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import check_happens_before, with_memory
from iossim.execution.plan import Plan
from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.search.assemble import plan_us, reprice_any
from iossim.transforms.replay import in_units_of, split_source

#: Sums of the same prices in another order may differ by this much.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Check:
    """One check by name: whether it holds, its finding in words, and the ``values`` that it compared, by name."""

    name: str
    holds: bool
    found: str
    values: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{'PASS' if self.holds else 'FAIL'} {self.name}: {self.found}"

    def to_json(self) -> dict[str, object]:
        return {"check": self.name, "holds": self.holds, "found": self.found, **self.values}


def check_limits(limit_ms: float | None = None, tolerance: float = 0.0) -> None:
    """Raise OptionError for an invalid time or tolerance: before long work, not after."""
    if limit_ms is not None and not (limit_ms > 0 and math.isfinite(limit_ms)):
        raise OptionError(f"`max_latency_ms` {limit_ms:g} is not a time; give milliseconds above 0")
    if not 0 <= tolerance < math.inf:
        raise OptionError(f"`tolerance` {tolerance:g} is not a fraction; give 0.02 for 2%")


def valid(schedule: AnySchedule, network: Network) -> Check:
    """Check that the schedule runs each unit of the network once, after its predecessors."""
    try:
        in_units_of(schedule, network)
    except ScheduleError as error:
        return Check("valid", False, str(error))
    noun, parts = ("stage", schedule.stages) if isinstance(schedule, Schedule) else ("stream", schedule.streams)
    counts = {f"{noun}s": len(parts), "units": len(network.units)}
    ran = f"each unit runs once: {counted(len(network.units), 'unit')} in {counted(len(parts), noun)}"
    return Check("valid", True, ran, counts)


def race_free(plan: Plan) -> Check:
    """Check that a plan computes the same under every interleaving of its queues; its memory is planned if need be."""
    try:
        check_happens_before(with_memory(plan))
    except ScheduleError as error:
        return Check("free of races", False, str(error))
    commands = len(plan.commands)
    said = f"all conflicting accesses of {commands} commands are ordered"
    return Check("free of races", True, said, {"commands": commands})


def runs_without_races(schedule: AnySchedule, network: Network, engine: str = "") -> Check:
    """:func:`race_free` of the plan that real backends run, by default under the schedule's own engine.

    Raises ScheduleError for a schedule that does not fit.
    """
    chosen = Engine.named(engine or schedule.engine or Engine.PAPER)
    return race_free(lower_schedule(schedule, in_units_of(schedule, network), chosen, in_place=True))


def latency_at_most(schedule: AnySchedule, limit_ms: float) -> Check:
    """Check that the schedule's price is at most ``limit_ms``, whatever its interval, which is told; raises OptionError
    for an invalid time.
    """
    check_limits(limit_ms)
    found_ms = schedule.latency_us / 1e3
    values = {"latency_us": schedule.latency_us, "limit_us": 1e3 * limit_ms}
    said = f"{found_ms:.3f} ms, limit {limit_ms:g} ms"
    if schedule.interval_us is not None:
        low_us, high_us = schedule.interval_us
        values |= {"low_us": low_us, "high_us": high_us}
        said += f"; expected on hardware: {low_us / 1e3:.3f}-{high_us / 1e3:.3f} ms (90% interval)"
    return Check("latency", found_ms <= limit_ms * (1 + _ROUNDING), said, values)


def check_baseline(baseline: AnySchedule, network: Network, prices: CostModel, changed_model: bool = False) -> None:
    """Raise OptionError, naming what differs, for a baseline that answers another question than ``network`` at these
    prices: of another model or graph, batch or other option of loading, precision, engine or device.

    With ``changed_model`` its graph may differ, as long as the same cost model priced it: its saved latency counts.
    """
    own, asked = split_source(baseline.source.to_source())[0], split_source(network.source)[0]
    identity = prices.identity
    facts: list[tuple[str, object, object]] = [
        ("batch", own.batch, asked.batch),
        ("dtype", baseline.precision, str(network.precision)),
        ("engine", baseline.engine or identity.engine, identity.engine or baseline.engine),
        ("device", baseline.device, identity.device),
    ]
    was, now = dict(own.options), dict(asked.options)
    others = sorted((was.keys() | now) - {"dtype"})
    facts += [(name, was.get(name, "by default"), now.get(name, "by default")) for name in others]
    remedy = "give the same, or save another baseline with optimize"
    if baseline.graph_hash != network.graph.hash:
        if changed_model:
            facts.append(("cost model", " ".join(baseline.cost_model.values()), " ".join(identity.to_json().values())))
        elif baseline.network != network.name:
            facts.insert(0, ("model", baseline.network, network.name))
        elif all(before == after for _, before, after in facts):
            facts.append(("graph hash", baseline.graph_hash, network.graph.hash))
            remedy = "if the model has changed, give `changed_model`, or save another baseline with optimize"
    differ = [f"{name} {before}, not {after}" for name, before, after in facts if before != after]
    if differ:
        raise OptionError(f"`baseline` is of another question: {'; '.join(differ)}; {remedy}")


def no_slower_than(
    schedule: AnySchedule,
    baseline: AnySchedule,
    network: Network,
    prices: CostModel,
    tolerance: float = 0.0,
    changed_model: bool = False,
) -> Check:
    """Check that the schedule takes no longer than ``baseline``, up to a ``tolerance`` (0.02: two percent).

    A baseline of the same graph is priced again, as the schedule was; if one has stages and the other streams, both as
    whole plans. For a ``changed_model`` the saved latency counts. Raises OptionError for a baseline of another question
    (:func:`check_baseline`), ScheduleError for one of the same graph in other units.
    """
    check_limits(tolerance=tolerance)
    check_baseline(baseline, network, prices, changed_model)
    found_us, before_us, how = schedule.latency_us, baseline.latency_us, "as it was saved"
    one_kind = isinstance(schedule, Schedule) == isinstance(baseline, Schedule)
    if baseline.graph_hash == network.graph.hash:
        own, its = in_units_of(schedule, network), in_units_of(baseline, network)
        before_us = reprice_any(baseline, its, prices).latency_us
        if not one_kind and isinstance(prices, StreamCostModel):
            found_us, before_us = plan_us(schedule, own, prices), plan_us(baseline, its, prices)
        how = "priced again" if one_kind else "both as whole plans"
    elif not one_kind:
        reason = "is of another graph, and one of the two is of stages, the other of streams"
        raise OptionError(f"the baseline of {baseline.network!r} {reason}; save one with optimize and the same options")
    elif baseline.network != network.name:
        how += f", of {baseline.network!r}"
    allowed = f" + {tolerance:.1%}" if tolerance else ""
    found = f"{found_us / 1e3:.3f} ms, baseline {before_us / 1e3:.3f} ms ({how}){allowed}"
    values = {"latency_us": found_us, "baseline_us": before_us, "tolerance": tolerance}
    holds = found_us <= before_us * (1 + tolerance + _ROUNDING)
    return Check("no slower than before", holds, found, values)
