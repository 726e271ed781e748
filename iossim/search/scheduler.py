"""The contract of a scheduler, and the registry: a table has the place of the function of each name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, Protocol

from iossim.base.errors import OptionError, Progress, ScheduleError, ignore
from iossim.base.registry import Extension, Group, Places, Plugin
from iossim.cost.capabilities import MeasuringCostModel
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchLimits, SearchOptions, StageSpace


class MeasuredProgress(Protocol):
    """Told after each round: the measurements made, their maximum (None: no limit), the latency of the best measured
    schedule so far, and an optimistic bound of all schedules; microseconds.
    """

    def __call__(self, measurements: int, most: int | None, best_us: float, bound_us: float, /) -> None: ...


class Scheduler(Protocol):
    """Schedules a network on a cost model; ``memo`` holds results of earlier searches at its prices.

    A scheduler of streams returns stages if no streams are faster; all others return stages.
    """

    def __call__(
        self,
        network: Network,
        cost_model: CostModel,
        options: SearchOptions,
        progress: Progress,
        memo: SearchMemo | None,
    ) -> AnySchedule: ...


#: Schedulers from no search to most strategies, as in figure 4.1 of the thesis.
_WITHOUT_SEARCH = ("sequential", "greedy")
_ORDER = (*_WITHOUT_SEARCH, "ios-merge", "ios-parallel", "ios-both")
#: The scheduler of streams, which only :func:`schedule_any` calls.
STREAM_SCHEDULER = "ios-streams"
#: The schedulers of iossim, in the order in which they are listed.
_PLACES = Places[Scheduler](
    "iossim.search",
    {
        "unsearched:sequential": "sequential",
        "unsearched:greedy": "greedy",
        "ios:ios_merge": "ios-merge",
        "ios:ios_parallel": "ios-parallel",
        "ios:ios_both": "ios-both",
        "streams.from_stages:ios_streams": STREAM_SCHEDULER,
    },
)


def _adapted(plugin: Plugin, function: Scheduler) -> Scheduler:
    """The scheduler of a plugin, raising its error for what is no schedule of the network."""

    def scheduled(network: Network, *given: Any, **named: Any) -> AnySchedule:
        from iossim.schedule.fit import fit  # most schedulers are of no plugin

        found = plugin.guarded(function)(network, *given, **named)
        try:
            fit(found, network)
        except (AttributeError, ScheduleError) as error:
            raise plugin.error(f"returned no schedule of {network.name}: {error}") from None
        return found

    return scheduled


SCHEDULERS: Group[Scheduler] = Group(
    "`scheduler` {!r} is not known",
    lambda: _PLACES,
    _PLACES.get,
    Extension("iossim.schedulers", "a function that schedules", _adapted),
)


def scheduler_names() -> tuple[str, ...]:
    """All schedulers of stages that can be asked for by name."""
    return tuple(name for name in SCHEDULERS.names() if name != STREAM_SCHEDULER)


def check_heeded(options: SearchOptions, schedulers: Sequence[str]) -> None:
    """Raise OptionError for an option that none of the schedulers heeds; one of a plugin may heed any."""
    given: dict[str, object] = {}
    if schedulers and set(schedulers) <= set(_ORDER):
        given["stream_seed"] = options.seed
    if schedulers and set(schedulers) <= set(_WITHOUT_SEARCH):
        space = options.space
        given |= {"seconds": options.seconds, "max_group_size": space.max_group_size, "max_groups": space.max_groups}
        given["stages"] = space.definition != StageSpace().definition
    for name, value in given.items():
        if value:
            raise OptionError(f"`{name}` has no effect on scheduler {', '.join(schedulers)}; leave it out")


def stage_scheduler(name: str) -> Scheduler:
    """The scheduler of stages of that name; raises OptionError for an unknown one, or one of streams."""
    found = SCHEDULERS.find(name)
    if name == STREAM_SCHEDULER:
        raise OptionError(
            f"`scheduler` {name!r} finds streams (iossim.optimize_streams), and stages are needed here; give one of "
            f"{', '.join(scheduler_names())}"
        )
    return found


def schedule_any(
    network: Network,
    cost_model: CostModel,
    name: str,
    options: SearchOptions | None = None,
    progress: Progress = ignore,
    memo: SearchMemo | None = None,
) -> AnySchedule:
    """Schedule a network by a scheduler of stages or of streams; raises OptionError for an unknown one.

    KeyboardInterrupt ends it as it does :func:`schedule`.
    """
    if name != STREAM_SCHEDULER:
        return schedule(network, cost_model, name, options, progress, memo)
    try:
        return SCHEDULERS.find(name)(network, cost_model, options or SearchOptions(), progress, memo)
    except KeyboardInterrupt:
        return without_search(network, cost_model, name, options)


def schedule(
    network: Network,
    cost_model: CostModel,
    name: str,
    options: SearchOptions | None = None,
    progress: Progress = ignore,
    memo: SearchMemo | None = None,
) -> Schedule:
    """Schedule a network in stages; raises OptionError for an unknown scheduler, or one of streams.

    Searches one after another at the same prices share a ``memo``; the schedules are the same without.
    KeyboardInterrupt ends a search with the best schedule so far (:mod:`iossim.search.anytime`), which then is
    not ``complete``.
    """
    scheduler, options = stage_scheduler(name), options or SearchOptions()
    try:
        priced = within_workspace(cost_model, network, options.workspace_limit_bytes)
        if options.company:
            from iossim.search.company import with_company

            def search(prices: CostModel, own: SearchOptions) -> Schedule:
                return schedule(network, prices, name, own, progress, memo)

            return with_company(network, priced, replace(options, company=False), search)
        key = network, name, replace(options, limits=SearchLimits(), seconds=None)
        kept = SearchMemo.of(memo, priced)
        if key in kept.schedules:
            return kept.schedules[key]
        found = scheduler(network, priced, options, progress, kept)
    except KeyboardInterrupt:
        return without_search(network, cost_model, name, options)
    if not isinstance(found, Schedule):
        raise ScheduleError(f"scheduler {name!r} returned {type(found).__name__}, and not a schedule of stages")
    if found.proven:
        kept.schedules[key] = found
    return found


def within_workspace(cost_model: CostModel, network: Network, limit_bytes: int | None) -> CostModel:
    """The prices under a limit on workspace, if there is one."""
    if limit_bytes is None:
        return cost_model
    from iossim.cost.workspace_limit import workspace_limited

    return workspace_limited(cost_model, network, limit_bytes)


def without_search(
    network: Network, cost_model: CostModel, name: str, options: SearchOptions | None = None
) -> Schedule:
    """The schedule of a scheduler that was interrupted before it found any: the better of those that need no search,
    under the workspace limit of the options.

    Measuring prices measure only single units for it, and schedulers get no stages of more groups than they may form.
    """
    options = options or SearchOptions()
    cost_model = within_workspace(cost_model, network, options.workspace_limit_bytes)
    names = ["sequential"]
    if name not in ("sequential", "ios-merge") and not isinstance(cost_model, MeasuringCostModel):
        names.append("greedy")
    found: list[Schedule] = []
    for one in names:
        with suppress(ScheduleError) if found else nullcontext():  # not every stage has a price
            made = SCHEDULERS.find(one)(network, cost_model, SearchOptions(), ignore, None)
            assert isinstance(made, Schedule)
            found.append(made)
    most = None if name in _WITHOUT_SEARCH else options.space.max_groups
    best = min((each for each in found if each.streams <= (most or each.streams)), key=lambda each: each.latency_us)
    return best.model_copy(update={"scheduler": name, "complete": False})
