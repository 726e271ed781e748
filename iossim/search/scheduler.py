"""The contract of a scheduler, and the registry: a module of this package registers a function under a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from iossim.base.registry import Extension, Group, modules
from iossim.cost.model import CostModel
from iossim.cost.workspace_limit import workspace_limited
from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule, Schedule
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions


class Progress(Protocol):
    """Told as a search goes on: how many units are scheduled, and how many there are."""

    def __call__(self, done: int, total: int) -> None: ...


#: Starts the progress of a piece of work under a label.
StartProgress = Callable[[str], Progress]


def ignore(done: int, total: int) -> None:
    """A progress that reports to nobody."""


def silent(label: str) -> Progress:
    """Starts progress that nobody looks at."""
    return ignore


class MeasuredProgress(Protocol):
    """Told after each round: measurements made, how many there may be at most (None: as many as it takes), the best
    measured schedule so far and the least that, optimistically, any may cost; microseconds.
    """

    def __call__(self, measurements: int, most: int | None, best_us: float, bound_us: float) -> None: ...


def ignore_measuring(measurements: int, most: int | None, best_us: float, bound_us: float) -> None:
    """A progress of measurements that reports to nobody."""


class Scheduler(Protocol):
    """Schedules a network on a cost model; ``memo`` holds what earlier searches at its prices found."""

    def __call__(
        self,
        network: Network,
        cost_model: CostModel,
        options: SearchOptions,
        progress: Progress,
        memo: SearchMemo | None,
    ) -> Schedule: ...


class StreamScheduler(Protocol):
    """The same, of streams: or of stages, where no streams are faster."""

    def __call__(
        self,
        network: Network,
        cost_model: CostModel,
        options: SearchOptions,
        progress: Progress,
        memo: SearchMemo | None,
    ) -> AnySchedule: ...


#: From no search to the most strategies, as in figure 4.1 of the thesis.
_ORDER = ("sequential", "greedy", "ios-merge", "ios-parallel", "ios-both")
_SCHEDULERS: dict[str, Scheduler] = {}
_STREAM_SCHEDULERS: dict[str, StreamScheduler] = {}


def scheduler(name: str) -> Callable[[Scheduler], Scheduler]:
    """Register a scheduler under ``name``."""

    def register(function: Scheduler) -> Scheduler:
        _SCHEDULERS[name] = function
        return function

    return register


def stream_scheduler(name: str) -> Callable[[StreamScheduler], StreamScheduler]:
    """Register a scheduler of streams under ``name``."""

    def register(function: StreamScheduler) -> StreamScheduler:
        _STREAM_SCHEDULERS[name] = function
        return function

    return register


def _own_names() -> list[str]:
    """The schedulers of iossim: those of :data:`_ORDER`, then others by name."""
    modules("iossim.search")
    return sorted(_SCHEDULERS, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


SCHEDULERS: Group[Scheduler] = Group(
    "`scheduler` {!r} is not known",
    _own_names,
    _SCHEDULERS.get,
    Extension("iossim.schedulers", "a function that schedules", lambda added, function: added.guarded(function)),
)


def scheduler_names() -> tuple[str, ...]:
    """All schedulers that can be asked for by name."""
    return tuple(SCHEDULERS.names())


def stream_scheduler_names() -> tuple[str, ...]:
    """The schedulers of streams, which are not among :func:`scheduler_names`."""
    modules("iossim.search")
    return tuple(sorted(_STREAM_SCHEDULERS))


def schedule_any(
    network: Network,
    cost_model: CostModel,
    name: str,
    options: SearchOptions | None = None,
    progress: Progress = ignore,
    memo: SearchMemo | None = None,
) -> AnySchedule:
    """Schedule a network by a scheduler of stages or of streams; raises OptionError for an unknown one."""
    if name in stream_scheduler_names():
        return _STREAM_SCHEDULERS[name](network, cost_model, options or SearchOptions(), progress, memo)
    return schedule(network, cost_model, name, options, progress, memo)


def schedule(
    network: Network,
    cost_model: CostModel,
    name: str,
    options: SearchOptions | None = None,
    progress: Progress = ignore,
    memo: SearchMemo | None = None,
) -> Schedule:
    """Schedule a network; raises OptionError for an unknown scheduler.

    Searches one after another at the same prices share a ``memo``; the schedules are the same without.
    """
    modules("iossim.search")
    options = options or SearchOptions()
    if options.workspace_limit_bytes is not None:
        cost_model = workspace_limited(cost_model, network, options.workspace_limit_bytes)
    return SCHEDULERS.find(name)(network, cost_model, options, progress, memo)
